"""Search over variants of a model for the best trade-offs, on this machine or on a Dask cluster.

SPACE.toml says what varies, what is wanted and what must be kept:

  model = "net.py:mobilenet"              # any MODEL of `openneutron compile`; code needs --trust
  [parameters]                            # of the function
  width = [0.25, 0.5]
  [options]                               # of `openneutron compile`
  per_channel = [false, true]
  [objectives]
  accuracy = "max"
  sram_bytes = "min"
  [limits]
  sram_bytes = "<= 512K"

docs/sweep.md describes it in full. A search that was interrupted goes on where it stopped. A space may name
code to run (FILE.py:FUNCTION) and boards to open only with --trust.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.commands.devices.board import BAUD, TIMEOUT, add_line_arguments, check_line
from openneutron.diagnostics import fail
from openneutron.inputs.source import add_model_options, check_model_options, is_model_file, model_options

if TYPE_CHECKING:
    from openneutron.search.engine import Progress, Row, Search
    from openneutron.search.space import Space
    from openneutron.search.workers import Workers

NAME = "sweep"
HELP = "search over variants: the best trade-offs within limits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("space", metavar="SPACE.toml", help="what varies, see above")
    parser.add_argument(
        "-o", "--output", metavar="DIR", help="where results go (default: SPACE.sweep beside it)"
    )
    parser.add_argument(
        "--trials", type=int, metavar="N", help="at most N trials, instead of the space's own"
    )
    add_model_options(parser)
    add_worker_arguments(parser)
    parser.add_argument(
        "--reports",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a report page for every trial (default)",
    )
    parser.add_argument(
        "--board",
        action="append",
        default=[],
        metavar="PORT",
        help="a board for the figure `measured`, as of `run --board`; again for more (not the space's own)",
    )
    add_line_arguments(parser.add_argument, None, None)
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the Python code and libraries, and open the boards, that SPACE.toml names",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def add_worker_arguments(parser: argparse.ArgumentParser) -> None:
    """Where trials run."""
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes of this machine (default: one per core)"
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="a Dask scheduler, e.g. tls://host:8786 (docs/sweep.md); `local`: processes here, as --jobs",
    )


def execute(args: argparse.Namespace) -> None:
    """Search, write, print."""
    from dataclasses import replace

    from openneutron.search.space import read_space

    path = Path(args.space)
    space = _allowed(read_space(path), args.trust, args.board, args.baud, args.timeout)
    if args.trials is not None:
        if args.trials < 1:
            fail("ON104", "option --trials", f"must be positive (got {args.trials})")
        space = replace(space, trials=args.trials)
    check_model_options(args, space.model)
    for name, value in model_options(args).items():
        if f"options.{name}" in (space.dimensions | space.fixed):
            fail("ON104", f"option --{name}", f"{args.space} has options.{name}", "Leave one out.")
        space = replace(space, fixed={**space.fixed, f"options.{name}": value})
    folder = Path(args.output) if args.output else path.with_suffix(".sweep")
    data = _searched(space, folder, jobs=args.jobs, dask=args.dask, reports=args.reports)
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        print_sweep(data, folder)
    if all(trial["state"] == "failed" for trial in data["trials"]):
        first = data["trials"][0]
        fail(first["code"], "every trial failed", first["reason"])


def sweep(
    space: Mapping[str, Any] | str | Path,
    folder: str | Path | None = None,
    *,
    jobs: int | None = None,
    dask: str | None = None,
    reports: bool = True,
    trust: bool = False,
    boards: Sequence[str] = (),
    baud: int | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Search over a space: a TOML file, or a table like one. Returns what `sweep --json` prints.

    Code that a file names (`FILE.py:FUNCTION`) is run, and boards that it names are opened, only with
    `trust`; a table is the caller's own. `boards` stand for the space's own, and so do `baud` and `timeout`.
    """
    from openneutron.search.space import make_space, read_space

    if isinstance(space, Mapping):
        if folder is None:
            fail("ON104", "folder", "a space that is no file has no place beside it", "Name a folder.")
        allowed = _allowed(make_space(space), True, boards, baud, timeout)
        return _searched(allowed, Path(folder), jobs=jobs, dask=dask, reports=reports)
    place = Path(folder) if folder is not None else Path(space).with_suffix(".sweep")
    allowed = _allowed(read_space(Path(space)), trust, boards, baud, timeout)
    return _searched(allowed, place, jobs=jobs, dask=dask, reports=reports)


def _allowed(
    space: Space, trust: bool, boards: Sequence[str], baud: int | None = None, timeout: float | None = None
) -> Space:
    """The space, with the caller's boards, if any, for its own; refused if it asks for too much."""
    from dataclasses import replace

    if isinstance(boards, str) or not all(isinstance(name, str) and name.strip() for name in boards):
        fail("ON104", "option --board", "is no port", "Give a port, for example /dev/ttyACM0, or qemu.")
    if boards:
        space = replace(space, data={k: v for k, v in space.data.items() if k != "boards"})
    if not trust:
        _refuse_code(space)
    given = {"boards": list(boards), "baud": baud, "timeout": timeout}
    data = {**space.data, **{name: value for name, value in given.items() if value not in ([], None)}}
    if not data.get("boards"):
        for name in ("baud", "timeout"):
            if name in data:
                fail("ON104", f"option --{name}", "has no effect without a board", "Add --board PORT.")
    check_line(data.get("baud", BAUD), data.get("timeout", TIMEOUT))
    return replace(space, data=data)


def _refuse_code(space: Space) -> None:
    """What a space that is not trusted may not ask for, in any of its points."""
    from openneutron.commands.compiling.file_options import refuse_option
    from openneutron.inputs.source import refuse_code
    from openneutron.search.space import CODE

    for name, value in (("model", space.model), *((f"data.{k}", v) for k, v in space.data.items())):
        refuse_code(value, f"space: {name}", CODE)
    if boards := space.data.get("boards"):
        problem = f"{', '.join(boards)}: a file may not open devices or connections"
        fail(
            CODE,
            "space: data.boards",
            problem,
            "Name the ports with --board, or look at them and give --trust.",
        )
    for name in (*space.dimensions, *space.fixed):
        part, _, option = name.partition(".")
        if part == "options":
            refuse_option(option, "space", CODE)


def _searched(
    space: Space, folder: Path, *, jobs: int | None, dask: str | None, reports: bool
) -> dict[str, Any]:
    from openneutron import __version__
    from openneutron.commands.compiling.file_options import option_namespace
    from openneutron.files import write_atomically
    from openneutron.search.engine import Search
    from openneutron.search.page import render_sweep
    from openneutron.search.results import as_csv, prune_programs, sweep_data
    from openneutron.search.space import CODE, Choice

    for name, dimension in space.dimensions.items():
        if name.startswith("options.") and name != "options.keep_float_worst":
            values = dimension.values if isinstance(dimension, Choice) else (dimension.low, dimension.high)
            for value in values:  # a wrong value is found now, not in the tenth trial
                option_namespace({name.removeprefix("options."): value}, "space", CODE)
    fixed = {k.removeprefix("options."): v for k, v in space.fixed.items() if k.startswith("options.")}
    option_namespace({k: v for k, v in fixed.items() if k != "keep_float_worst"}, "space", CODE)
    _check_functions(space)
    search = Search(space, folder, reports)
    rows = _run(search, jobs, dask)
    prune_programs(rows, folder)
    data = sweep_data(space, rows, folder)
    write_atomically(folder / "sweep.json", json.dumps(data, indent=2).encode())
    write_atomically(folder / "sweep.csv", as_csv(data).encode())
    write_atomically(folder / "sweep.html", render_sweep(data, f"openneutron {__version__}").encode())
    return data


def _check_functions(space: Space) -> None:
    """What a trial would fail for is said before the first: names in the user's files, labels."""
    from openneutron.diagnostics import nearest
    from openneutron.inputs.source import arguments_of
    from openneutron.search.space import CODE, LABELLED

    arguments = arguments_of(space.model)
    for name in (*space.dimensions, *space.fixed):
        part, _, argument = name.partition(".")
        if part == "parameters" and arguments is not None and argument not in arguments:
            problem = f"{space.model} has no such argument"
            fail(
                CODE, f"space: {name}", problem, nearest(argument, arguments) if arguments else "It has none."
            )
    if metric := space.data.get("metric"):
        arguments_of(metric)
    if "measured" in space.asked and not space.data.get("boards"):
        fail(
            CODE, "space: objectives", "there is no board", "Name one: --board /dev/ttyACM0, or --board qemu."
        )
    asked = [figure for figure in space.asked if figure in LABELLED]
    if (
        asked and "test" not in space.data and is_model_file(space.model)
    ):  # a model of the zoo may have data of its own
        hint = '[data] test = "FILE.npz" or a folder; agreement (with the float model) needs no labels.'
        fail("ON606", f"space: {asked[0]}", "there is no labelled data for an accuracy", hint)


def _run(search: Search, jobs: int | None, dask: str | None) -> list[Row]:
    """Run with a live table on a terminal, a line a trial elsewhere."""
    from rich.live import Live

    from openneutron.report.terminal import PlainConsole

    console = PlainConsole(stderr=True)
    if search.note:
        console.print(f"note: {search.note}", soft_wrap=True)
    if not console.is_terminal:
        return search.run(
            worker_maker(jobs, dask), lambda progress: console.print(_state(progress), soft_wrap=True)
        )
    with Live(console=console, transient=True) as live:
        return search.run(worker_maker(jobs, dask), lambda progress: live.update(_table(progress)))


def worker_maker(jobs: int | None, dask: str | None) -> Callable[[Callable[[str], None]], Workers]:
    """What makes the workers, once there is something to run."""
    from openneutron.commands.searching.trial import execute_trial
    from openneutron.search.workers import Dask, Here, Processes

    count = jobs if jobs is not None else os.cpu_count() or 1
    if count < 1:
        fail("ON104", "option --jobs", f"must be positive (got {count})")

    def make(log: Callable[[str], None]) -> Workers:
        if dask is not None and dask != "local":
            return Dask(execute_trial, dask, log)
        # A cluster of our own would listen, without authentication; these processes have no port.
        return Here(execute_trial) if count == 1 else Processes(execute_trial, count, log)

    return make


def _state(progress: Progress) -> str:
    left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
    return f"{progress.done} of {progress.total} trials, {progress.failed} failed{left}{_best(progress)}"


def _best(progress: Progress) -> str:
    if progress.best is None:
        return ""
    point = ", ".join(f"{name.split('.', 1)[1]} {value}" for name, value in progress.best.point.items())
    return f"; best so far: trial {progress.best.outcome.number} ({point})"


def _table(progress: Progress) -> Any:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_row("trials", f"{progress.done} of {progress.total}, {progress.failed} failed")
    if progress.seconds_left is not None:
        table.add_row("left", f"{progress.seconds_left:.0f} s")
    table.add_row("best so far", _best(progress).removeprefix("; best so far: ") or "none yet")
    return table


def print_sweep(data: Mapping[str, Any], folder: Path) -> None:
    """The front as a table, then where everything is."""
    from rich.table import Table

    from openneutron.report.terminal import make_console

    console = make_console()
    trials: Sequence[Mapping[str, Any]] = data["trials"]
    names = [*data["dimensions"], *data["objectives"]]
    table = Table(box=None, padding=(0, 2, 0, 0), title="The front", title_justify="left")
    table.add_column("trial", justify="right")
    for name in names:
        table.add_column(name.split(".", 1)[-1], justify="right", overflow="fold")
    for trial in (t for t in trials if t["front"]):
        values = [trial["point"].get(name, trial["figures"].get(name)) for name in names]
        table.add_row(
            str(trial["number"]), *(f"{v:,.6g}" if isinstance(v, float) else str(v) for v in values)
        )
    console.print(table)
    over = sum(t["state"] == "over a limit" for t in trials)
    failed = [t for t in trials if t["state"] == "failed"]
    console.print(
        f"{len(trials)} trials, {len(data['front'])} on the front, {over} over a limit, {len(failed)} failed"
    )
    for code in dict.fromkeys(t["code"] for t in failed):
        same = [t for t in failed if t["code"] == code]
        console.print(
            f"{len(same)} failed with {code}, e.g. trial {same[0]['number']}: {same[0]['reason']}",
            markup=False,
            soft_wrap=True,
        )
    if not data["front"]:
        console.print("no trial kept every limit", style="bold red")
    console.print(f"page: {folder / 'sweep.html'}; programs, reports and commands: {folder}", soft_wrap=True)
