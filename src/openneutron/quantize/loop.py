"""From an exported float model to a quantized one: calibration, or training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torchao.quantization.pt2e import (
    allow_exported_model_train_eval,
    move_exported_model_to_eval,
    move_exported_model_to_train,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron.diagnostics import fail
from openneutron.environment.stopwatch import ACCURACY, TORCHAO, stage
from openneutron.fast_export.counted_names import counted_names
from openneutron.fast_export.norm_patterns import norm_patterns
from openneutron.passes import BEFORE_PREPARE, PTQ, run_passes
from openneutron.passes.canonical.constants import fold_quantized
from openneutron.quantize.convert import convert_calibrated
from openneutron.quantize.plan import FAST, AccuracyPlan, find_plan
from openneutron.quantize.prepared_model.copies import join_stateless
from openneutron.quantize.prepared_model.model import let_biases_fit
from openneutron.quantize.refine import Refined, calibrate


def calibrate_and_quantize(
    model: GraphModule | ExportedProgram,
    calibration_inputs: Iterable[tuple[Any, ...]],
    quantizer: Quantizer,
    is_qat: bool = False,
    train_fn: Callable[[GraphModule], Any] | None = None,
    *,
    accuracy: str | AccuracyPlan = FAST,
    watch: Callable[[Refined], None] | None = None,
    progress: Callable[[float], None] = lambda part: None,
    after: Callable[[GraphModule, Refined], tuple[GraphModule, Refined]] | None = None,
) -> GraphModule:
    """Post-training quantization: observe the model on sample inputs, then fix the parameters.

    With `is_qat` the prepared model is trained by `train_fn` first, if there is one, then observed.
    `accuracy` says what else is done (see `plan`), then `after` may change the calibrated model; `watch` is
    told what came of it.
    """
    if train_fn is not None and not is_qat:
        fail("ON104", "train_fn", "is given without is_qat=True", "Give both, or neither.")
    if is_qat:
        return train_and_quantize(model, train_fn or (lambda prepared: None), quantizer, calibration_inputs)
    with stage(TORCHAO):
        prepared = prepare(model, quantizer)
    with stage(ACCURACY):
        plan = find_plan(accuracy)
        measured = watch is not None or after is not None
        prepared, refined = calibrate(prepared, calibration_inputs, plan, progress, measured)
        if after is not None:
            prepared, refined = after(prepared, refined)
        if watch is not None:
            watch(refined)
    with stage(TORCHAO):
        let_biases_fit(prepared)
        return convert_calibrated(prepared)


def prepare(model: GraphModule | ExportedProgram, quantizer: Quantizer) -> GraphModule:
    """The model with observers in place, to be calibrated."""
    with counted_names():
        return join_stateless(prepare_pt2e(run_passes(_module_of(model), BEFORE_PREPARE, PTQ), quantizer))


def train_and_quantize(
    model: GraphModule | ExportedProgram,
    train_fn: Callable[[GraphModule], Any],
    quantizer: Quantizer,
    calibration_inputs: Iterable[tuple[Any, ...]] = (),
) -> GraphModule:
    """Quantization-aware training: `train_fn` trains the prepared model in place.

    Sample inputs are optional; they let the observers settle on the weights as training left them.
    """
    prepared = prepare_to_train(model, quantizer)
    train_fn(prepared)
    return convert_trained(prepared, calibration_inputs)


def prepare_to_train(model: GraphModule | ExportedProgram, quantizer: Quantizer) -> GraphModule:
    """The model with fake quantization in place, in training mode, for a training loop of any kind.

    `train()` and `eval()` work on it as on any module.
    """
    with counted_names(), norm_patterns():
        prepared = prepare_qat_pt2e(_module_of(model), quantizer)
    allow_exported_model_train_eval(prepared)
    move_exported_model_to_train(prepared)
    return prepared


def convert_trained(prepared: GraphModule, calibration_inputs: Iterable[tuple[Any, ...]] = ()) -> GraphModule:
    """What training left, as a quantized model."""
    move_exported_model_to_eval(prepared)
    _observe(prepared, calibration_inputs)
    let_biases_fit(prepared)
    with norm_patterns():
        return fold_quantized(convert_pt2e(prepared))


def _module_of(model: GraphModule | ExportedProgram) -> GraphModule:
    # Guards would be a submodule that exir's passes refuse.
    return model.module(check_guards=False) if isinstance(model, ExportedProgram) else model


def _observe(prepared: GraphModule, inputs: Iterable[tuple[Any, ...]]) -> int:
    count = 0
    with torch.no_grad():
        for count, sample in enumerate(inputs, 1):  # noqa: B007
            prepared(*sample)
    return count
