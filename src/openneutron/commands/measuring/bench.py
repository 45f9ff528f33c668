"""The figures to choose by, measured here: memory, estimated cycles, time on the host, compile time by stage.

Without MODEL the zoo is measured (with --quick three small networks). Scratch memory and cycles are those of
the delegates, compiled for performance and for size (compile --optimise). Host times are one inference on one
thread beside LiteRT with XNNPACK, its default, and with its reference kernels, on the same graph in the same
process; "exact" says that the outputs equal the reference's bit for bit. Compile time is split by stage;
"own" is everything but torch.export and torchao. All times are CPU time, so that other work does not count.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from openneutron.inputs.model import Source
from openneutron.inputs.source import MODEL_HELP, add_model_options, load_source
from openneutron.options import CompileOptions
from openneutron.quantize.plan import DEFAULT, find_plan
from openneutron.quantize.plan import HELP as ACCURACY
from openneutron.targets.table import DEFAULT_TARGET, TARGETS

if TYPE_CHECKING:
    from openneutron.bench.figures import Figures

NAME = "bench"
HELP = "memory, cycles, host time and compile time of models"
QUICK = ("cifarnet", "resnet8", "dscnn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("models", metavar="MODEL", nargs="*", help=MODEL_HELP)
    add_model_options(parser)
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--accuracy", metavar="PLAN", default=DEFAULT, help=f"when quantizing ({ACCURACY})")
    parser.add_argument("--quick", action="store_true", help="fewer runs; without MODEL, three networks")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def execute(args: argparse.Namespace) -> int:
    """Measure one model after the other, print the table."""
    from openneutron.commands.progress import Steps
    from openneutron.models.zoo import ZOO

    options, steps = CompileOptions(config=args.target), Steps()
    find_plan(args.accuracy)
    names = args.models or (QUICK if args.quick else tuple(ZOO))
    rows = []
    for name in names:
        with steps.step(f"Measuring {name}"):
            source = load_source(name, args.shape, args.fix, args.state)
            rows.append(_measure(source, options, args.quick, args.accuracy))
    if args.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        from openneutron.report.terminal import make_console

        _print(make_console(), rows)
    return 0 if all(row.host is None or row.host.exact is not False for row in rows) else 1


def _measure(source: Source, options: CompileOptions, quick: bool, accuracy: str) -> Figures:
    from openneutron.bench.figures import measure_litert, measure_model

    if source.litert is not None:
        return measure_litert(source.name, source.litert, options, quick)
    calibration = None if source.quantized else source.calibration or [source.example_inputs]
    return measure_model(
        source.name, source.module, source.example_inputs, calibration, options, quick, accuracy
    )


def _print(console: object, rows: list[Figures]) -> None:
    from rich.console import Console
    from rich.table import Table

    assert isinstance(console, Console)
    table = Table(box=None, pad_edge=False)
    titles = ("model", "memory", "size mode", "cycles (est.)", "size mode", "ms", "XNNPACK", "reference",
              "exact", "compile s", "own")  # fmt: skip
    for title in titles:
        table.add_column(title, justify="left" if title == "model" else "right", no_wrap=True)
    for row in rows:
        fast, small, host = row.performance, row.size, row.host
        more = small.cycles_estimated / fast.cycles_estimated - 1 if fast.cycles_estimated else 0.0
        times = ("-",) * 4 if host is None else (
            f"{host.simulator_ms:.3f}", f"{host.xnnpack_ms:.3f}",
            "-" if host.reference_ms is None else f"{host.reference_ms:.2f}",
            {True: "yes", False: "NO", None: "-"}[host.exact])  # fmt: skip
        compile_s = f"{sum(row.compile_seconds.values()):.1f}"
        table.add_row(
            row.model, f"{fast.reserve_bytes:,}", f"{small.reserve_bytes:,}", f"{fast.cycles_estimated:,}",
            f"{more:+.1%}", *times, compile_s, f"{row.own_seconds:.1f}",
        )  # fmt: skip
    console.print(table)
    console.print()
    stages = list(dict.fromkeys(stage for row in rows for stage in row.compile_seconds))
    table = Table(box=None, pad_edge=False)
    table.add_column("compile time, CPU seconds", no_wrap=True)
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.model, *(f"{row.compile_seconds.get(stage, 0.0):.2f}" for stage in stages))
    console.print(table)
