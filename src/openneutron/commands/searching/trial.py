"""What one trial of a search does: load, quantize, compile, evaluate. Runs in the worker's process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import linecache
import logging
import math
import os
import shlex
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.commands.compiling.compile import Result, compile_source, write_reports
from openneutron.commands.compiling.file_options import option_namespace, option_words
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import lock_file, read_text, write_atomically
from openneutron.inputs.model import Source
from openneutron.inputs.source import load_function, load_source
from openneutron.report.difference import sram_needed
from openneutron.search.space import CODE, EVALUATED, LABELLED, Bound
from openneutron.search.trial import DONE, FAILED, OVER, Job, Outcome

if TYPE_CHECKING:
    import torch

_OUTCOME = "outcome.json"
_FRESH = 1e-9  # the weakest signal for which a ratio is worth a figure


def execute_trial(job: Job) -> Outcome:
    """Run a trial; whatever goes wrong with it is its outcome."""
    if job.files:
        with tempfile.TemporaryDirectory(prefix="openneutron-trial-") as name:
            return _with_files(job, Path(name))
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    # A process whose client died may still be at it: then its outcome is waited for.
    lock = lock_file(folder / ".running")
    try:
        if (recalled := _known(folder, job)) is not None:
            return recalled
        outcome = _run(job)
        row = json.dumps({**outcome.as_row(job.point), "job": _identity(job)})
        write_atomically(folder / _OUTCOME, row.encode())
    finally:
        os.close(lock)
    return outcome


def trial_command(job: Job, kept: Sequence[str] = ()) -> str:
    """The command that does the same by hand; `kept` are the layers that the trial chose to keep in float."""
    scored = _judges_outputs(job) and "metric" not in job.data
    words = ["openneutron", "eval" if job.evaluate and scored else "compile", _call(job)]
    options = {k: v for k, v in job.options.items() if k != "keep_float_worst"}
    if kept:
        options["keep_float"] = [*options.get("keep_float", ()), *kept]
    words += option_words(options)
    if calibration := job.data.get("calibration"):
        words += ["--calibration", calibration]
    if words[1] == "eval" and job.data.get("test"):
        words += ["--data", job.data["test"]]
    if words[1] == "eval" and job.data.get("samples"):
        words += ["--samples", str(job.data["samples"])]
    return shlex.join([*words, "-o", "model.pte"])


def _with_files(job: Job, folder: Path) -> Outcome:
    """Run with the files that came along, and send back what was made."""
    places = {}
    for path, data in job.files.items():
        # Neighbours stay neighbours: a Python file may import them.
        place = folder / "files" / str(abs(hash(str(Path(path).parent)))) / Path(path).name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        places[path] = place

    def moved(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        file, colon, call = text.partition(".py:")
        path = f"{file}.py" if colon else text
        if path in places:
            return f"{places[path]}{':' + call if colon else ''}"
        inside = [place for name, place in places.items() if name.startswith(f"{text}/")]
        return str(inside[0].parent) if inside else text

    local = replace(
        job,
        model=moved(job.model),
        data={k: moved(v) for k, v in job.data.items()},
        folder=str(folder / "out"),
        files={},
    )
    (folder / "out").mkdir()
    outcome = _run(local)
    command = outcome.command
    for path, place in places.items():  # as the user knows them
        command = command.replace(str(place), path).replace(str(place.parent), str(Path(path).parent))
    program, report = folder / "out" / "model.pte", folder / "out" / "report.html"
    return replace(
        outcome,
        command=command,
        program=program.read_bytes() if program.exists() else None,
        report=report.read_bytes() if report.exists() else None,
    )


def _known(folder: Path, job: Job) -> Outcome | None:
    """The outcome that another process left for the same trial."""
    try:
        row = json.loads(read_text(folder / _OUTCOME, "ON801"))
        if row.pop("job") != _identity(job):
            return None
        row.pop("point")
        return Outcome(**row)
    except (OpenNeutronError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _identity(job: Job) -> str:
    content = [job.model, job.parameters, job.options, job.data, job.limits, job.evaluate]
    return json.dumps(content, sort_keys=True, default=str)


def _run(job: Job) -> Outcome:
    began = time.monotonic()
    figures: dict[str, float] = {}
    kept: list[str] = []
    try:
        with _quiet():
            over = _measure(job, figures, kept)
        outcome = Outcome(job.number, OVER if over else DONE, figures, reason=over)
    except OpenNeutronError as error:
        diagnostic = error.diagnostic
        reason = f"{diagnostic.where}: {diagnostic.problem}" if diagnostic.where else diagnostic.problem
        outcome = Outcome(job.number, FAILED, figures, diagnostic.code, reason)
    except Exception as error:
        text = (str(error).strip().splitlines() or ["no message"])[0]
        outcome = Outcome(job.number, FAILED, figures, "ON699", f"{type(error).__name__}: {text}")
    return replace(outcome, seconds=round(time.monotonic() - began, 3), command=trial_command(job, kept))


def _measure(job: Job, figures: dict[str, float], kept: list[str]) -> str:
    """Compile and evaluate; the limit that is not kept, or nothing."""
    from openneutron.commands.progress import Steps

    steps = Steps(quiet=True)
    options = dict(job.options)
    worst = options.pop("keep_float_worst", 0)
    if job.data.get("calibration"):
        options.setdefault("calibration", job.data["calibration"])
    args = option_namespace(options, "space", CODE)
    args.model, args.output = _call(job), str(Path(job.folder) / "model.pte")
    args.data, args.samples, args.threads = job.data.get("test"), job.data.get("samples"), 1
    source = _source(args.model, tuple(args.shape), tuple(args.fix), tuple(args.state))
    if worst:
        kept += _worst_layers(args, source, int(worst))
        args.keep_float = [*args.keep_float, *kept]
    result = compile_source(args, source, steps)
    if job.reports:
        write_reports(Path(job.folder) / "report.html", result)
    figures.update(_figures(result.summary))
    if over := _over(job, figures, compiled=True):
        return over
    if job.evaluate:
        if "measured" in job.asked:
            figures["measured"] = _measured(job, args, result)
        if _judges_outputs(job):
            figures.update(_evaluated(job, args, source, result))
        return _over(job, figures, compiled=False)
    return ""


def _judges_outputs(job: Job) -> bool:
    """Whether a trial asks for more than the time on a board."""
    return bool(EVALUATED & {*job.asked} - {"measured"}) or "measured" not in job.asked


def _measured(job: Job, args: Any, result: Result) -> float:
    """The median time on the first board that is free: microseconds, or counted instructions under QEMU."""
    from openneutron.commands.devices.board import BAUD, TIMEOUT, measure_file
    from openneutron.commands.progress import Steps

    with _free_board(job.data["boards"]) as name:
        args.board = name
        args.baud, args.timeout = job.data.get("baud", BAUD), job.data.get("timeout", TIMEOUT)
        run = measure_file(args, Path(result.output), None, Steps(quiet=True))[2]
    return float(run.statistics()["median"])


@contextlib.contextmanager
def _free_board(names: Sequence[str]) -> Iterator[str]:
    """One trial at a time on each board, in whichever process; every emulator is a board of its own."""
    if "qemu" in names:
        yield "qemu"
        return
    while True:
        for name in names:
            digest = hashlib.sha256(name.encode()).hexdigest()[:16]
            path = Path(tempfile.gettempdir()) / f"openneutron-board-{digest}.lock"
            try:
                lock = lock_file(path, wait=False)
            except BlockingIOError:
                continue
            try:
                yield name
            finally:
                os.close(lock)
            return
        time.sleep(0.2)


def _figures(summary: dict[str, Any]) -> dict[str, float]:
    """Every number of a summary by its name, and those that sweeps call otherwise."""
    figures = {
        k: float(v) for k, v in summary.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }
    return figures | {
        "sram_bytes": float(sram_needed(summary)),
        "flash_bytes": float(summary["program_bytes"]),
        "time_ms": summary["time_us_estimated"] / 1000,
        "cycles": float(summary["cycles_estimated"]),
        "cpu_nodes": float(len(summary["cpu_nodes"])),
    }


def _over(job: Job, figures: dict[str, float], compiled: bool) -> str:
    for name, sign, value in job.limits:
        bound = Bound(name, sign, value)
        if (name in EVALUATED) is not compiled and bound.broken_by(figures[name]):
            return f"{name} is {figures[name]:,.6g}, the limit is {bound}"
    return ""


def _evaluated(job: Job, args: Any, source: Source, result: Result) -> dict[str, float]:
    import torch

    from openneutron.run.program import load_program

    program = load_program(result.output, threads=1)
    if metric := job.data.get("metric"):
        return {"metric": _metric(metric, program)}
    inputs, labels = _test_data(job, args, source)
    rows = []
    for i in range(len(inputs)):
        program.reset()
        rows.append(torch.from_numpy(program.run((inputs[i : i + 1],))[0].copy()).flatten().double())
    scores = torch.stack(rows)
    given = [job.data, args.shape, args.fix, args.state]
    wanted = _float_scores(source, inputs, _call(job), str(given))
    figures: dict[str, float] = {}
    if wanted is not None:
        figures["agreement"] = float((scores.argmax(1) == wanted.argmax(1)).double().mean())
        noise = float((scores - wanted).square().sum())
        signal = float(wanted.square().sum())
        figures["sqnr_db"] = 10 * math.log10(max(signal, _FRESH) / max(noise, _FRESH))
    if labels is not None:
        figures["accuracy"] = float((scores.argmax(1) == labels).double().mean())
        if wanted is not None:
            figures["accuracy_float"] = float((wanted.argmax(1) == labels).double().mean())
            figures["drop"] = 100 * (figures["accuracy_float"] - figures["accuracy"])
    return figures


def _test_data(job: Job, args: Any, source: Source) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Test inputs and, where there are any, labels; without either, the calibration inputs."""
    import torch

    from openneutron.commands.compiling.quantizing import calibration_samples, dataset_of
    from openneutron.commands.progress import Steps
    from openneutron.inputs.samples import frames_in

    count = job.data.get("samples")
    data = dataset_of(source, job.data.get("test"))
    if data is not None:
        return data.test.inputs[:count], data.test.labels[:count]
    if LABELLED & {*job.asked}:
        fail(
            "ON606",
            job.model,
            "there is no labelled data for an accuracy",
            "[data] test = FILE.npz or a folder.",
        )
    samples = frames_in(calibration_samples(args, source, Steps(quiet=True)))[:count]
    return torch.cat([sample[0] for sample in samples]), None


_FLOAT: dict[tuple[str, str], Any] = {}


def _float_scores(source: Source, inputs: torch.Tensor, model: str, data: str) -> torch.Tensor | None:
    """What the float model says; computed once for all trials of a model in this process."""
    import torch

    from openneutron.quantize.sequences import outputs_over

    if source.module is None:
        return None
    if (model, data) not in _FLOAT:
        is_module = isinstance(source.module, torch.nn.Module)
        module: Any = source.module if is_module else source.module.module()  # type: ignore[operator]
        each = [outputs_over(module, [(inputs[i : i + 1],)])[0] for i in range(len(inputs))]
        rows = [row[0] for row in each]
        if not all(len(row) == 1 and isinstance(row[0], torch.Tensor) for row in each):
            fail("ON606", model, "has several outputs", "Give a [data] metric of your own.")
        _FLOAT.clear()
        _FLOAT[model, data] = torch.stack([row.flatten().double() for row in rows])
    return _FLOAT[model, data]


def _metric(text: str, program: Any) -> float:
    function = load_function(text)
    try:
        value = function(lambda *inputs: tuple(program.run(inputs)))
        number = float(value)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        fail(
            "ON803",
            text,
            f"raised {type(error).__name__}: {reason}",
            "It is called with a function that runs the program.",
        )
    if not math.isfinite(number):
        fail("ON803", text, f"returned {number}", "Return a finite number.")
    return number


@lru_cache(maxsize=2)
def _source(model: str, shape: tuple[str, ...], fix: tuple[str, ...], state: tuple[str, ...]) -> Source:
    """The model; trials that vary only options share it."""
    source = load_source(model, shape, fix, state)
    if source.calibration is not None:
        source = replace(source, calibration=list(source.calibration))  # an iterator would be spent
    return source


def _worst_layers(args: Any, source: Source, count: int) -> list[str]:
    """The layers that add the most noise of their own, worst first."""
    from openneutron.commands.compiling.quantizing import calibration_samples
    from openneutron.commands.measuring.compare import compare_as_asked
    from openneutron.commands.progress import Steps

    if source.module is None or source.quantized:
        fail(
            CODE,
            "space: options.keep_float_worst",
            "there is no float model to rank layers of",
            "Leave it out.",
        )
    quiet = Steps(quiet=True)
    calibration = calibration_samples(args, source, quiet)
    rows = compare_as_asked(args, source, calibration[:2], calibration, quiet).layers
    ranked = sorted(
        (row for row in rows if row.own_sqnr_db is not None), key=lambda row: row.own_sqnr_db or 0.0
    )
    return [row.layer for row in ranked[:count]]


def _call(job: Job) -> str:
    if not job.parameters:
        return job.model
    return f"{job.model}({', '.join(f'{name}={value!r}' for name, value in job.parameters.items())})"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No output of libraries; one thread, because more may round otherwise and results must not differ."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.set_num_threads(threads)
        _forget_sources()


def _forget_sources() -> None:
    """Drop the text of every traced graph: torch.fx keeps them all for tracebacks, some 150 a trial."""
    from torch.fx.graph_module import _loader

    for name in _loader.eval_cache:
        linecache.cache.pop(name, None)
    _loader.eval_cache.clear()
