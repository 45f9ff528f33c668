"""The search itself: ask the study for points, have workers run them, keep what comes, say how far it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openneutron.files import MOST_BYTES, files_below, make_folder, read_file, write_atomically
from openneutron.inputs.formats import FORMATS
from openneutron.search.front import pareto_front
from openneutron.search.space import Point, Space
from openneutron.search.study import Study
from openneutron.search.trial import DONE, FAILED, Job, Outcome
from openneutron.search.workers import Workers

LOG = "trials.log"
MakeWorkers = Callable[[Callable[[str], None]], Workers]


@dataclass(frozen=True)
class Row:
    """A trial as the tables show it."""

    point: Point
    outcome: Outcome
    on_front: bool


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    done: int
    total: int
    failed: int
    best: Row | None
    seconds_left: float | None


class Search:
    """A search over a space, kept in a folder: goes on where it stopped."""

    def __init__(self, space: Space, folder: Path, reports: bool = True):
        self.space, self.folder, self._reports = space, folder, reports
        self._study = Study(space, folder)
        self.note = self._study.note  # what was wrong with the folder and could be mended
        if self.note:
            self.log(self.note)
        self._files = _files(space) if space.ship else {}

    def run(
        self, make_workers: MakeWorkers, watch: Callable[[Progress], None] = lambda progress: None
    ) -> list[Row]:
        """Run what is left; whatever ends it, all that is finished is kept."""
        workers: Workers | None = None
        began, ran = time.monotonic(), 0
        size = self.space.grid_size
        total = (
            size
            if self.space.is_grid and size is not None
            else min(self.space.trials, size or self.space.trials)
        )
        finished = len(self._study.finished())
        best: Row | None = None
        failed = 0
        try:
            for batch in self._study.batches():
                points = dict(batch)
                if not points:
                    break
                workers = workers or make_workers(self.log)
                waiting: dict[int, Outcome] = {}
                order = iter(sorted(points))
                expected = next(order)
                for outcome in workers.run([self._job(i, point) for i, point in batch]):
                    ran += 1
                    self._keep(outcome)
                    self.log(_line(outcome, points[outcome.number], self.space.asked))
                    waiting[outcome.number] = outcome
                    # A sampler is told in order, or it would depend on the workers; a grid at once.
                    if self.space.is_grid:
                        self._study.tell(points[outcome.number], waiting.pop(outcome.number))
                    while expected in waiting:
                        self._study.tell(points[expected], waiting.pop(expected))
                        expected = next(order, -1)
                    best = self._better(best, Row(points[outcome.number], outcome, False))
                    failed += outcome.state == FAILED
                    left = (time.monotonic() - began) / ran * max(0, total - finished - ran)
                    watch(Progress(finished + ran, total, failed, best, left))
        finally:
            if workers is not None:
                workers.close()
            rows = self.rows()
            self._study.close()
        return rows

    def rows(self) -> list[Row]:
        """All finished trials, by number."""
        rows = self._study.finished()
        good = [i for i, (_, outcome) in enumerate(rows) if outcome.state == DONE]
        front = pareto_front([rows[i][1].figures for i in good], self.space.objectives)
        best = {good[i] for i in front}
        return [Row(point, outcome, i in best) for i, (point, outcome) in enumerate(rows)]

    def place(self, number: int) -> Path:
        """Where a trial's program and report are."""
        return self.folder / "trials" / f"{number:04d}"

    def log(self, text: str) -> None:
        """A line of the log."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def _better(self, one: Row | None, other: Row) -> Row | None:
        """The better of two in the first objective."""
        if other.outcome.state != DONE or one is None:
            return one if other.outcome.state != DONE else other
        name, aim = next(iter(self.space.objectives.items()))
        ahead = other.outcome.figures[name] - one.outcome.figures[name]
        return other if (ahead > 0 if aim == "maximize" else ahead < 0) else one

    def _job(self, number: int, point: Point) -> Job:
        chosen = {**self.space.fixed, **point}

        def part(prefix: str) -> dict[str, Any]:
            return {k.removeprefix(prefix): v for k, v in chosen.items() if k.startswith(prefix)}

        return Job(
            number=number,
            point=point,
            model=self.space.model,
            parameters=part("parameters."),
            options=part("options."),
            data=dict(self.space.data),
            limits=tuple((b.figure, b.sign, b.value) for b in self.space.limits),
            asked=self.space.asked,
            evaluate=self.space.needs_evaluation,
            folder=str(self.place(number).resolve()),
            reports=self._reports,
            files=self._files,
        )

    def _keep(self, outcome: Outcome) -> None:
        """Write what travelled back with the outcome."""
        for name, data in (("model.pte", outcome.program), ("report.html", outcome.report)):
            if data is not None:
                place = self.place(outcome.number)
                make_folder(place)
                write_atomically(place / name, data)


def _files(space: Space) -> dict[str, bytes]:
    """The files the space names, to travel with every trial."""
    texts = [space.model.split(".py:")[0] + ".py" if ".py:" in space.model else space.model]
    texts += [
        v.split(".py:")[0] + ".py" if ".py:" in v else v for v in space.data.values() if isinstance(v, str)
    ]
    contents: dict[str, bytes] = {}
    for text in texts:
        path = Path(text)
        for file in files_below(path) if path.is_dir() else [path, *_companions(path)]:
            if file.is_file():
                contents[str(file)] = read_file(file, "ON130", MOST_BYTES - sum(map(len, contents.values())))
    return contents


def _companions(path: Path) -> list[Path]:
    """What a file reads besides: a Python file may import its neighbours, a model keep weights there."""
    if path.suffix == ".py":
        return sorted(file for file in path.parent.glob("*.py") if file != path)
    return FORMATS[path.suffix].companions(path) if path.suffix in FORMATS and path.is_file() else []


def _line(outcome: Outcome, point: Point, asked: Sequence[str]) -> str:
    figures = " ".join(f"{name}={outcome.figures[name]:.6g}" for name in asked if name in outcome.figures)
    reason = f" {outcome.code} {outcome.reason}" if outcome.reason else ""
    where = json.dumps(point, sort_keys=True, default=str)
    return f"trial {outcome.number}: {outcome.state} in {outcome.seconds:.1f} s {where} {figures}{reason}"
