"""Find the cheapest program whose int8 result is as good as asked, with no file to write.

Variants are tried cheapest first: those that cost nothing at run time (how ranges are found, how weights
are rounded), then layers kept in float, the worst first, which cost cycles.
What counts is accuracy on labelled data (--data, or a zoo classifier's own), else agreement with the float
model.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.commands.compiling.compile import output_path
from openneutron.commands.searching.sweep import add_worker_arguments, worker_maker
from openneutron.diagnostics import fail
from openneutron.inputs.source import (
    MODEL_HELP,
    add_model_options,
    check_model_options,
    check_source,
    model_options,
)

if TYPE_CHECKING:
    from openneutron.search.trial import Outcome

NAME = "tune"
HELP = "the cheapest program within an accuracy drop"

# What is tried: a name for people, and the options that make it. The first group costs nothing at run time.
FREE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("calibration only", {"accuracy": "fast"}),
    ("balanced methods", {"accuracy": "balanced"}),
    ("best methods", {"accuracy": "best"}),
)
FLOAT_LAYERS = (1, 2, 4, 8)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_model_options(parser)
    parser.add_argument(
        "--max-drop", type=float, default=0.5, metavar="POINTS", help="percentage points (default 0.5)"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT.pte", help="the program to write (default: <model>.pte)"
    )
    parser.add_argument("--data", metavar="FILE|DIR", help="labelled data, as for `openneutron eval`")
    parser.add_argument(
        "--calibration", metavar="DIR|FILE", help="calibration inputs, as for `openneutron compile`"
    )
    parser.add_argument("--samples", type=int, metavar="N", help="use the first N test samples only")
    parser.add_argument("--recipe", metavar="RECIPE", help="as for `openneutron compile`")
    add_worker_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print what was tried as JSON")


def execute(args: argparse.Namespace) -> int:
    """Try, choose, write, print."""
    from openneutron.commands.progress import Steps

    if not args.max_drop >= 0:
        fail("ON104", "option --max-drop", f"must not be negative (got {args.max_drop})")
    check_model_options(args, args.model)
    check_source(args.model)
    steps = Steps()
    output = output_path(args.output, Path(args.model.split(".py:")[0]).stem)
    with tempfile.TemporaryDirectory(prefix="openneutron-tune-") as name:
        tried = _tried(args, Path(name), steps)
        good = [(label, outcome) for label, outcome in tried if _drop(outcome) <= args.max_drop]
        measured = [(label, outcome) for label, outcome in tried if outcome.state == "done"]
        if not measured:
            first = tried[0][1]
            fail(first.code or "ON804", args.model, f"no variant could be measured: {first.reason}")
        # Fewest cycles; of equals the one tried first, which takes the least work to make.
        winner = min(good, key=lambda item: item[1].figures["cycles"]) if good else min(measured, key=_rank)
        shutil.copyfile(Path(name) / "trials" / f"{winner[1].number:04d}" / "model.pte", output)
    data = {
        "model": args.model,
        "max_drop": args.max_drop,
        "reached": bool(good),
        "winner": winner[0],
        "program": str(output),
        "command": winner[1].command.replace("-o model.pte", f"-o {output}"),
        "figures": winner[1].figures,
        "tried": [
            {
                "variant": label,
                "state": o.state,
                "drop": _drop_or_none(o),
                "figures": o.figures,
                "reason": o.reason,
            }
            for label, o in tried
        ],
    }
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        _print(data)
    return 0 if good else 1


def _tried(args: argparse.Namespace, folder: Path, steps: Any) -> list[tuple[str, Outcome]]:
    """What came of every variant that was tried; a group is tried where none before it sufficed."""
    from openneutron.search.trial import Job

    make = worker_maker(args.jobs, args.dask)
    workers = make(steps.note)
    asked = ("drop",) if args.data else ()  # labels that were promised must be there
    tried: list[tuple[str, Outcome]] = []
    try:
        for group in _groups():
            with steps.step(f"Trying {len(group)} variants", bar=True) as advance:
                jobs = [
                    Job(
                        number=len(tried) + i,
                        point=options,
                        model=args.model,
                        parameters={},
                        options={
                            **model_options(args),
                            **options,
                            **({"recipe": args.recipe} if args.recipe else {}),
                        },
                        data=_data(args),
                        limits=(),
                        asked=asked,
                        evaluate=True,
                        folder=str(folder / "trials" / f"{len(tried) + i:04d}"),
                        reports=False,
                    )
                    for i, (_, options) in enumerate(group)
                ]
                outcomes = {}
                for outcome in workers.run(jobs):
                    outcomes[outcome.number] = outcome
                    advance(len(outcomes) / len(jobs))
            tried += [(group[i][0], outcomes[job.number]) for i, job in enumerate(jobs)]
            if any(_drop(outcome) <= args.max_drop for _, outcome in tried):
                break
    finally:
        workers.close()
    return tried


def _groups() -> list[list[tuple[str, dict[str, Any]]]]:
    name, options = FREE[-1]
    floats = [
        (f"{name}, the {worst} in float", {**options, "keep_float_worst": count})
        for count in FLOAT_LAYERS
        for worst in ("worst layer" if count == 1 else f"{count} worst layers",)
    ]
    return [[*FREE[:2]], [*FREE[2:]], floats]


def _data(args: argparse.Namespace) -> dict[str, Any]:
    given = {"test": args.data, "calibration": args.calibration, "samples": args.samples}
    return {key: value for key, value in given.items() if value is not None}


def _drop(outcome: Outcome) -> float:
    drop = _drop_or_none(outcome)
    return float("inf") if drop is None else drop


def _drop_or_none(outcome: Outcome) -> float | None:
    """Points lost: of accuracy, or of agreement with the float model where there are no labels."""
    if outcome.state != "done":
        return None
    if "drop" in outcome.figures:
        return outcome.figures["drop"]
    return 100 * (1 - outcome.figures["agreement"]) if "agreement" in outcome.figures else None


def _rank(item: tuple[str, Outcome]) -> tuple[float, float]:
    return _drop(item[1]), item[1].figures["cycles"]


def _print(data: dict[str, Any]) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console

    console = make_console()
    table = Table(box=None, padding=(0, 2, 0, 0), title="Tried", title_justify="left")
    table.add_column("variant")
    for name in ("drop (points)", "SQNR (dB)", "cycles (est.)", "SRAM"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in data["tried"]:
        figures = row["figures"]
        values = [
            "" if row["drop"] is None else f"{row['drop']:.2f}",
            f"{figures['sqnr_db']:.1f}" if "sqnr_db" in figures else "",
            f"{figures['cycles']:,.0f}" if "cycles" in figures else "",
            f"{figures['sram_bytes'] / 1024:,.1f} KiB" if "sram_bytes" in figures else "",
        ]
        last = "chosen" if row["variant"] == data["winner"] else row["reason"]
        table.add_row(row["variant"], *values, last)
    console.print(table)
    if data["reached"]:
        why = f"fewest cycles of those within {data['max_drop']} points"
        console.print(f"{data['winner']}: {why}")
    else:
        console.print(
            f"nothing stays within {data['max_drop']} points; the nearest is: {data['winner']}",
            style="bold red",
        )
        console.print("training with quantization (--use_qat, or prepare_qat) is what is left to try")
    console.print(f"program: {data['program']}", soft_wrap=True)
    console.print(f"again:   {data['command']}", soft_wrap=True)
