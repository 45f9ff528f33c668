"""Quantizing what the command line names: with which samples, and by calibration or training."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from openneutron.commands.compiling.compile import compile_options
from openneutron.commands.progress import Steps
from openneutron.diagnostics import fail
from openneutron.inputs.model import Source, check_static
from openneutron.inputs.samples import (
    Sample,
    as_samples,
    load_samples,
    load_sequences,
    random_samples,
    remarks_on,
)
from openneutron.inputs.source import load_function
from openneutron.models.data import Dataset, Split, as_frames, load_digits, load_stored
from openneutron.models.folders import load_folder
from openneutron.models.preprocessing import DEFAULT as DEFAULT_PREPROCESSING
from openneutron.models.preprocessing import STRETCH, Preprocessing
from openneutron.quantize.plan import DEFAULT
from openneutron.quantize.stateful import frames_of, is_stateful

if TYPE_CHECKING:
    from torch.export import ExportedProgram
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
    exported = export_model(source.module, source.example_inputs)
    check_static(exported, args.model)
    if not args.state and not is_stateful(exported):
        _note_states(exported, source, steps)
    if args.delegate and not args.quantize_remainder:
        given = args.recipe, args.per_channel, args.keep_float
        check_weights_fit(source.module, source.example_inputs, compile_options(args), *given)
    samples = calibration_samples(args, source, steps, exported)
    if args.use_qat:
        return source, _train(args, source, samples, steps), None
    refined: list[Refined] = []
    with steps.step(f"Quantizing with {len(samples)} samples", bar=True) as advance:
        quantized = quantize_model(
            source.module if args.quantize_remainder else exported,
            samples,
            per_channel=args.per_channel,
            accuracy=args.accuracy or DEFAULT,
            watch=refined.append,
            progress=advance,
            keep_float=args.keep_float,
            keep_float_budget=args.keep_float_budget,
            remainder=args.quantize_remainder,
            recipe=args.recipe,
            core=args.core,
            options=compile_options(args),
        )
    return source, quantized, refined[0]


def _note_states(exported: ExportedProgram, source: Source, steps: Steps) -> None:
    """Say which outputs look like what the next run takes."""
    from openneutron.quantize.carried import ports_of, suggested

    pairs = suggested(*ports_of(exported, getattr(source.module, "port_names", None)))
    if pairs:
        options = " ".join(f"--state {out}={into}" for out, into in pairs.items())
        steps.note(f"if the model passes its state from run to run, let the program keep it: {options}")


def _train(args: argparse.Namespace, source: Source, samples: list[Sample], steps: Steps) -> GraphModule:
    from openneutron.models.train import fine_tune
    from openneutron.pipeline import quantize_model

    assert source.module is not None
    data = dataset_of(source, _given(args), preprocessing_of(args))
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


def calibration_samples(
    args: argparse.Namespace, source: Source, steps: Steps, exported: ExportedProgram | None = None
) -> list[Sample]:
    """The user's samples, else the model's own, else the zoo's data, else random ones with a remark.

    `exported` is the model, if that was done already.
    """
    example, limit = source.example_inputs, args.calibration_samples
    if limit < 1:
        fail("ON104", "option --calibration-samples", f"must be positive (got {limit})")
    stateful = _remembers(source) if exported is None else is_stateful(exported)
    if getattr(args, "sequence", False) and not stateful:
        fail("ON104", "option --sequence", "the model remembers nothing: its samples have no order",
             "Leave it out.")  # fmt: skip
    if args.calibration and stateful:
        where, preprocessing = Path(args.calibration), preprocessing_of(args)
        sequences = load_sequences(where, example, limit, preprocessing, getattr(args, "sequence", False))
        frames = [frame for sequence in sequences for frame in sequence]
        for remark in remarks_on(frames):
            steps.note(remark)
        last = args.use_channels_last_dim_order
        return [[channels_last(f) if last else f for f in sequence] for sequence in sequences]  # type: ignore[misc]
    if args.calibration:
        samples = load_samples(Path(args.calibration), example, limit, preprocessing_of(args))
    elif source.calibration is not None and not args.use_random_dataset:
        if stateful:
            return [frames_of(sample) for _, sample in zip(range(limit), source.calibration, strict=False)]  # type: ignore[misc]
        samples = as_samples(source.calibration, limit)
    elif (
        not args.use_random_dataset
        and (data := dataset_of(source, _given(args), preprocessing_of(args))) is not None
    ):
        samples = [frames_of_sample(sample, example) for sample in data.train.inputs[:limit]]  # type: ignore[misc]
    else:
        samples = random_samples(example, min(limit, _RANDOM))
        if stateful:  # two that follow one another say more about a state than any number of first frames
            samples = [samples[:8], samples[8:]]  # type: ignore[list-item]
        if not args.use_random_dataset:
            steps.note(
                "calibrated on random inputs: sizes and times are right, accuracy is not. Use --calibration."
            )
    if args.calibration or source.calibration is not None:
        for remark in remarks_on(samples):
            steps.note(remark)
    return [channels_last(s) for s in samples] if args.use_channels_last_dim_order else samples


def _remembers(source: Source) -> bool:
    """Whether a model writes to its buffers."""
    from openneutron.quantize.export import export_model

    module = source.module
    if module is None or (isinstance(module, torch.nn.Module) and not any(True for _ in module.buffers())):
        return False
    return is_stateful(export_model(module, source.example_inputs))


def preprocessing_of(args: argparse.Namespace) -> Preprocessing:
    """How the options say that images become inputs; as they always did, if they say nothing."""
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
    chosen = Preprocessing(fit=getattr(args, "fit", None) or STRETCH)
    if given:
        chosen = replace(chosen, scale=given.get("scale", 1 / 255), mean=tuple(given.get("mean", (0.0,))),
                        std=tuple(given.get("std", (1.0,))))  # fmt: skip
    return replace(chosen, function=load_function(function)) if function else chosen


def dataset_of(
    source: Source, given: str | None, preprocessing: Preprocessing = DEFAULT_PREPROCESSING
) -> Dataset | None:
    """The labelled data the user gives, or those of a zoo classifier of small images."""
    if given is not None:
        shape = tuple(source.example_inputs[0].shape) if source.example_inputs else ()
        if given == "digits":
            return load_digits(shape)
        return load_folder(Path(given), shape, preprocessing=preprocessing)
    entry = source.entry
    if entry is None or len(entry.input_shapes) != 1:
        return None
    shape = entry.input_shapes[0]
    if entry.data == "speech":
        return as_frames(load_stored("speech_samples"), shape)
    if entry.classes is None or shape[-1] > 96:  # all digits at 224 x 224 would take a gigabyte
        return None
    return load_digits(shape, entry.classes)


def frames_of_sample(sample: torch.Tensor, example: Sample) -> Sample | list[Sample]:
    """A sample of a data set as a model takes it: alone, or the frames of a sequence."""
    if sample.shape[1:] == example[0].shape:
        return [(frame,) for frame in sample]
    return (sample[None],)


def _given(args: argparse.Namespace) -> str | None:
    """The data set named on the command line, by commands that have the option."""
    return getattr(args, "data", None)


def channels_last(sample: Sample) -> Sample:
    """4-D tensors with their channels last in memory."""
    return tuple(t.to(memory_format=torch.channels_last) if t.ndim == 4 else t for t in sample)


def _in_order(args: argparse.Namespace, inputs: torch.Tensor) -> torch.Tensor:
    return channels_last((inputs,))[0] if args.use_channels_last_dim_order else inputs
