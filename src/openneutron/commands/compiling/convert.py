"""Write a whole model as one LiteRT file (.tflite), which any LiteRT runtime runs.

The file is int8 unless --float is given. Operators the NPU would not take are in it too, as ordinary LiteRT
operators. `openneutron compile` takes an int8 file back.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from openneutron.commands.compiling.arguments import add_weight_options
from openneutron.commands.compiling.compile import given_options, output_path
from openneutron.diagnostics import fail, printable
from openneutron.inputs.source import MODEL_HELP, add_model_options, load_source
from openneutron.quantize.plan import DEFAULT
from openneutron.quantize.plan import HELP as ACCURACY

NAME = "convert"
HELP = "write the whole model as a LiteRT file"
_QUANTIZING = ("per_channel", "accuracy", "keep_float", "calibration", "use_random_dataset")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
    add_model_options(parser)
    add("-o", "--output", metavar="OUT.tflite", help="the file to write (default: <model>.tflite)")
    add("--float", action="store_true", help="leave the model in float")
    add(
        "--channels-last-io", action="store_true", help="4-D inputs and outputs are N, H, W, C: no transposes"
    )
    add_weight_options(parser)
    add("--accuracy", metavar="PLAN", help=f"what is done when quantizing ({ACCURACY})")
    add("--keep_float", "--keep-float", nargs="+", default=(), metavar="LAYER", help="layers left in float")
    add("--calibration", metavar="DIR|FILE", help="calibration inputs, as for `openneutron compile`")
    add("--calibration-samples", type=int, default=128, metavar="N", help="use at most N (default 128)")
    add("--sequence", action="store_true", help="the samples of a model that remembers follow one another")
    add(
        "--use_random_dataset", "--use-random-dataset", action="store_true", help="calibrate on random inputs"
    )
    add("--json", action="store_true", help="print the summary as one JSON object")
    parser.set_defaults(use_channels_last_dim_order=False)


def execute(args: argparse.Namespace) -> None:
    """Quantize, convert, write."""
    from openneutron.commands.progress import Steps

    steps = Steps()
    with steps.step(f"Loading {args.model}"):
        source = load_source(args.model, args.shape, args.fix, args.state)
    if source.litert is not None:
        fail("ON104", args.model, "is a LiteRT model already", "Give a PyTorch, .pt2 or .onnx model.")
    idle = given_options(args, _QUANTIZING) if args.float or source.quantized else []
    if idle:
        why = "--float leaves it in float" if args.float else "it is quantized already"
        fail("ON104", f"option {idle[0]}", f"has no effect on {args.model}: {why}", "Leave it out.")
    if args.float and source.quantized:
        fail("ON104", "option --float", f"{args.model} is quantized already", "Leave it out.")
    output = output_path(args.output, source.name, ".tflite")

    from openneutron.commands.compiling.quantizing import calibration_samples
    from openneutron.files import write_atomically
    from openneutron.pipeline import convert_model

    assert source.module is not None
    calibration = None
    if not args.float and not source.quantized:
        calibration = calibration_samples(args, source, steps)
    with steps.step("Converting"):
        data = convert_model(
            source.module,
            source.example_inputs,
            calibration=calibration,
            per_channel=args.per_channel,
            accuracy=args.accuracy or DEFAULT,
            keep_float=args.keep_float,
            channels_last_io=args.channels_last_io,
        )
    write_atomically(output, data)
    summary = summarize(output, data)
    for name in summary["wide_softmaxes"]:
        steps.note(
            f"ON306: {name}: LiteRT's reference kernels (BUILTIN_REF) end the process where the inputs of "
            "this softmax are nearly equal; its default kernels do not"
        )
    print(json.dumps(summary, indent=2) if args.json else printable(_text(summary)))


def summarize(path: Path, data: bytes) -> dict[str, Any]:
    """What is in a LiteRT file, as plain data."""
    from openneutron.litert.file import read
    from openneutron.litert.reference import wide_softmaxes
    from openneutron.lower.layout import transposed_bytes

    graph = read(data, str(path))
    kinds: dict[str, int] = {}
    for op in graph.ops:
        kinds[op.kind.name] = kinds.get(op.kind.name, 0) + 1

    def side(tensors: list[Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": t.name,
                "shape": list(t.shape),
                "dtype": t.dtype,
                "scale": t.quant.scale[0] if t.quant else None,
                "zero_point": t.quant.zero_point[0] if t.quant else None,
            }
            for t in tensors
        ]

    return {
        "file": str(path),
        "bytes": len(data),
        "inputs": side(graph.given),
        "outputs": side(graph.returned),
        "operators": dict(sorted(kinds.items())),
        "float_operators": sum(any(t.dtype == "float32" for t in op.outputs) for op in graph.ops),
        "transposed_bytes": transposed_bytes(graph),
        "wide_softmaxes": [op.output.name for op in wide_softmaxes(graph)],
    }


def _text(summary: dict[str, Any]) -> str:
    lines = [f"{summary['file']}  {summary['bytes']:,} B"]
    for side in ("inputs", "outputs"):
        for port in summary[side]:
            quant = "" if port["scale"] is None else f" {port['scale']:.6g}@{port['zero_point']}"
            lines.append(f"{side[:-1]:<10} {port['name']}: {port['dtype']}{port['shape']}{quant}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in summary["operators"].items())
    lines.append(f"operators  {kinds}")
    lines.append(f"in float   {summary['float_operators']}")
    lines.append(f"transposed {summary['transposed_bytes']:,} B")
    return "\n".join(lines)
