"""Report what runs where and why, what it costs, what fills the SRAM, and what to change.

FILE.pte: the report `openneutron compile` left beside it (FILE.report.json), if it belongs to that very
program; else what the program itself tells. MODEL (as `openneutron compile` takes it) is quantized and
compiled: the report then has what-if answers, each really compiled, and the error of every layer.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.commands.compiling.arguments import add_compile_options
from openneutron.commands.compiling.compile import (
    compile_source,
    load_model,
    option_text,
    write_rendered,
)
from openneutron.diagnostics import fail, printable
from openneutron.files import scratch_folder
from openneutron.inputs.model import Source
from openneutron.inputs.source import MODEL_HELP

if TYPE_CHECKING:
    from openneutron.commands.compiling.compile import Result
    from openneutron.commands.progress import Steps

NAME = "report"
HELP = "one page: delegation, timeline, memory map, errors, what-if"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="FILE.pte|MODEL", help=f"a program, or {MODEL_HELP}")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="report.html or report.json (default: <model>.html)"
    )
    parser.add_argument(
        "--litert", metavar="F.tflite", help="the graph NXP's delegate of FILE.pte was made of: an estimate"
    )
    parser.add_argument("--program", metavar="OUT.pte", help="keep the program compiled from MODEL")
    yes_no = argparse.BooleanOptionalAction
    parser.add_argument("--what-if", action=yes_no, default=True, help="compile variants of MODEL (default)")
    parser.add_argument("--errors", action=yes_no, default=True, help="compare MODEL's layers (default)")
    parser.add_argument(
        "--samples", type=int, default=2, metavar="N", help="compare on N samples (default 2)"
    )
    add_compile_options(parser, output=False)


def execute(args: argparse.Namespace) -> None:
    """Collect, render, write."""
    from openneutron.commands.progress import Steps
    from openneutron.report.render import ENDINGS

    steps = Steps()
    is_program = Path(args.model).suffix == ".pte"
    output = Path(args.output) if args.output else None
    if output is not None and not output.name.endswith(ENDINGS):
        fail("ON104", "option -o", f"'{output}' has no known report format", f"Known: {', '.join(ENDINGS)}")
    if is_program:
        data = _of_program(args)
    else:
        if args.litert:
            fail("ON104", "option --litert", "belongs to a .pte of NXP's converter", "Leave it out.")
        source = load_model(args, steps)
        data = _of_model(args, source, steps)
    try:
        for sentence in data["missing"]:
            steps.note(f"not in the report: {sentence}")
        written = write_rendered(output or Path(f"{data['name']}.html"), data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if not is_program:
            raise
        # What is beside a program may come from anywhere; a report made here has all it needs.
        place = f"{Path(args.model).stem}.report.json"
        fail("ON608", place, f"lacks something, or has another type: {error}", "Delete it, or compile again.")
    print(printable(str(written)))


def _of_program(args: argparse.Namespace) -> dict[str, Any]:
    from openneutron.report.sidecar import report_of_program

    unchanged = argparse.ArgumentParser()
    add_compile_options(unchanged, output=False)
    defaults = {"program": None, **vars(unchanged.parse_args([]))}
    given = [name for name, default in defaults.items() if getattr(args, name) != default]
    if given:
        fail(
            "ON104",
            f"option {option_text(args, given[0])}",
            f"has no effect on {args.model}: it is compiled",
            "Leave it out.",
        )
    data = report_of_program(Path(args.model))
    if args.litert:
        from openneutron.report.litert_estimate import litert_estimate

        litert_estimate(Path(args.litert)).add_to(data)
    return data


def _of_model(args: argparse.Namespace, source: Source, steps: Steps) -> dict[str, Any]:
    from openneutron.commands.measuring.compare import layer_errors
    from openneutron.report.data import report_data
    from openneutron.report.sidecar import write_sidecar

    missing: list[str] = []
    with scratch_folder() as folder:
        args.output = args.program or str(Path(folder) / f"{source.name}.pte")
        result = compile_source(args, source, steps)
        what_if = _explore(args, result, steps, missing) if args.what_if else []
        errors = layer_errors(args, source, steps, max(1, args.samples)) if args.errors else []
        if args.errors and not errors:
            missing.append("Errors of layers: there is no float model to compare with on the simulator.")
        data = report_data(
            result.program,
            name=source.name,
            path=args.program,
            errors=errors,
            what_if=what_if,
            missing=missing,
            accuracy=result.summary.get("accuracy"),
        )
    if args.program:
        write_sidecar(Path(args.program), data)
    return data


def _explore(args: argparse.Namespace, result: Result, steps: Steps, missing: list[str]) -> list[Any]:
    from functools import partial

    from openneutron.pipeline import compile_model
    from openneutron.report.what_if import delegation_pays, explore, left_out

    if result.module is None or args.converter == "eiq":
        return delegation_pays(result.program)
    again = partial(
        compile_model,
        recipe=args.recipe,
        core=args.core,
        int8_io=args.remove_quant_io_ops,
        delegate=args.delegate,
        verify=False,
    )
    with steps.step("What if", bar=True) as advance:
        answers = explore(result.program, result.module, result.example_inputs, again, advance)
    if count := left_out(result.program, result.module):
        missing.append(
            f"What-if of {count} more operators on the CPU: those with the most cycles were tried."
        )
    return answers
