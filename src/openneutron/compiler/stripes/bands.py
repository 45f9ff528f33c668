"""Bands: cascades cut where memory is short, which is at their beginning.

While a large input dies row by row, most of it is still there when the first rows of the output are made, and
what the layers between need for rolling buffers comes on top. So the output is made in bands of rows, and a
band in tiles of columns: each tile is a cascade of its own whose rolling buffers are only as wide as it needs
them. What two tiles, or two bands, both need of a map between is computed for each of them. Later bands have
the room of input rows that are done, and so larger and fewer tiles.

For a limit of bytes, the cheapest bands are a shortest path over the rows of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from openneutron.compiler.memory.cascade import (
    Band,
    CascadePlan,
    Columns,
    Lives,
    Overlap,
    Ring,
    Wave,
    rolls_from,
    starts_own_buffer,
)
from openneutron.compiler.memory.place import ALIGNMENT, aligned
from openneutron.compiler.memory.storage import Buffer, Home
from openneutron.compiler.microcode.cost import RowWork, steps_cycles
from openneutron.compiler.select.by_rows import Stage
from openneutron.litert.ir import Tensor

TILES = (1, 2, 3, 4, 5, 6, 8)
LEAST_COLUMNS = 4  # of the output in a tile
STRIPES = ((1, 1), (1, 2), (1, 4), (2, 1), (4, 1))  # rows of the output, and rounds that they take


@dataclass(frozen=True)
class Cut:
    """A band: rows `first` to `end` - 1 of the output in so many tiles, in stripes as a cascade's."""

    first: int
    end: int
    tiles: int
    height: int
    pace: int


@dataclass(frozen=True, eq=False)
class _Way:
    """One way to compute bands: bytes of its rolling buffers, and of each stage the mean share of a tile."""

    tiles: int
    height: int
    pace: int
    rings: int
    share: np.ndarray


class CutRun:
    """Steps `first` to `last` of a schedule as a cascade that may be cut into bands."""

    def __init__(self, lives: Lives, stages: Sequence[Stage], first: int, last: int, source: int, other: int):
        """`source` is the number of the buffer that dies row by row, `other` the bytes live beside all."""
        self.lives, self.stages = lives, stages
        self.first, self.last = first, last
        self.source, self.other = source, other
        self.sink = stages[-1]
        self._tiles: dict[int, list[tuple[Columns, ...]]] = {}

    def fewest(self) -> int:
        """No cut needs fewer bytes."""
        return self.other + aligned(self.lives.maps.buffers[self.source].nbytes)

    def cuts(self, limit: int) -> tuple[Cut, ...]:
        """The cheapest bands within `limit` bytes; none if there are none."""
        room = limit - self.fewest()
        rows = self.sink.height
        best: list[tuple[float, Cut | None]] = [*[(np.inf, None)] * rows, (0.0, None)]
        first = np.arange(rows)
        ends = [
            np.minimum(
                (room - way.rings + self._dead[:-1]) // ALIGNMENT * ALIGNMENT // self.sink.row_bytes, rows
            )
            for way in self._ways
        ]
        costs = [
            self._cycles(way, first, np.maximum(end, first + 1))
            for way, end in zip(self._ways, ends, strict=True)
        ]
        for at in range(rows - 1, -1, -1):
            for way, end, cost in zip(self._ways, ends, costs, strict=True):
                stop = int(end[at])
                if stop > at and (total := float(cost[at]) + best[stop][0]) < best[at][0]:
                    best[at] = total, Cut(at, stop, way.tiles, way.height, way.pace)
        result: list[Cut] = []
        cut = best[0][1]
        while cut is not None:
            result.append(cut)
            cut = best[cut.end][1]
        return tuple(result)

    def plan(self, cuts: Sequence[Cut]) -> CascadePlan:
        """The cascade in these bands."""
        bands = tuple(self._band(cut, number) for number, cut in enumerate(cuts))
        source = self.lives.maps.buffers[self.source]
        output = self.lives.storage.places[self.sink.output].buffer
        overlap = Overlap(source, output, max(band.made - band.dead for band in bands), source.nbytes)
        return CascadePlan(self.first, self.last, cuts[0].height, {}, (), (), overlap, bands=bands)

    def nbytes(self, plan: CascadePlan) -> int:
        """Bytes live while it runs."""
        need = (aligned(b.made) - b.dead + b.rings_bytes for b in plan.bands)
        return self.fewest() + max(need)

    def added_cycles(self, plan: CascadePlan) -> float:
        """Cycles that it takes beyond those of the stages computed whole."""
        works = [stage.work for stage in self.stages]
        total = -sum(
            work.cycles(s.height, True) + work.call for work, s in zip(works, self.stages, strict=True)
        )
        for band in plan.bands:
            for columns in band.tiles:
                widths = [
                    (end - begin) / _width(s) for (begin, end), s in zip(columns, self.stages, strict=True)
                ]
                parts = [_part(work, width) for work, width in zip(works, widths, strict=True)]
                total += steps_cycles(parts, band.steps) + sum(work.call for work in parts)
        return total

    def _band(self, cut: Cut, number: int) -> Band:
        maps = self.lives.maps
        wave = self._wave(cut.height, cut.pace, (cut.first, cut.end))
        tiles = self._columns(cut.tiles)
        rings: dict[Buffer, Ring] = {}
        for index, stage in enumerate(self.stages[:-1]):
            buffer = maps.buffers[maps.number[stage.output]]
            rows = self._ring_rows(wave, stage)
            width = max(tile[index][1] - tile[index][0] for tile in tiles)
            nbytes = rows * width * (stage.row_bytes // _width(stage))
            name = f"{buffer.name}, band {number}"
            rings[buffer] = Ring(rows, Buffer(Home.SCRATCH, buffer.number, nbytes, name))
        made = cut.end * self.sink.row_bytes
        return Band(tuple(tiles), wave.steps(), rings, made, int(self._dead[cut.first]))

    def _wave(self, height: int, pace: int, rows: tuple[int, int]) -> Wave:
        wave = Wave(self.lives.maps, self.sink, height, pace, rows=rows)
        for stage in reversed(self.stages[:-1]):
            wave.add(stage, True)
        return wave

    def _ring_rows(self, wave: Wave, stage: Stage) -> int:
        return wave.rolling_rows(self.lives.maps.number[stage.output]) or stage.height

    def _columns(self, count: int) -> list[tuple[Columns, ...]]:
        """Of every tile the columns of each stage's output."""
        if count not in self._tiles:
            width = _width(self.sink)
            bounds = [i * width // count for i in range(count + 1)]
            self._tiles[count] = [self._reached(pair) for pair in pairwise(bounds)]
        return self._tiles[count]

    def _reached(self, columns: Columns) -> tuple[Columns, ...]:
        need: dict[Tensor, Columns] = {self.sink.output: columns}
        for stage in reversed(self.stages):
            for reach in stage.columns:
                low, high = reach.needed(*need[stage.output])
                begin, end = need.get(reach.tensor, (low, high))
                need[reach.tensor] = min(low, begin), max(high, end)
        return tuple(need[stage.output] for stage in self.stages)

    @cached_property
    def _dead(self) -> np.ndarray:
        """Bytes from the begin of the input that no output row from each one on needs."""
        nbytes = self.lives.maps.buffers[self.source].nbytes
        begins = [
            reach.begins(reach.low(low), nbytes)
            for low, stage in zip(self._rows[0], self.stages, strict=True)
            for reach in stage.reads
            if self.lives.maps.number[reach.tensor] == self.source
        ]
        return reduce(np.minimum, begins) // ALIGNMENT * ALIGNMENT

    @cached_property
    def _rows(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The first row of every stage that output rows from each one on need, the end of those before."""
        every = np.arange(self.sink.height + 1)
        low, top = {self.sink.output: every}, {self.sink.output: every}
        for stage in reversed(self.stages):
            for reach in stage.reads:
                first, end = reach.low(low[stage.output]), reach.top(top[stage.output])
                low[reach.tensor] = np.minimum(first, low.get(reach.tensor, first))
                top[reach.tensor] = np.maximum(end, top.get(reach.tensor, end))
        return [low[s.output] for s in self.stages], [top[s.output] for s in self.stages]

    def _cycles(self, way: _Way, first: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Cycles of bands from row `first` to row `end`, nearly: tiles are taken as equally wide."""
        rounds = -(-(end - first) // way.height) * way.pace
        total = np.zeros(len(first))
        for low, top, stage, share in zip(*self._rows, self.stages, way.share, strict=True):
            rows = top[end] - low[first]
            steps = np.minimum(rows, rounds)
            work = _part(stage.work, share)
            moved = (work.moved * rows + work.constants * steps) / work.bytes_per_cycle
            total += np.maximum(work.compute * rows, moved) + work.call + work.start * (steps - 1)
        return way.tiles * total

    @cached_property
    def _ways(self) -> list[_Way]:
        result = []
        for height, pace in STRIPES:
            if height > self.sink.height:
                continue
            # From the top, and from somewhere else, where there is no padding in place of rows.
            waves = [self._wave(height, pace, (at, self.sink.height)) for at in (0, self.sink.height // 2)]
            rows = [max(self._ring_rows(wave, stage) for wave in waves) for stage in self.stages[:-1]]
            for count in TILES:
                if count > 1 and _width(self.sink) < count * LEAST_COLUMNS:
                    continue
                widths = np.array([[end - begin for begin, end in tile] for tile in self._columns(count)])
                full = np.array([_width(stage) for stage in self.stages])
                each = [s.row_bytes // _width(s) for s in self.stages]
                rings = sum(
                    aligned(r * int(w) * e) for r, w, e in zip(rows, widths.max(0), each, strict=False)
                )
                result.append(_Way(count, height, pace, rings, widths.mean(0) / full))
        return result


def can_cut(lives: Lives, stages: Sequence[Stage], first: int, last: int) -> bool:
    """Whether a cascade can be cut: its stages take columns, maps between them share no memory."""
    storage, maps = lives.storage, lives.maps
    made = {maps.number[stage.output]: stage.output for stage in stages}
    for step, stage in enumerate(stages, first):
        if not stage.columns or any(t not in {r.tensor for r in stage.reads} for t in stage.whole):
            return False
        if step < last and not (
            rolls_from(lives, stage.output, step, last)
            and storage.whole(stage.output)
            and maps.tensors[maps.number[stage.output]] == 1
        ):
            return False
        if any(
            storage.places[r.tensor].pitch or made.get(maps.number[r.tensor], r.tensor) is not r.tensor
            for r in stage.reads
        ):
            return False
    return len(made) == len(stages) and starts_own_buffer(lives, stages[-1].output, last)


def _width(stage: Stage) -> int:
    return stage.output.shape[2]


def _part(work: RowWork, share: float) -> RowWork:
    """The work of rows of which only a share is computed."""
    return replace(work, compute=work.compute * share, moved=work.moved * share)
