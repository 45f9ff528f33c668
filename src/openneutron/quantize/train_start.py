"""Where training with quantization starts: at the equalized model, as calibration does.

The factors are found on the model as it is calibrated, with batch norms folded. In the one that is trained
they are not: there a channel is scaled in its batch norm, which gives the same in training and in use.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch.fx import GraphModule, Node

from openneutron import ops
from openneutron.fx import bind_args, op_name
from openneutron.ops.spec import Weighted
from openneutron.quantize.accuracy_methods.judged import MethodResult
from openneutron.quantize.channel_scaling.choose import equalized, observe
from openneutron.quantize.channel_scaling.cross_layer import along
from openneutron.quantize.plan import EQUALIZE
from openneutron.quantize.prepared_model.model import Layer, Sample, layers_of, set_value, value_of
from openneutron.quantize.prepared_model.quality import Quality, float_run, quality, quantized_run
from openneutron.quantize.refine import kept_back

_ENOUGH = 8  # samples to keep some back


def equalize_to_train(
    training: GraphModule, prepared: GraphModule, samples: Sequence[Sample]
) -> MethodResult:
    """Scale the channels of a model to be trained, in place, where calibration of `prepared` gains by it."""
    names = {str(layer.weight.target): layer for layer in layers_of(prepared)}
    start = time.monotonic()
    fitted, held = kept_back(samples) if len(samples) >= _ENOUGH else (list(samples), list(samples))
    observe(prepared, fitted)
    exact = float_run(prepared, held)

    def judge(model: GraphModule) -> Quality:
        return quality(exact, quantized_run(model, held))

    before = judge(prepared)
    trial, done, text = equalized(prepared, fitted, judge, thorough=False, groups=False)
    after = before if trial is None else judge(trial)
    result = MethodResult(
        EQUALIZE, text, before.sqnr_db, after.sqnr_db, trial is not None, time.monotonic() - start
    )
    if not result.kept:
        return result
    found = {}
    for node in training.graph.nodes:
        spec = ops.find(op_name(node)) if node.op == "call_function" else None
        if spec is not None and isinstance(spec.quantize, Weighted):
            found[str(bind_args(node)[spec.quantize.weight].target)] = node
    if not all(name in found and _is_scalable(found[name]) for name in done.factors):
        text = "the layers are others in training"
        return MethodResult(result.method, text, result.before_db, result.before_db, False, result.seconds)
    for name, (made, read) in done.factors.items():
        _scale(training, found[name], names[name], made, read)
    return result


def _norm_after(node: Node) -> Node | None:
    users = list(node.users)
    found = len(users) == 1 and op_name(users[0]) == "aten.batch_norm.default" and users[0].args[0] is node
    return users[0] if found else None


def _is_scalable(node: Node) -> bool:
    norm = _norm_after(node)
    return norm is None or all(isinstance(bind_args(norm)[name], Node) for name in ("weight", "bias"))


def _scale(
    training: GraphModule, node: Node, layer: Layer, made: np.ndarray | None, read: np.ndarray | None
) -> None:
    args, norm = bind_args(node), _norm_after(node)
    weight = value_of(training, args["weight"])
    if read is not None:
        weight = weight * along(layer, weight, read, output=False)
    if made is not None:
        where = args if norm is None else bind_args(norm)
        if norm is None:
            weight = weight / along(layer, weight, made, output=True)
        for name in ("bias",) if norm is None else ("weight", "bias"):
            if isinstance(where[name], Node):
                old = value_of(training, where[name])
                scale = torch.from_numpy(np.ascontiguousarray(made)).to(old.dtype)
                set_value(training, where[name], old / scale.reshape(old.shape))
    set_value(training, args["weight"], weight)
