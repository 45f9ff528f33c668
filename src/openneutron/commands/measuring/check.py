"""Check models against their budgets: cycles, time, SRAM, flash, delegation, accuracy. Made for CI.

BUDGET.toml has a [[model]] table for every model:

  [[model]]
  model = "cifarnet"        # a zoo name, a .pt2, .onnx, .tflite, .pte, or a report (.json)
  max_cycles = 400_000
  max_sram = "160K"
  min_accuracy = 0.95

docs/ci-gate.md lists the keys. The exit code is 1 if a budget is not kept. A budget file may name code to run
(FILE.py:CALLABLE) only with --trust.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.commands.devices.board import add_board_arguments, check_board_arguments
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import scratch_folder
from openneutron.inputs.source import add_model_options, check_model_options, model_options, taken_options

if TYPE_CHECKING:
    from openneutron.board.session import BoardRun
    from openneutron.commands.progress import Steps
    from openneutron.report.budget import Budget, Check
    from openneutron.report.load import Loaded

NAME = "check"
HELP = "fail if a model leaves its budget (for CI)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("budget", metavar="BUDGET.toml", help="the budgets, see above")
    add_model_options(parser)
    parser.add_argument(
        "--trust", action="store_true", help="run the Python code and libraries that the budget file names"
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    add_board_arguments(parser)


@dataclass(frozen=True)
class Outcome:
    """What came of one model: its checks, or why there are none."""

    budget: Budget
    checks: list[Check]
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether every budget is kept."""
        return not self.problem and all(check.ok for check in self.checks)


def execute(args: argparse.Namespace) -> int:
    """Compile or read every model, compare, print."""
    from openneutron.commands.progress import Steps
    from openneutron.report.budget import read_budgets

    check_board_arguments(args)
    budgets = read_budgets(Path(args.budget))
    check_model_options(args, *(budget.model for budget in budgets))
    given = model_options(args)
    arguments = [
        _arguments(b, f"{args.budget}: {b.name}", given, args.trust) for b in budgets
    ]  # checked first
    for problem in arguments:
        problem.board, problem.baud, problem.timeout = args.board, args.baud, args.timeout
    steps = Steps()
    outcomes = [_outcome(budget, problem, steps) for budget, problem in zip(budgets, arguments, strict=True)]
    if args.json:
        models = [
            {
                "name": o.budget.name,
                "model": o.budget.model,
                "ok": o.ok,
                "problem": o.problem,
                "checks": [check.as_dict() for check in o.checks],
            }
            for o in outcomes
        ]
        print(json.dumps({"ok": all(o.ok for o in outcomes), "models": models}, indent=2))
    else:
        _print(outcomes)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def _outcome(budget: Budget, args: argparse.Namespace, steps: Steps) -> Outcome:
    """One model's checks; a model that cannot be compiled fails, and the others are still checked."""
    from openneutron.report.budget import check_budget

    try:
        return Outcome(budget, check_budget(budget, _measure(budget, args, steps)))
    except OpenNeutronError as error:
        return Outcome(budget, [], str(error.diagnostic).replace("\n  hint:", " -"))


def _measure(budget: Budget, args: argparse.Namespace, steps: Steps) -> Loaded:
    from openneutron.report.load import ACCURACIES, Loaded, load_report

    if budget.model.endswith((".json", ".pte")):
        if budget.model.endswith(".pte") and args.board and "max_measured_ms" in budget.limits:
            _on_board(args, Path(budget.model), steps)
        report = load_report(budget.model)
        if budget.needs_accuracy and not report.accuracy:
            fail(
                "ON608",
                budget.model,
                "has no accuracy",
                "Write it with `openneutron eval --json`, or name the model.",
            )
        return report

    from openneutron.commands.compiling.compile import compile_source, load_model
    from openneutron.commands.measuring.evaluate import evaluate_source

    source = load_model(args, steps)
    with scratch_folder() as folder:
        args.output = str(Path(folder) / "model.pte")
        if budget.needs_accuracy:
            result, figures = evaluate_source(args, source, steps)
            _add_measured(budget, args, result.summary, steps)
            accuracy = {key: float(figures[key]) for key in ACCURACIES if key in figures}
            return Loaded(budget.name, result.summary, accuracy=accuracy)
        summary = compile_source(args, source, steps).summary
        _add_measured(budget, args, summary, steps)
        return Loaded(budget.name, summary)


def _on_board(args: argparse.Namespace, path: Path, steps: Steps) -> BoardRun:
    """Measure a program on the board."""
    from openneutron.commands.devices.board import measure_file

    return measure_file(args, path, None, steps)[2]


def _add_measured(budget: Budget, args: argparse.Namespace, summary: dict[str, Any], steps: Steps) -> None:
    if args.board and "max_measured_ms" in budget.limits:
        statistics = _on_board(args, Path(args.output), steps).statistics()
        summary["time_us_measured"] = statistics["median"] if statistics["unit"] == "microseconds" else None


def _arguments(budget: Budget, where: str, given: Mapping[str, Any], trust: bool) -> argparse.Namespace:
    """The budget's options as the compile command would have them; an unknown one is an error.

    What the command line says of shapes is for the .onnx models that say nothing of them themselves.
    """
    from openneutron.commands.compiling.file_options import option_namespace
    from openneutron.inputs.source import refuse_code

    if not trust:
        refuse_code(budget.model, f"{where}: model", "ON108")
    options = {**taken_options(given, budget.model), **budget.options}
    args = option_namespace(options, where, "ON108", trust)
    args.model, args.data, args.samples, args.threads = budget.model, budget.data, budget.samples, None
    return args


def _print(outcomes: list[Outcome]) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console, styled

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("model", "what"):
        table.add_column(name, overflow="fold")
    for name in ("budget", "actual", "margin"):
        table.add_column(name, justify="right")
    table.add_column("")
    for outcome in outcomes:
        name = outcome.budget.name
        if outcome.problem:
            table.add_row(name, "", "", "", "", styled("[bold red]FAIL[/]"))
        for check in outcome.checks:
            sign = "<=" if check.is_most else ">="
            table.add_row(
                name,
                check.label,
                f"{sign} {_number(check.budget)}{_unit(check.unit)}",
                "not known" if check.actual is None else f"{_number(check.actual)}{_unit(check.unit)}",
                "" if check.margin is None else _number(check.margin, sign=True),
                styled("[green]ok[/]" if check.ok else "[bold red]FAIL[/]"),
            )
            name = ""
    console = make_console()
    console.print(table)
    for outcome in outcomes:
        if outcome.problem:
            console.print(f"{outcome.budget.name}: {outcome.problem}", soft_wrap=True)
    left = sum(not check.ok for outcome in outcomes for check in outcome.checks)
    broken = sum(bool(outcome.problem) for outcome in outcomes)
    if left or broken:
        parts = [f"{left} budgets exceeded"] * bool(left) + [f"{broken} models not measured"] * bool(broken)
        console.print(", ".join(parts), style="bold red")
    else:
        console.print("every budget is kept")


def _unit(unit: str) -> str:
    return f" {unit}" if unit and unit not in ("bytes", "cycles") else ""


def _number(value: float, sign: bool = False) -> str:
    plus = "+" if sign and value >= 0 else ""
    return f"{plus}{value:,}" if isinstance(value, int) else f"{plus}{value:,.4g}"
