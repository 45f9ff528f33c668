"""Compare two compiles: figures side by side, nodes that moved, cycles of each layer.

A and B are programs (.pte), or JSON files: reports, or what `openneutron compile --json` or `eval --json`
printed, or models, which are compiled as `openneutron compile` does without options. Nodes with their cycles
are in reports only.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import printable
from openneutron.files import scratch_folder
from openneutron.inputs.source import (
    add_model_options,
    check_model_options,
    is_model,
    model_options,
    taken_options,
)

if TYPE_CHECKING:
    from openneutron.report.difference import Change, Difference
    from openneutron.report.load import Loaded

NAME = "diff"
HELP = "compare two compiles"
MOST_LAYERS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", metavar="A", help="the compile before")
    parser.add_argument("b", metavar="B", help="the compile after")
    add_model_options(parser)
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    parser.add_argument(
        "--fail-on-regression",
        type=float,
        nargs="?",
        const=0.0,
        metavar="PERCENT",
        help="exit with 1 if cycles, SRAM, flash, partitions, CPU work or accuracy are worse by more",
    )


def execute(args: argparse.Namespace) -> int:
    """Read, compare, print."""
    from openneutron.report.difference import compare_reports
    from openneutron.report.load import figure_of

    check_model_options(args, args.a, args.b)
    before, after = _loaded(args.a, args), _loaded(args.b, args)
    difference = compare_reports(before, after)
    limit = args.fail_on_regression
    worse = [] if limit is None else difference.regressions(limit)
    if args.json:
        print(json.dumps({**difference.as_dict(), "regressions": [c.key for c in worse]}, indent=2))
    else:
        _print(difference, args.a, args.b)
        for name, report in ((args.a, before), (args.b, after)):
            if report.summary["partitions"] and figure_of(report.summary, "cycles_npu") is None:
                print(
                    f"{printable(name)}: its cycles are not known: its delegates do not tell what they call"
                )
        if limit is not None:
            names = ", ".join(c.label.strip() for c in worse)
            print(
                f"worse by more than {limit:g} %: {names}"
                if worse
                else f"nothing worse by more than {limit:g} %"
            )
    return 1 if worse else 0


def _loaded(text: str, args: argparse.Namespace) -> Loaded:
    """The figures of a file, or of a model that is compiled for them."""
    from openneutron.report.load import load_report, report_of

    if not is_model(text):
        return load_report(text)
    from openneutron.commands.compiling.compile import compile_source, load_model
    from openneutron.commands.compiling.file_options import option_namespace
    from openneutron.commands.progress import Steps
    from openneutron.report.data import report_data

    options = option_namespace(taken_options(model_options(args), text), "diff", "ON104")
    steps = Steps()
    options.model = text
    source = load_model(options, steps)
    with scratch_folder() as folder:
        options.output = str(Path(folder) / f"{source.name}.pte")
        result = compile_source(options, source, steps)
        data = report_data(result.program, path=result.output, accuracy=result.summary.get("accuracy"))
    return report_of(data, text)


def _print(difference: Difference, a: str, b: str) -> None:
    from openneutron.report.terminal import make_console

    console = make_console()
    console.print(_table("", a, b, [c for c in difference.figures if c.a is not None or c.b is not None]))
    if difference.accuracy:
        console.print(_table("Accuracy", a, b, difference.accuracy))
    for entry in difference.moved:
        place = {"cpu": "the CPU", "npu": "the NPU", None: "elsewhere"}
        reason = f": {entry['reason']}" if entry["to"] == "cpu" and entry["reason"] else ""
        way = f"from {place[entry['from']]} to {place[entry['to']]}"
        text = f"{entry['node']} ({entry['op']}) moved {way}{reason}"
        console.print(text, soft_wrap=True)
    for verb, names in (
        ("needed now", difference.kernels_added),
        ("no longer needed", difference.kernels_removed),
    ):
        if names:
            console.print(f"kernels {verb}: {', '.join(names)}", soft_wrap=True)
    for title, rows in (
        ("Cycles (estimated) of layers", difference.layers),
        ("SQNR of layers, dB", difference.errors),
    ):
        changed = [row for row in rows if row.a != row.b]
        if changed:
            console.print(_table(title, a, b, changed[:MOST_LAYERS]))
        if len(changed) > MOST_LAYERS:
            console.print(f"... and {len(changed) - MOST_LAYERS} more; --json has all of them", style="dim")


def _table(title: str, a: str, b: str, rows: list[Change]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=title or None, title_justify="left")
    table.add_column("")
    heads = (Path(a).name, Path(b).name) if Path(a).name != Path(b).name else (a, b)
    for name in (*heads, "change", "%"):
        table.add_column(name, justify="right")
    for row in rows:
        change = None if row.a is None or row.b is None else row.b - row.a
        table.add_row(
            row.label,
            _number(row.a),
            _number(row.b),
            "-"
            if change is None
            else "="
            if change == 0
            else f"{'+' if change > 0 else ''}{_number(change)}",
            "" if not change or row.percent is None else f"{row.percent:+.1f}",
            style="yellow" if row.worse else None,
        )
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    )
