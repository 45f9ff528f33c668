"""Compile a model to an ExecuTorch program for the Neutron NPU, and print a summary.

MODEL is one of
  a zoo name              cifarnet (cifar10), mobilenet_v2 (mobilenetv2), resnet8, dscnn, ...
  FILE.py:CALLABLE        a function that returns (module, example_inputs[, calibration_inputs])
  MODEL.pt2               what torch.export.save wrote, quantized or not
  MODEL.onnx              an ONNX model, quantized (QDQ, QOperator) or not
  MODEL.tflite            a static int8 LiteRT model
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.commands.compiling.arguments import add_compile_options
from openneutron.diagnostics import fail
from openneutron.files import check_writable
from openneutron.inputs.model import Source
from openneutron.inputs.source import MODEL_HELP, load_source
from openneutron.options import CompileOptions, default_converter
from openneutron.recipes.recipe import NEUTRON, find_recipe

if TYPE_CHECKING:
    from openneutron.package.program import CompiledProgram

NAME = "compile"
HELP = "compile a model to a .pte and print a summary"
REPORTS = (".html", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_compile_options(parser)
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.add_argument("--report", metavar="FILE", help="write the report: .html, .json or .nodedata.json")
    parser.add_argument(
        "--etrecord",
        metavar="FILE",
        help="write ExecuTorch's ETRecord, which names the nodes of a profile (default with --use_profiling: "
        "OUT.etrecord)",
    )
    parser.add_argument(
        "--sidecar",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write OUT.report.json beside the program, which `openneutron report` reads (default)",
    )


def execute(args: argparse.Namespace) -> None:
    """Compile, write, print."""
    from openneutron.commands.progress import Steps

    steps = Steps()
    if args.report and Path(args.report).suffix not in REPORTS:
        fail(
            "ON104",
            "option --report",
            f"'{args.report}' has no known report format",
            f"Known: {', '.join(REPORTS)}",
        )
    result = compile_source(args, load_model(args, steps), steps)
    if args.report or args.sidecar:
        write_reports(Path(args.report) if args.report else None, result, args.sidecar)
    if args.sidecar and args.converter == "eiq" and result.module is not None:
        from openneutron.accuracy.reference import write_reference

        # Only a board can run it: what it should compute is kept for `run --board`.
        write_reference(result.output, result.program.pte, result.module, result.example_inputs)
    if args.json:
        print(json.dumps(result.summary, indent=2))
    else:
        from openneutron.report.terminal import make_console, print_summary

        print_summary(make_console(), result.summary)


def load_model(args: argparse.Namespace, steps: Any) -> Source:
    """The model; what can be wrong with the options is found first, as loading takes a while."""
    compile_options(args)
    with steps.step(f"Loading {args.model}"):
        return load_source(args.model, args.shape, args.fix, args.state)


@dataclass(frozen=True)
class Result:
    """What a compile left behind."""

    output: Path
    program: CompiledProgram
    quantized: Any  # the quantized module, if quantizing was part of the work
    summary: dict[str, Any]
    module: Any = None  # what was compiled, and for which inputs; None for a LiteRT model
    example_inputs: tuple[Any, ...] = ()


def compile_source(args: argparse.Namespace, source: Source, steps: Any) -> Result:
    """Quantize and compile a model as the options say, and write the program."""
    from openneutron.commands.compiling.quantizing import quantize_source
    from openneutron.pipeline import compile_litert, compile_model
    from openneutron.report.summary import summarize

    options = compile_options(args)
    _refuse_idle(args, source)
    output = output_path(args.output, source.name)
    if args.so_library:
        _load_library(args.so_library)
    quantized = module = accuracy = None
    if source.litert is not None:
        with steps.step("Compiling"):
            program = compile_litert(source.litert, options, args.model)
    else:
        source, quantized, accuracy = quantize_source(args, source, steps)
        module = source.module if quantized is None else quantized
        assert module is not None
        with steps.step("Compiling"):
            program = compile_model(
                module,
                source.example_inputs,
                options=options,
                recipe=args.recipe,
                core=args.core,
                int8_io=args.remove_quant_io_ops,
                delegate=args.delegate,
                etrecord=getattr(args, "etrecord", None) is not None,
                verify=args.verify,
            )
    summary = summarize(program, output, accuracy)
    program.save(output)
    if record := etrecord_path(args, output, source):
        program.save_etrecord(record)
        summary["etrecord"] = str(record)
    return Result(output, program, quantized, summary, module, source.example_inputs)


def compile_options(args: argparse.Namespace) -> CompileOptions:
    """The options as values, all checked."""
    return CompileOptions(
        config=args.target,
        extra_flags=args.extra_flags,
        intermediates_dir=args.intermediates,
        operators_not_to_delegate=tuple(args.operators_not_to_delegate),
        fetch_constants_to_sram=args.fetch_constants_to_sram,
        dump_kernel_selection_code=args.dump_kernel_selection_code,
        use_profiling=args.use_profiling,
        converter=args.converter or default_converter(),
        sram_bytes=args.sram,
        optimise=args.optimise,
        cycle_budget=args.cycle_budget,
        keep_inputs=args.keep_inputs or None,
    )


# What has no effect on a model that is quantized already, and on one that is no PyTorch model at all.
_QUANTIZING = (
    "mean",
    "std",
    "scale",
    "fit",
    "preprocess",
    "use_qat",
    "per_channel",
    "accuracy",
    "keep_float",
    "keep_float_budget",
    "calibration",
    "use_random_dataset",
)
_NOT_ON_REMAINDERS = ("use_qat", "keep_float", "keep_float_budget")
_FROM_TORCH = ("remove_quant_io_ops", "use_channels_last_dim_order", "operators_not_to_delegate")


def _refuse_idle(args: argparse.Namespace, source: Source) -> None:
    """An option that would silently do nothing is an error."""
    if args.quantize_remainder and (not source.quantized or not args.quantize):
        why = "it is compiled as it is" if source.litert is not None else "none of it is quantized"
        why = why if args.quantize else "--no-quantize leaves it in float"
        fail("ON104", "option --quantize-remainder", f"has no effect on {args.model}: {why}", "Leave it out.")
    idle: tuple[str, ...] = ()
    if source.litert is not None:
        idle = (*_QUANTIZING, *_FROM_TORCH)
    elif source.quantized:
        idle = _NOT_ON_REMAINDERS if args.quantize_remainder else _QUANTIZING
    given = given_options(args, idle)
    if source.litert is not None and not args.delegate:
        given.append("--no-delegate")
    if source.litert is not None and getattr(args, "etrecord", None):
        given.append("--etrecord")
    recipe = find_recipe(args.recipe)
    if source.litert is not None and recipe is not NEUTRON:
        given.append("--recipe")
    if given:
        kind = (
            "a LiteRT model is compiled as it is" if source.litert is not None else "it is quantized already"
        )
        fail("ON104", f"option {given[0]}", f"has no effect on {args.model}: {kind}", "Leave it out.")
    if not recipe.cortex_m and args.core:
        fail("ON104", "option --core", f"has no effect on the recipe {recipe.name}", "Leave it out.")
    if args.core:
        from openneutron.cortex_m.core import find_core

        find_core(args.core)  # found unknown now rather than after minutes of work
    if not recipe.neutron and (args.operators_not_to_delegate or not args.delegate):
        option = "--operators_not_to_delegate" if args.operators_not_to_delegate else "--no-delegate"
        fail("ON104", f"option {option}", "has no effect: the recipe uses no NPU", "Leave it out.")


def given_options(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those of these options that the command line has, as they are written there."""
    return [
        option_text(args, n)
        for n in names
        if getattr(args, n) or (n == "per_channel" and args.per_channel is False)
    ]


def option_text(args: argparse.Namespace, name: str) -> str:
    """An option as it is written on the command line."""
    is_opposite = name == "per_channel" and args.per_channel is False
    return "--per-tensor" if is_opposite else f"--{name.replace('_', '-')}"


def output_path(given: str | None, name: str, ending: str = ".pte") -> Path:
    """Where the program goes; found unwritable now rather than after minutes of work."""
    path = Path(given) if given else Path(f"{name}{ending}")
    if path.is_dir():
        path = path / f"{name}{ending}"
    check_writable(path)
    return path


def etrecord_path(args: argparse.Namespace, output: Path, source: Source) -> Path | None:
    """Where the ETRecord goes, if there is to be one."""
    given = getattr(args, "etrecord", None)  # commands that compile on the way do not have the option
    if given:
        return Path(given)
    return output.with_suffix(".etrecord") if args.use_profiling and source.litert is None else None


def write_reports(path: Path | None, result: Result, sidecar: bool = False) -> None:
    """The report where the user wants it, and beside the program."""
    from openneutron.report.data import report_data
    from openneutron.report.sidecar import write_sidecar

    data = report_data(result.program, path=result.output, accuracy=result.summary.get("accuracy"))
    if path is not None:
        write_rendered(path, data)
    if sidecar:
        write_sidecar(result.output, data, _tensors(result.example_inputs))


def _tensors(inputs: tuple[Any, ...]) -> list[Any]:
    """The arrays of inputs that are tensors only; nothing of others."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(inputs)
    all_tensors = all(isinstance(leaf, torch.Tensor) and leaf.dtype is not torch.bfloat16 for leaf in leaves)
    return [leaf.detach().cpu().numpy() for leaf in leaves] if all_tensors else []


def write_rendered(path: Path, data: dict[str, Any]) -> Path:
    """Write a report as a web page, as JSON or as node data for Model Explorer."""
    from openneutron.files import write_atomically
    from openneutron.report.render import render_report

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render_report(path, data).encode())
    return path


def _load_library(path: str) -> None:
    import torch

    try:
        torch.ops.load_library(path)
    except OSError as error:
        fail("ON602", path, f"cannot be loaded: {error}", "Give a library of ExecuTorch or torch operators.")
