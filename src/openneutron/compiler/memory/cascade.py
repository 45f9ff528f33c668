"""Cascades: operators computed together in stripes of rows, so that maps between them never are whole.

The last operator is computed `height` rows at a time. Before each stripe of it, every operator before it
makes the rows which that stripe needs and which are not there yet: halos are kept, not computed twice. A map
that only operators of the cascade read lives in a rolling buffer with as many rows as are needed at one time.
What goes in and what comes out is whole; but where the input dies with the cascade, its rows die one by one,
and the output may lie where they were: below the input if rows are made from the top, above it if from the
bottom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

import numpy as np

from openneutron.compiler.memory.place import aligned
from openneutron.compiler.memory.row_maps import RowMaps
from openneutron.compiler.memory.storage import Buffer, Home, Storage
from openneutron.compiler.microcode.format import MAX_STAGES, Step
from openneutron.compiler.select.by_rows import Reach, Stage
from openneutron.litert.ir import Tensor

MOST_STAGES = MAX_STAGES
MOST_STEPS = 8_000  # what fits a record, less a little


class Lives(Protocol):
    """What a cascade must know of the program around it."""

    storage: Storage
    lives: dict[Buffer, tuple[int, int]]  # first and last step that touches a buffer
    maps: RowMaps


@dataclass(frozen=True)
class Overlap:
    """The output may begin at least `below` bytes before the input, or at least `above` bytes behind."""

    source: Buffer
    output: Buffer
    below: int
    above: int


@dataclass(frozen=True)
class CascadePlan:
    """Steps `first` to `last` of a schedule as one unit."""

    first: int
    last: int
    height: int  # rows of the last stage in a stripe
    rows: dict[Buffer, int] = field(hash=False)  # of rolling buffers
    down: tuple[Step, ...] = field(repr=False)  # the order from the top row to the bottom row
    up: tuple[Step, ...] = field(repr=False)  # the other way round; empty if nothing would be won
    overlap: Overlap | None
    accumulates: bool = False  # the last stage takes all rows of its input
    sums: Buffer | None = None  # what it keeps between stripes
    bands: tuple[Band, ...] = ()  # in place of `rows`, `down` and `up` where it is cut


@dataclass(frozen=True)
class Band:
    """Rows of a cascade's output that are made tile by tile of columns, with rolling buffers of their own."""

    tiles: tuple[tuple[Columns, ...], ...]  # of every tile, for each stage
    steps: tuple[Step, ...] = field(repr=False)  # the same for all tiles
    rings: dict[Buffer, Ring] = field(hash=False)  # in place of buffers between stages
    made: int  # bytes of the output when it is done
    dead: int  # bytes of the input that overlaps the output, from its begin, before it starts

    @property
    def rings_bytes(self) -> int:
        """All its rolling buffers."""
        return sum(aligned(ring.buffer.nbytes) for ring in self.rings.values())


@dataclass(frozen=True)
class Ring:
    """A rolling buffer of a band: so many rows, as wide as the widest tile needs them."""

    rows: int
    buffer: Buffer


Columns = tuple[int, int]  # the first and the one behind the last


@dataclass(frozen=True, eq=False)
class Progress:
    """Rows that a stage has made after each round and before it; it makes `unit` of them together."""

    made: np.ndarray
    before: np.ndarray
    unit: int


class Wave:
    """How far every stage is after each round, found from the last stage backwards.

    `made[k][t]` output rows of stage k exist after round t. Stages are added from the last to the first. A
    stripe of the last stage takes `pace` rounds: stages before it that make several rows for one of its rows
    make them one after the other, so that they in turn need fewer rows at a time. Of a band, `rows` of the
    last stage's output, stages begin with the first row that it needs.
    """

    def __init__(
        self,
        maps: RowMaps,
        sink: Stage,
        height: int,
        pace: int = 1,
        mirrored: bool = False,
        rows: tuple[int, int] | None = None,
    ):
        height = -(-height // sink.unit) * sink.unit
        first, end = rows or (0, sink.height)
        count = -(-(end - first) // height) * pace
        self.stripes = np.minimum(first + np.arange(1, count + 1) // pace * height, end)
        self._pace = pace
        self._band = rows is not None
        self.made: list[np.ndarray] = []  # from the last stage to the first
        self.starts: list[int] = []  # rows before the first one made
        self.stages: list[Stage] = []
        self.makers: dict[int, list[Progress]] = {}  # of buffers, by their number
        self.readers: dict[int, list[tuple[Reach, Progress]]] = {}
        self._maps = maps
        self._mirrored = mirrored
        self._push(sink, self.stripes, first)

    def add(self, stage: Stage, dies: bool) -> None:
        """Put a stage before those there are; `dies`: nothing behind the cascade reads what it makes."""
        readers = [
            (reach, at)
            for reach, at in self.readers.get(self._maps.number[stage.output], ())
            if reach.tensor is stage.output or self._maps.share(reach.tensor, stage.output)
        ]
        start = 0
        if readers:
            if self._band:
                start = min(int(reach.low(at.before[:1])[0]) for reach, at in readers)
            made = reduce(np.maximum, [reach.top(at.made) for reach, at in readers], np.array(start))
            made = made if self._pace == 1 else _spread(made, start)
            if not dies and made[-1] < stage.height:
                made = np.append(made[:-1], stage.height)
        else:  # only what comes after the cascade reads it: at the same pace
            count = len(self.stripes)
            made = -(-np.arange(1, count + 1) * stage.height // count)
        self._push(stage, made if stage.unit == 1 else -(-made // stage.unit) * stage.unit, start)

    def rolling_rows(self, number: int) -> int:
        """The rows a buffer needs in memory if all its makers and readers are here; 0 for all of them."""
        makers, readers = self.makers[number], self.readers.get(number)
        if not readers:
            return 0
        low = reduce(np.minimum, [reach.low(at.before) for reach, at in readers])
        low = reduce(
            np.minimum, [maker.before for maker in makers], low
        )  # also rows nobody reads have a place
        unit = math.lcm(*(maker.unit for maker in makers))  # rows made together lie behind one another
        rows = int(np.max(reduce(np.maximum, [maker.made for maker in makers]) - low))
        rows = -(-rows // unit) * unit
        return rows if rows < self._maps.rows[number] else 0

    def _push(self, stage: Stage, made: np.ndarray, start: int) -> None:
        self.stages.append(stage)
        self.made.append(made)
        self.starts.append(start)
        at = Progress(made, _before(made, start), stage.unit)
        self.makers.setdefault(self._maps.number[stage.output], []).append(at)
        for reach in stage.reads:
            reach = reach.mirrored if self._mirrored else reach
            self.readers.setdefault(self._maps.number[reach.tensor], []).append((reach, at))

    def ahead(self, source: int) -> int:
        """Bytes the output of the last stage must begin before a buffer not to meet rows still needed."""
        nbytes = self._maps.buffers[source].nbytes
        begins = [
            reach.begins(reach.low(at.before if at.made is self.made[0] else at.made), nbytes)
            for reach, at in self.readers[source]
        ]
        return int(np.max(self.made[0] * self.stages[0].row_bytes - reduce(np.minimum, begins)))

    def steps(self) -> tuple[Step, ...]:
        """The steps in order."""
        result = []
        order: list[tuple[int, Stage, np.ndarray, int]] = []
        records = 0
        every = zip(self.stages, self.made, self.starts, strict=True)
        for stage, made, start in reversed(list(every)):
            order.append((records, stage, made, start))
            records += len(stage.works)
        for t in range(len(self.stripes)):
            for number, stage, made, start in order:
                begin, end = int(made[t - 1]) if t else start, int(made[t])
                if self._mirrored:
                    begin, end = stage.height - end, stage.height - begin
                if begin < end:
                    calls = range(number, number + len(stage.works))
                    result += [Step(call, begin // stage.unit, end // stage.unit) for call in calls]
        return tuple(result)


def _spread(made: np.ndarray, start: int) -> np.ndarray:
    """Rows that are needed all at once, made evenly in the rounds since the last time any were needed."""
    (needed,) = np.nonzero(made - _before(made, start))
    rounds = np.interp(np.arange(len(made)), [-1, *needed], [start, *made[needed]])
    return np.floor(rounds + 1e-6).astype(made.dtype)


def _before(made: np.ndarray, start: int = 0) -> np.ndarray:
    """Rows made before each stripe."""
    return np.concatenate([[start], made[:-1]])


def added_cycles(stage: Stage, made: np.ndarray, alone: bool) -> float:
    """Cycles that stripes cost a stage beyond computing it in one go; `alone`: no other stage in between."""
    counts = made - _before(made)
    counts = counts[counts > 0]
    work = stage.work
    again = np.full(len(counts), 0 if alone else work.constants)
    again[0] = work.constants
    cycles = np.maximum(work.compute * counts, (work.moved * counts + again) / work.bytes_per_cycle)
    starts = 0 if alone else work.start * (len(counts) - 1)
    return float(cycles.sum() - work.cycles(stage.height, True) + starts)


def overlapping(lives: Lives, wave: Wave, first: int, last: int) -> tuple[int, int] | None:
    """The buffer whose place the output may take best, and how far before it the output must begin."""
    out, maps = wave.stages[0].output, lives.maps
    if wave.stages[0].scattered or not starts_own_buffer(lives, out, last):
        return None
    best: tuple[int, int, int] | None = None
    # What is read as a whole; of an image in planes rows die too.
    whole = {maps.number[t] for s in wave.stages for t in s.whole if all(t is not r.tensor for r in s.reads)}
    for source, readers in wave.readers.items():
        if source in wave.makers or source in whole or not maps.rows[source]:
            continue
        begin, end = lives.lives[maps.buffers[source]]
        if begin >= first or end > last or any(reach.tensor.dtype != out.dtype for reach, _ in readers):
            continue
        ahead = wave.ahead(source)
        saved = (
            aligned(maps.buffers[source].nbytes) + aligned(out.nbytes) - together(maps, source, out, ahead)
        )
        if saved > 0 and (best is None or saved > best[0]):
            best = saved, source, ahead
    return None if best is None else best[1:]


def together(maps: RowMaps, source: int, out: Tensor, ahead: int) -> int:
    """Bytes that a buffer and the output that takes its place need."""
    return max(aligned(max(ahead, 0)) + aligned(maps.buffers[source].nbytes), aligned(out.nbytes))


def starts_own_buffer(lives: Lives, out: Tensor, last: int) -> bool:
    """Whether the buffer of the last stage's output begins with it and is filled by it."""
    buffer = lives.storage.places[out].buffer
    return (
        buffer.home is Home.SCRATCH
        and lives.storage.whole(out)
        and lives.lives.get(buffer, (0, 0))[0] == last
    )


def make_cascade(
    lives: Lives, stages: Sequence[Stage], first: int, last: int, height: int, pace: int = 1
) -> CascadePlan:
    """The cascade of these stages, steps `first` to `last` of the schedule."""
    maps = lives.maps
    wave, rows = _filled(lives, stages, last, Wave(maps, stages[-1], height, pace))
    overlapped = overlapping(lives, wave, first, last)
    overlap: Overlap | None = None
    up: tuple[Step, ...] = ()
    if overlapped is not None:
        number, below = overlapped
        source, out = maps.buffers[number], stages[-1].output
        other, others = _filled(lives, stages, last, Wave(maps, stages[-1], height, pace, mirrored=True))
        rows = {buffer: max(count, others[buffer]) for buffer, count in rows.items() if buffer in others}
        above = source.nbytes - out.nbytes + other.ahead(number)
        overlap = Overlap(source, lives.storage.places[out].buffer, below, above)
        up = other.steps()
    sink, sums = stages[-1], None
    if sink.sums:
        sums = Buffer(Home.SCRATCH, -1 - last, sink.sums, f"{sink.output.name}, sums")
    return CascadePlan(first, last, height, rows, wave.steps(), up, overlap, sink.sums is not None, sums)


def _filled(lives: Lives, stages: Sequence[Stage], last: int, wave: Wave) -> tuple[Wave, dict[Buffer, int]]:
    """All stages in the wave, and the rows of the buffers that roll."""
    rows: dict[Buffer, int] = {}
    for step, stage in zip(range(last - 1, -1, -1), reversed(stages[:-1]), strict=False):
        wave.add(stage, dies_in(lives, stage.output, last))
        if rolls_from(lives, stage.output, step, last):
            number = lives.maps.number[stage.output]
            if count := wave.rolling_rows(number):
                rows[lives.maps.buffers[number]] = count
    return wave, rows


def dies_in(lives: Lives, tensor: Tensor, last: int) -> bool:
    """Whether nothing behind step `last` reads a tensor or what shares its rows."""
    number = lives.maps.number[tensor]
    return lives.maps.rows[number] > 0 and lives.lives[lives.maps.buffers[number]][1] <= last


def rolls_from(lives: Lives, tensor: Tensor, first: int, last: int) -> bool:
    """Whether steps `first` to `last` make and read all of a tensor's buffer: it need not be whole."""
    buffer = lives.maps.buffers[lives.maps.number[tensor]]
    return dies_in(lives, tensor, last) and lives.lives[buffer][0] == first
