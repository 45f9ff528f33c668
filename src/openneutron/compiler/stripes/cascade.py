"""Cascades: operators computed together in stripes of rows, so that maps between them never are whole.

The last operator is computed `height` rows at a time. Before each stripe of it, every operator before it
makes the rows which that stripe needs and which are not there yet: halos are kept, not computed twice. A map
that only operators of the cascade read lives in a rolling buffer with as many rows as are needed at one time.
What goes in and what comes out is whole; but where the input dies with the cascade, its rows die one by one,
and the output may lie where they were: below the input if rows are made from the top, above it if from the
bottom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from openneutron.compiler.memory.place import aligned
from openneutron.compiler.memory.storage import Buffer, Home, Storage
from openneutron.compiler.microcode.format import MAX_STAGES, Step
from openneutron.compiler.stripes.stripes import Reach, Stage
from openneutron.litert.ir import Tensor

MOST_STAGES = MAX_STAGES
MOST_STEPS = 8_000  # what fits a record, less a little


class Lives(Protocol):
    """What a cascade must know of the program around it."""

    storage: Storage
    lives: dict[Buffer, tuple[int, int]]  # first and last step that touches a buffer
    rollable: frozenset[Tensor]  # tensors that are all there is in their scratch buffer


@dataclass(frozen=True)
class Overlap:
    """The output may begin at least `below` bytes before the input, or at least `above` bytes behind."""

    source: Tensor
    output: Tensor
    below: int
    above: int


@dataclass(frozen=True)
class CascadePlan:
    """Steps `first` to `last` of a schedule as one unit."""

    first: int
    last: int
    height: int  # rows of the last stage in a stripe
    rows: dict[Tensor, int] = field(hash=False)  # of rolling buffers
    down: tuple[Step, ...] = field(repr=False)  # the order from the top row to the bottom row
    up: tuple[Step, ...] = field(repr=False)  # the other way round; empty if nothing would be won
    overlap: Overlap | None


class Wave:
    """How far every stage is after each round, found from the last stage backwards.

    `made[k][t]` output rows of stage k exist after round t. Stages are added from the last to the first. A
    stripe of the last stage takes `pace` rounds: stages before it that make several rows for one of its rows
    make them one after the other, so that they in turn need fewer rows at a time.
    """

    def __init__(self, sink: Stage, height: int, pace: int = 1, mirrored: bool = False):
        count = -(-sink.height // height) * pace
        self.stripes = np.minimum(np.arange(1, count + 1) // pace * height, sink.height)
        self._pace = pace
        self.made: list[np.ndarray] = []  # from the last stage to the first
        self.stages: list[Stage] = []
        self.rows: dict[Tensor, int] = {}
        self._readers: dict[Tensor, list[tuple[Reach, np.ndarray]]] = {}
        self._mirrored = mirrored
        self._push(sink, self.stripes)

    def add(self, stage: Stage, rolls: bool) -> int:
        """Put a stage before those there are; the rows its output needs in memory, 0 for all of them."""
        readers = self._readers.get(stage.output, [])
        if readers:
            made = np.maximum.reduce([reach.top(at) for reach, at in readers])
            made = made if self._pace == 1 else _spread(made)
            if not rolls and made[-1] < stage.height:
                made = np.append(made[:-1], stage.height)
        else:  # only what comes after the cascade reads it: at the same pace
            count = len(self.stripes)
            made = -(-np.arange(1, count + 1) * stage.height // count)
        rows = 0
        if rolls and readers:
            low = np.minimum.reduce([reach.low(_before(at)) for reach, at in readers])
            rows = int(np.max(made - np.minimum(low, _before(made))))  # also rows nobody reads have a place
            if rows < stage.height:
                self.rows[stage.output] = rows
            else:
                rows = 0
        self._push(stage, made)
        return rows

    def _push(self, stage: Stage, made: np.ndarray) -> None:
        self.stages.append(stage)
        self.made.append(made)
        for reach in stage.reads:
            reach = reach.mirrored if self._mirrored else reach
            self._readers.setdefault(reach.tensor, []).append((reach, made))

    def ahead(self, source: Tensor) -> int:
        """Bytes the output of the last stage must begin before `source` not to meet rows still needed."""
        begins = [
            reach.begins(reach.low(_before(at) if at is self.made[0] else at))
            for reach, at in self._readers[source]
        ]
        return int(np.max(self.made[0] * self.stages[0].row_bytes - np.minimum.reduce(begins)))

    def steps(self) -> tuple[Step, ...]:
        """The steps in order."""
        result = []
        order = list(zip(range(len(self.stages)), reversed(self.stages), reversed(self.made), strict=True))
        for t in range(len(self.stripes)):
            for number, stage, made in order:
                begin, end = int(made[t - 1]) if t else 0, int(made[t])
                if self._mirrored:
                    begin, end = stage.height - end, stage.height - begin
                if begin < end:
                    result.append(Step(number, begin, end))
        return tuple(result)


def _spread(made: np.ndarray) -> np.ndarray:
    """Rows that are needed all at once, made evenly in the rounds since the last time any were needed."""
    (needed,) = np.nonzero(made - _before(made))
    rounds = np.interp(np.arange(len(made)), [-1, *needed], [0, *made[needed]])
    return np.floor(rounds + 1e-6).astype(made.dtype)


def _before(made: np.ndarray) -> np.ndarray:
    """Rows made before each stripe."""
    return np.concatenate([[0], made[:-1]])


def added_cycles(stage: Stage, made: np.ndarray, alone: bool) -> float:
    """Cycles that stripes cost a stage beyond computing it in one go; `alone`: no other stage in between."""
    counts = made - _before(made)
    counts = counts[counts > 0]
    work = stage.work
    again = np.full(len(counts), 0 if alone else work.constants)
    again[0] = work.constants
    cycles = np.maximum(work.compute * counts, (work.moved * counts + again) / work.bytes_per_cycle)
    return float(cycles.sum() - work.cycles(stage.height, True) + work.start * (len(counts) - 1))


def overlapping(lives: Lives, wave: Wave, first: int, last: int) -> tuple[Tensor, int] | None:
    """The input whose place the output may take best, and by how much it must lie before it; None if none."""
    out = wave.stages[0].output
    if not starts_own_buffer(lives, out, last):
        return None
    best: tuple[int, Tensor, int] | None = None
    made_here = {stage.output for stage in wave.stages}
    # What is read as a whole; of a picture in planes rows die too.
    whole = {t for s in wave.stages for t in s.whole if all(t is not r.tensor for r in s.reads)}
    for source in dict.fromkeys(r.tensor for stage in wave.stages for r in stage.reads):
        if source in made_here or source in whole or source.shape[0] != 1:
            continue
        if not _dies(lives, source, first, last) or source.dtype != out.dtype:
            continue
        ahead = wave.ahead(source)
        size_in, size_out = aligned(source.nbytes), aligned(out.nbytes)
        saved = size_in + size_out - max(aligned(max(ahead, 0)) + size_in, size_out)
        if saved > 0 and (best is None or saved > best[0]):
            best = saved, source, ahead
    return None if best is None else best[1:]


def starts_own_buffer(lives: Lives, out: Tensor, last: int) -> bool:
    """Whether the buffer of the last stage's output begins with it and is filled by it."""
    buffer = lives.storage.places[out].buffer
    return (
        buffer.home is Home.SCRATCH
        and lives.storage.whole(out)
        and lives.lives.get(buffer, (0, 0))[0] == last
    )


def _dies(lives: Lives, source: Tensor, first: int, last: int) -> bool:
    buffer = lives.storage.places[source].buffer
    if buffer.home is not Home.SCRATCH or not lives.storage.whole(source) or source not in lives.rollable:
        return False
    begin, end = lives.lives[buffer]
    return begin < first and end <= last


def make_cascade(
    lives: Lives, stages: Sequence[Stage], first: int, last: int, height: int, pace: int = 1
) -> CascadePlan:
    """The cascade of these stages, steps `first` to `last` of the schedule."""
    wave = _filled(lives, stages, last, Wave(stages[-1], height, pace))
    rows = dict(wave.rows)
    found = overlapping(lives, wave, first, last)
    overlap: Overlap | None = None
    up: tuple[Step, ...] = ()
    if found is not None:
        source, below = found
        out = stages[-1].output
        other = _filled(lives, stages, last, Wave(stages[-1], height, pace, mirrored=True))
        rows = {t: max(r, other.rows[t]) for t, r in rows.items() if t in other.rows}
        above = source.nbytes - out.nbytes + other.ahead(source)
        overlap = Overlap(source, out, below, above)
        up = other.steps()
    return CascadePlan(first, last, height, rows, wave.steps(), up, overlap)


def _filled(lives: Lives, stages: Sequence[Stage], last: int, wave: Wave) -> Wave:
    for stage in reversed(stages[:-1]):
        wave.add(stage, rolls_in(lives, stage.output, last))
    return wave


def rolls_in(lives: Lives, tensor: Tensor, last: int) -> bool:
    """Whether nothing behind step `last` reads a tensor, so that it need not be whole."""
    return tensor in lives.rollable and lives.lives[lives.storage.places[tensor].buffer][1] <= last
