"""Accuracy of a classifier: float, quantized and on the simulator, side by side.

Zoo classifiers are evaluated on the test split of scikit-learn's digits, which no training or calibration has
seen. Other data: --data FILE.npz with the arrays `inputs` and `labels`, a CIFAR-10 folder
(cifar-10-batches-py), a folder with MNIST's idx files, a folder of images with one subfolder per class, or
the word `digits` for scikit-learn's digits in the shape the model takes. Of a model that remembers, a sample
is a sequence (`inputs` has the time second), which begins anew and is judged by its last frame.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.commands.compiling.arguments import add_compile_options
from openneutron.commands.compiling.compile import Result, compile_source, load_model
from openneutron.commands.devices.board import add_board_arguments, check_board_arguments
from openneutron.diagnostics import fail
from openneutron.files import scratch_folder
from openneutron.inputs.model import Source
from openneutron.inputs.source import MODEL_HELP

if TYPE_CHECKING:
    import torch

    from openneutron.commands.progress import Steps
    from openneutron.models.data import Split

NAME = "eval"
HELP = "accuracy: float, quantized, simulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_compile_options(parser)
    parser.add_argument("--data", metavar="FILE|DIR", help="labelled data, see above")
    parser.add_argument("--samples", type=int, metavar="N", help="use the first N samples only")
    parser.add_argument("--threads", type=int, metavar="N", help="default: OPENNEUTRON_THREADS, else 1")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_board_arguments(parser)


def execute(args: argparse.Namespace) -> None:
    """Compile, run every sample three ways, print."""
    from openneutron.commands.progress import Steps

    steps = Steps()
    check_board_arguments(args)
    if args.remove_quant_io_ops:
        fail("ON104", "option -r", "eval feeds the inputs as they are in the data", "Leave it out.")
    source = load_model(args, steps)
    with scratch_folder() as folder:
        keep = args.output is not None
        args.output = args.output or str(Path(folder) / "model.pte")
        result, figures = evaluate_source(args, source, steps)
    data = {**result.summary, "program": str(result.output) if keep else None}
    count = figures["samples"]
    if args.json:
        print(json.dumps({**figures, "summary": data}, indent=2))
        return
    from openneutron.report.terminal import make_console, print_accuracy, print_methods, print_summary

    console = make_console()
    print_summary(console, data)
    console.print()
    if "accuracy" in data:
        print_methods(console, data["accuracy"])
    remarks = {
        "float": f"{count} samples, PyTorch",
        "quantized": "int8, PyTorch",
        "simulator": "int8, the .pte in ExecuTorch's runtime on the simulator",
        "board": f"the .pte on {figures.get('board_firmware')}",
    }
    print_accuracy(console, [(name, figures[name], remarks[name]) for name in remarks if name in figures])
    if measured := figures.get("board_time"):
        what = f"{measured['median']:,.0f} {measured['unit']}, median of {measured['inferences']}"
        console.print(f"on the board: {what}; estimated for the chip: {data['time_us_estimated']:,.1f} us")
    if "agree" in figures:
        console.print(f"simulator and quantized PyTorch agree on {figures['agree']} of {count} samples")
    if keep:
        console.print(f"program: {result.output}")


def evaluate_source(args: argparse.Namespace, source: Source, steps: Steps) -> tuple[Result, dict[str, Any]]:
    """Compile a model and run every sample three ways; what was compiled, and the figures."""
    split = _split(args, source)
    result = compile_source(args, source, steps)
    scores = _all_scores(args, source, result, split, steps)
    measured = _on_board(args, result, split, scores, steps) if getattr(args, "board", None) else {}
    return result, _figures(scores, split) | measured


def _on_board(
    args: argparse.Namespace, result: Result, split: Split, scores: dict[str, torch.Tensor], steps: Steps
) -> dict[str, Any]:
    """Run every sample on the board too; its scores, and what it took."""
    import numpy as np
    import torch

    from openneutron.commands.devices.board import measure_file

    inputs = [[split.inputs[i : i + 1].numpy()] for i in range(len(split))]
    _, _, run = measure_file(args, Path(result.output), inputs, steps)
    rows = [torch.from_numpy(np.array(outputs[0])).flatten() for outputs in run.outputs]
    scores["board"] = torch.stack(rows)
    return {"board_firmware": run.firmware.name, "board_time": run.statistics()}


def _split(args: argparse.Namespace, source: Source) -> Split:
    from openneutron.commands.compiling.quantizing import dataset_of, preprocessing_of
    from openneutron.models.data import Split

    data = dataset_of(source, args.data, preprocessing_of(args))
    if data is None:
        fail(
            "ON606",
            args.model,
            "there is no labelled data for this model",
            "--data FILE.npz with the arrays `inputs` (samples first) and `labels`, or a folder.",
        )
    count = len(data.test) if args.samples is None else max(1, args.samples)
    return Split(data.test.inputs[:count], data.test.labels[:count])


def _all_scores(
    args: argparse.Namespace, source: Source, result: Result, split: Split, steps: Steps
) -> dict[str, torch.Tensor]:
    import torch

    from openneutron.commands.compiling.quantizing import channels_last, frames_of_sample
    from openneutron.quantize.stateful import frames_of, one_sequence
    from openneutron.run.program import load_program
    from openneutron.tensors import results

    def frames(i: int) -> list[tuple[torch.Tensor, ...]]:
        sequence = frames_of(frames_of_sample(split.inputs[i], source.example_inputs or (split.inputs,)))
        return [channels_last(f) if args.use_channels_last_dim_order else f for f in sequence]

    scores: dict[str, torch.Tensor] = {}
    models: list[tuple[str, Any]] = []
    if source.module is not None:
        is_module = isinstance(source.module, torch.nn.Module)
        models.append(("float", source.module if is_module else source.module.module()))  # type: ignore[operator]
    if result.quantized is not None:
        models.append(("quantized", result.quantized))
    for name, model in models:
        with steps.step(f"Evaluating {name}", bar=True) as advance, torch.no_grad():
            rows = []
            for i in range(len(split)):
                with one_sequence(model):  # a sample is a sequence of its own
                    for frame in frames(i):
                        frame_scores = results(model(*frame))[0]
                    rows.append(frame_scores.flatten().clone())
                advance((i + 1) / len(split))
        scores[name] = torch.stack(rows)
    if args.converter == "eiq" and getattr(args, "board", None):
        return scores  # the host cannot run NXP's microcode, the board can
    program = load_program(result.output, threads=args.threads)
    with steps.step("Running the program on the simulator", bar=True) as advance:
        rows = []
        for i in range(len(split)):
            program.reset()
            for frame in frames(i):
                outputs = program.run(frame)
            rows.append(torch.from_numpy(outputs[0].copy()).flatten())
            advance((i + 1) / len(split))
    scores["simulator"] = torch.stack(rows)
    return scores


def _figures(scores: dict[str, torch.Tensor], split: Split) -> dict[str, Any]:
    guesses = {name: values.argmax(1) for name, values in scores.items()}
    figures: dict[str, Any] = {"samples": len(split)}
    for name, guess in guesses.items():
        figures[name] = round(float((guess == split.labels).double().mean()), 6)
    if {"quantized", "simulator"} <= guesses.keys():
        figures["agree"] = int((guesses["quantized"] == guesses["simulator"]).sum())
        difference = (scores["quantized"] - scores["simulator"]).abs().max()
        figures["largest_difference"] = float(difference)
    return figures
