"""Quantizing what the command line names: with which samples, and by calibration or training."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from openneutron.commands.compile import compile_options
from openneutron.commands.progress import Steps
from openneutron.commands.samples import Sample, as_samples, load_samples, random_samples, remarks_on
from openneutron.commands.source import Source, check_static, load_function
from openneutron.diagnostics import fail
from openneutron.models.data import Dataset, Split, load_digits
from openneutron.models.folders import load_folder
from openneutron.models.pictures import DEFAULT as DEFAULT_PICTURES
from openneutron.models.pictures import STRETCH, Pictures
from openneutron.quantize.plan import DEFAULT

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from openneutron.quantize.refine import Refined

QAT_SAMPLES = 512
_RANDOM = 16  # random inputs only exercise the observers; more of them say nothing more


def quantize_source(
    args: argparse.Namespace, source: Source, steps: Steps
) -> tuple[Source, GraphModule | None, Refined | None]:
    """The source with inputs in the order asked for; the quantized module, and what was done for it."""
    from openneutron.pipeline import quantize_model
    from openneutron.quantize.export import export_model
    from openneutron.recipes.early import check_weights_fit

    assert source.module is not None
    if args.use_channels_last_dim_order:
        source = replace(source, example_inputs=channels_last(source.example_inputs))
        if isinstance(source.module, torch.export.ExportedProgram):
            fail(
                "ON104",
                "option --use_channels_last_dim_order",
                "an exported program has the order it was exported with",
                "Export it with inputs in torch.channels_last.",
            )
    if not args.quantize or (source.quantized and not args.quantize_remainder):
        return source, None, None
    assert source.module is not None
    check_static(export_model(source.module, source.example_inputs), args.model)
    if args.delegate and not args.quantize_remainder:
        given = args.recipe, args.per_channel, args.keep_float
        check_weights_fit(source.module, source.example_inputs, compile_options(args), *given)
    samples = calibration_samples(args, source, steps)
    if args.use_qat:
        return source, _train(args, source, samples, steps), None
    found: list[Refined] = []
    with steps.step(f"Quantizing with {len(samples)} samples", bar=True) as advance:
        quantized = quantize_model(
            source.module,
            samples,
            per_channel=args.per_channel,
            accuracy=args.accuracy or DEFAULT,
            watch=found.append,
            progress=advance,
            keep_float=args.keep_float,
            keep_float_budget=args.keep_float_budget,
            remainder=args.quantize_remainder,
            recipe=args.recipe,
            core=args.core,
            options=compile_options(args),
        )
    return source, quantized, found[0]


def _train(args: argparse.Namespace, source: Source, samples: list[Sample], steps: Steps) -> GraphModule:
    from openneutron.models.train import fine_tune
    from openneutron.pipeline import quantize_model

    assert source.module is not None
    data = dataset_of(source, _given(args), pictures_of(args))
    if data is None:
        fail(
            "ON606",
            args.model,
            "quantization-aware training needs labelled data, which only zoo classifiers have here",
            "Use openneutron.quantize_model(qat=True, train_fn=...) from Python.",
        )
    split = Split(_in_order(args, data.train.inputs), data.train.labels)
    with steps.step(f"Training with {QAT_SAMPLES} samples", bar=True) as advance:

        def train(prepared: GraphModule) -> None:
            from torchao.quantization.pt2e import move_exported_model_to_eval

            # Batches of one would ruin the statistics of batch norms; they stay as trained.
            move_exported_model_to_eval(prepared)
            fine_tune(prepared, split, QAT_SAMPLES, progress=advance)

        return quantize_model(
            source.module,
            samples,
            qat=True,
            train_fn=train,
            per_channel=args.per_channel,
            keep_float=args.keep_float,
            recipe=args.recipe,
            options=compile_options(args),
        )


def calibration_samples(args: argparse.Namespace, source: Source, steps: Steps) -> list[Sample]:
    """The user's samples, else the model's own, else the zoo's data, else random ones with a remark."""
    example, limit = source.example_inputs, args.calibration_samples
    if limit < 1:
        fail("ON104", "option --calibration-samples", f"must be positive (got {limit})")
    if args.calibration:
        samples = load_samples(Path(args.calibration), example, limit, pictures_of(args))
    elif source.calibration is not None and not args.use_random_dataset:
        samples = as_samples(source.calibration, limit)
    elif (
        not args.use_random_dataset
        and (data := dataset_of(source, _given(args), pictures_of(args))) is not None
    ):
        inputs = data.train.inputs[:limit]
        samples = [(inputs[i : i + 1],) for i in range(len(inputs))]
    else:
        samples = random_samples(example, min(limit, _RANDOM))
        if not args.use_random_dataset:
            steps.note(
                "calibrated on random inputs: sizes and times are right, accuracy is not. Use --calibration."
            )
    if args.calibration or source.calibration is not None:
        for remark in remarks_on(samples):
            steps.note(remark)
    return [channels_last(s) for s in samples] if args.use_channels_last_dim_order else samples


def pictures_of(args: argparse.Namespace) -> Pictures:
    """How the options say that pictures become inputs; as they always did, if they say nothing."""
    numbers = {name: getattr(args, name, None) for name in ("mean", "std", "scale")}
    given = {name: value for name, value in numbers.items() if value is not None}
    function = getattr(args, "preprocess", None)
    if function and (given or args.fit):
        name = next(iter(given), "fit")
        fail(
            "ON104", f"option --{name}", "has no effect: --preprocess makes the whole input", "Leave it out."
        )
    if 0.0 in (given.get("std") or ()):
        fail("ON104", "option --std", "must not be zero")
    found = Pictures(fit=getattr(args, "fit", None) or STRETCH)
    if given:
        found = replace(found, scale=given.get("scale", 1 / 255), mean=tuple(given.get("mean", (0.0,))),
                        std=tuple(given.get("std", (1.0,))))  # fmt: skip
    return replace(found, function=load_function(function)) if function else found


def dataset_of(source: Source, given: str | None, pictures: Pictures = DEFAULT_PICTURES) -> Dataset | None:
    """The labelled data the user gives, or those of a zoo classifier of small pictures."""
    if given is not None:
        shape = tuple(source.example_inputs[0].shape) if source.example_inputs else ()
        if given == "digits":
            return load_digits(shape)
        return load_folder(Path(given), shape, pictures=pictures)
    entry = source.entry
    if entry is None or len(entry.input_shapes) != 1:
        return None
    shape = entry.input_shapes[0]
    if entry.classes is None or shape[-1] > 96:  # all digits at 224 x 224 would take a gigabyte
        return None
    return load_digits(shape, entry.classes)


def _given(args: argparse.Namespace) -> str | None:
    """The data set named on the command line, by commands that have the option."""
    return getattr(args, "data", None)


def channels_last(sample: Sample) -> Sample:
    """4-D tensors with their channels last in memory."""
    return tuple(t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in sample)


def _in_order(args: argparse.Namespace, inputs: torch.Tensor) -> torch.Tensor:
    return channels_last((inputs,))[0] if args.use_channels_last_dim_order else inputs
