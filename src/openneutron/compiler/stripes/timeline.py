"""Timelines: a schedule as a line of steps, and what every run of them would need and cost as one cascade."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openneutron.compiler.emit.emit import Sketch
from openneutron.compiler.memory.cascade import (
    MOST_STAGES,
    MOST_STEPS,
    CascadePlan,
    Overlap,
    Wave,
    added_cycles,
    dies_in,
    make_cascade,
    overlapping,
    rolls_from,
    starts_own_buffer,
    together,
)
from openneutron.compiler.memory.place import Apart, aligned, sane
from openneutron.compiler.memory.row_maps import RowMaps
from openneutron.compiler.memory.schedule import (
    MemoryPlan,
    Schedule,
    lives_of,
)
from openneutron.compiler.memory.storage import Buffer, Home, Storage
from openneutron.compiler.microcode.cost import steps_cycles
from openneutron.compiler.select.by_rows import Stage
from openneutron.compiler.stripes.bands import Cut, CutRun, can_cut
from openneutron.litert.ir import Op, Tensor

# How many stripes may be cut; of 4/3 and 3/2, the last is a shorter one.
STRIPES = (4 / 3, 3 / 2, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 28, 32, 40, 56, 64, 112)
PACES = (2, 4)  # rounds for one row of the last stage, if there are strides before it
EFFORT = 60_000  # runs looked at, some 50 us each: the longer the network, the shorter its runs
SHORTEST = 8  # but they may always have so many steps


@dataclass(frozen=True)
class Segment:
    """Steps `first` to `last` as one unit: `height` rows a stripe, 0 for a single step computed whole."""

    first: int
    last: int
    height: int
    pace: int  # rounds a stripe takes
    nbytes: int  # live while it runs
    cycles: float  # added by stripes
    source: int = -1  # the number of the buffer in whose place the output may be
    cuts: tuple[Cut, ...] = ()  # of bands


class StepTimeline:
    """A schedule as a line of steps: who is live when, which steps can be stages."""

    def __init__(self, schedule: Schedule, sketches: Mapping[Op, Sketch], streamed: bool):
        self.schedule = schedule
        self.storage: Storage = schedule.storage
        self.stages = [self._stage(op, sketches[op]) for op in schedule.steps]
        # Streamed constants are in SRAM while their step runs, and those of all stages of a cascade together.
        self.constants = [sketches[op].constants if streamed else 0 for op in schedule.steps]
        self.lives = lives_of(self.storage, [(op,) for op in schedule.steps])
        self.maps = RowMaps(self.storage)
        tried = len(schedule.steps) * (len(STRIPES) + len(PACES))
        self.longest = min(max(EFFORT // max(tried, 1), SHORTEST), MOST_STAGES)
        self.ending: list[list[Buffer]] = [[] for _ in schedule.steps]
        for buffer, (_, last) in self.lives.items():
            if 0 <= last < len(self.ending):
                self.ending[last].append(buffer)
        # A streamed operator may be cut into parts, of which each reads all of its input.
        self.trailing = {} if streamed else dict(self._trailing(sketches))

    def _stage(self, op: Op, sketch: Sketch) -> Stage | None:
        """A step as a stage; not one that writes a state, which another stage may still read."""
        if self.storage.places[op.outputs[0]].buffer.home is Home.STATE:
            return None
        return sketch.opening if self.storage.is_given(op.inputs[0]) else sketch.stage

    def _trailing(self, sketches: Mapping[Op, Sketch]) -> Iterator[tuple[int, Overlap]]:
        """Steps whose last results may lie over their input, as it dies with them."""
        for step, op in enumerate(self.schedule.steps):
            before, behind = sketches[op].trailing
            if not behind:
                continue
            source, out = op.operand(0), op.output
            buffer = self.storage.places[source].buffer
            dies = self.storage.whole(source) and self.lives.get(buffer, (0, -1))[1] == step
            if dies and starts_own_buffer(self, out, step):
                below, above = out.nbytes - before, max(buffer.nbytes - behind, 1)
                if not below:  # all of it is written at the end
                    above = 0
                yield step, Overlap(buffer, self.storage.places[out].buffer, below, above)

    def live(self, step: int) -> int:
        """Bytes in use while a step computed whole runs."""
        alive = [b for b, (first, last) in self.lives.items() if first <= step <= last]
        saved = sum(
            aligned(new.nbytes)
            for new, old in self.schedule.overwrites.items()
            if new in alive and old in alive and self.lives[new][0] == step
        )
        total = sum(aligned(b.nbytes) for b in alive) - saved
        if step in self.trailing:
            pair = self.trailing[step]
            first, second = aligned(pair.source.nbytes), aligned(pair.output.nbytes)
            total -= first + second - sane(Apart(-pair.below, pair.above), first, second).union(first, second)
        return total + self.constants[step]

    def segments(self, budget: float) -> Iterator[Segment]:
        """Every run worth a look: none that adds more cycles than the budget by itself."""
        most = 0
        for step in range(len(self.schedule.steps)):
            single = Segment(step, step, 0, 1, self.live(step), 0.0)
            most = max(most, single.nbytes)
            yield single
        for last, stage in enumerate(self.stages):
            if stage is not None:
                for height, pace in _stripes(stage.height):
                    yield from self._ending_at(last, height, pace, most, budget)

    def _ending_at(self, last: int, height: int, pace: int, most: int, budget: float) -> Iterator[Segment]:
        """The runs whose last step is `last`, from the shortest to the longest."""
        sink = self.stages[last]
        assert sink is not None
        wave = Wave(self.maps, sink, height, pace)
        alive = sum(aligned(b.nbytes) for b, (first, end) in self.lives.items() if first <= last <= end)
        alive += aligned(sink.sums or 0)
        cycles = 0.0
        rolled = constants = records = 0
        read: dict[int, set[Tensor]] = {}
        whole: set[int] = set()
        own = added_cycles(sink, wave.made[0], alone=False)
        for first in range(last, -1, -1):
            stage = self.stages[first]
            if stage is None or last - first >= self.longest or (stage.scattered and first < last):
                return
            records += len(stage.works)
            if records > MOST_STAGES or records * len(wave.stripes) > MOST_STEPS:
                return
            if first < last:
                number = self.maps.number[stage.output]
                if number in whole or (
                    not self.maps.rows[number] and read.get(number, set()) - {stage.output}
                ):
                    return  # something in the run needs more of this step's buffer than its rows
                alive += sum(aligned(b.nbytes) for b in self.ending[first])
                wave.add(stage, dies_in(self, stage.output, last))
                if rolls_from(self, stage.output, first, last) and (rows := wave.rolling_rows(number)):
                    nbytes = self.maps.buffers[number].nbytes
                    rolled += aligned(nbytes) - aligned(rows * self.maps.row_bytes(number))
            constants += self.constants[first]
            if first < last:
                cycles += added_cycles(stage, wave.made[-1], alone=False)
                total = cycles + own
            else:
                total = added_cycles(sink, wave.made[0], alone=True)
            for tensor in (*(r.tensor for r in stage.reads), *stage.whole):
                read.setdefault(self.maps.number[tensor], set()).add(tensor)
            whole.update(self.maps.number[t] for t in stage.whole)
            if cycles > budget:
                return
            need = alive - rolled + constants
            if total > budget or need - aligned(sink.output.nbytes) >= most:
                continue
            overlap = overlapping(self, wave, first, last)
            source = -1
            if overlap is not None:
                source, ahead = overlap
                apart = aligned(self.maps.buffers[source].nbytes) + aligned(sink.output.nbytes)
                need -= apart - together(self.maps, source, sink.output, ahead)
            if need < most:
                yield Segment(first, last, height, pace, need, total, source)

    def needed(self, plan: MemoryPlan) -> int:
        """The scratch of a plan, and the most constants that are streamed for one of its units."""
        units = (sum(self.constants[unit.first : unit.last + 1]) for unit in plan.units)
        return plan.scratch_bytes + max(units, default=0)

    def cascades(self, segments: Sequence[Segment]) -> list[CascadePlan]:
        """The cascades of a way."""
        return [self._cascade(segment) for segment in segments if segment.height]

    def added_cycles(self, cascades: Sequence[CascadePlan]) -> float:
        """Cycles these cascades add, counted step by step."""
        total = 0.0
        for cascade in cascades:
            stages = self._stages(cascade.first, cascade.last)
            if cascade.bands:
                total += self.run(cascade.first, cascade.last, -1).added_cycles(cascade)
                continue
            works = [work for stage in stages for work in stage.works]
            whole = sum(w.cycles(stage.height // stage.unit, True) for stage in stages for w in stage.works)
            total += max(steps_cycles(works, cascade.down), steps_cycles(works, cascade.up)) - whole
        return total

    def _stages(self, first: int, last: int) -> list[Stage]:
        return [stage for stage in self.stages[first : last + 1] if stage is not None]

    def run(self, first: int, last: int, source: int) -> CutRun:
        """Steps that may be cut into bands."""
        stages = self._stages(first, last)
        inside = {self.maps.buffers[n] for n in (source, *(self.maps.number[s.output] for s in stages))}
        other = sum(self.constants[first : last + 1])
        for buffer, (begin, end) in self.lives.items():
            if begin <= last and end >= first and buffer not in inside:
                other += aligned(buffer.nbytes)
        return CutRun(self, stages, first, last, source, other)

    def can_cut(self, first: int, last: int) -> bool:
        """Whether these steps may be cut into bands."""
        return can_cut(self, self._stages(first, last), first, last)

    def _cascade(self, segment: Segment) -> CascadePlan:
        if segment.cuts:
            return self.run(segment.first, segment.last, segment.source).plan(segment.cuts)
        stages = self._stages(segment.first, segment.last)
        return make_cascade(self, stages, segment.first, segment.last, segment.height, segment.pace)


def _stripes(rows: int) -> list[tuple[int, int]]:
    """Stripe heights and paces to try, the coarsest first; more rounds than one only for single rows."""
    heights = sorted({math.ceil(rows / count) for count in (*STRIPES, rows) if count <= rows}, reverse=True)
    return [(height, 1) for height in heights] + [(1, pace) for pace in PACES]
