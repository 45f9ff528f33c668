"""Tiling: which runs of operators become cascades, and in stripes of how many rows.

For every run of operators that can be one cascade, and for a number of stripe heights, two figures are known
without placing anything: the bytes live while it runs, and the cycles its stripes add. To cut the schedule
into such runs (most of them single operators) so that none needs more than some number of bytes, at the least
cost, is a shortest path; the least number of bytes for which the cost is within budget is found by bisection.
Offsets then are those of the real placement; since that may need more than is live, several ways are tried.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openneutron.compiler.emit.emit import Sketch, sketch
from openneutron.compiler.memory.place import ALIGNMENT, Apart, aligned, sane
from openneutron.compiler.memory.schedule import (
    MemoryPlan,
    Schedule,
    lives_of,
    plan_memory,
)
from openneutron.compiler.memory.storage import Buffer, Storage
from openneutron.compiler.microcode.cost import steps_cycles
from openneutron.compiler.stripes.bands import Cut, CutRun, can_cut
from openneutron.compiler.stripes.cascade import (
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
from openneutron.compiler.stripes.maps import RowMaps
from openneutron.compiler.stripes.stripes import Stage
from openneutron.litert.ir import Op, Tensor
from openneutron.options import CompileOptions
from openneutron.target import Target

# How many stripes may be cut; of 4/3 and 3/2, the last is a shorter one.
STRIPES = (4 / 3, 3 / 2, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 28, 32, 40, 56, 64, 112)
PACES = (2, 4)  # rounds for one row of the last stage, if there are strides before it
TRIALS = 6  # ways that are placed before the best is taken
EFFORT = 60_000  # runs looked at, some 50 us each: the longer the network, the shorter its runs
SHORTEST = 8  # but they may always have so many steps
PEAKS = 3  # how often the runs that need most are cut into bands
CUT_RUNS = 4  # at most so many at a time
GRAIN = 256  # the share of the memory that is not worth a further cut
SLACK = (0.05, 0.1, 0.2)
MOST_ADDED = 2.0  # the share of cycles that may be added to fit the SRAM at all


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
        self.stages = [
            sketches[op].opening if self.storage.is_given(op.inputs[0]) else sketches[op].stage
            for op in schedule.steps
        ]
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
            found = overlapping(self, wave, first, last)
            source = -1
            if found is not None:
                source, ahead = found
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


def _in_order(segment: Segment) -> tuple[int, ...]:
    return segment.last, segment.first, segment.height, segment.pace


class SegmentGraph:
    """All runs of a timeline, and the cheapest way through them under a limit of bytes."""

    def __init__(self, timeline: StepTimeline, budget: float):
        self.timeline = timeline
        self.segments = sorted(timeline.segments(budget), key=_in_order)
        self.sizes = sorted({segment.nbytes for segment in self.segments})
        self._cut_peaks(budget)

    def _cut_peaks(self, budget: float) -> None:
        """Cut the runs that need most into bands where the way through all of them then needs less."""
        tried: set[tuple[int, int]] = set()
        for _ in range(PEAKS):
            position = self.least(budget)
            if position == len(self.sizes):
                return
            most = least = self.sizes[position]
            runs = self._cuttable(most)
            if tried >= {(run.first, run.last) for run in runs}:
                return
            tried |= {(run.first, run.last) for run in runs}
            few = min(run.fewest() for run in runs)
            while least - few > max(most // GRAIN, ALIGNMENT):
                middle, before = (least + few) // 2, self.segments
                self._add(self._cut(runs, middle, budget))
                way = self.cheapest(middle)
                if way is not None and way[0] <= budget:
                    least = middle
                else:
                    self.segments, few = before, middle
            if least < most:  # what is placed may need more than what is live
                for share in SLACK:
                    self._add(self._cut(runs, int(least + share * (most - least)), budget))
                self.sizes = sorted({segment.nbytes for segment in self.segments})

    def cut_to(self, limit: int, budget: float) -> None:
        """Add runs in bands that need at most `limit` bytes, of those that otherwise need more."""
        self._add(self._cut(self._cuttable(limit + 1), limit, budget))

    def _cuttable(self, limit: int) -> list[CutRun]:
        """Runs that can be cut into bands and need at least `limit` bytes if they are not: the best few.

        Only those whose input is most of what they need: it is its rows that make room for later bands.
        """
        best: dict[tuple[int, int], Segment] = {}
        for segment in self.segments:
            if segment.source < 0 or segment.cuts:
                continue
            before = best.get((segment.first, segment.last), segment)
            if segment.nbytes <= before.nbytes:
                best[segment.first, segment.last] = segment
        runs: list[CutRun] = []
        for s in sorted(best.values(), key=lambda s: (s.nbytes, s.first, s.last)):
            if s.nbytes >= limit and self.timeline.can_cut(s.first, s.last):
                run = self.timeline.run(s.first, s.last, s.source)
                if limit // 2 < run.fewest() < limit:
                    runs.append(run)
            if len(runs) == CUT_RUNS:
                break
        return runs

    def _cut(self, runs: Sequence[CutRun], limit: int, budget: float) -> list[Segment]:
        """The runs in the cheapest bands that need at most `limit` bytes."""
        result = []
        for run in runs:
            cuts = run.cuts(limit)
            if cuts:
                plan = run.plan(cuts)
                cycles = run.added_cycles(plan)
                if cycles <= budget:
                    cut = cuts[0]
                    result.append(
                        Segment(
                            run.first,
                            run.last,
                            cut.height,
                            cut.pace,
                            run.nbytes(plan),
                            cycles,
                            run.source,
                            cuts,
                        )
                    )
        return result

    def _add(self, segments: Sequence[Segment]) -> None:
        self.segments = sorted([*self.segments, *segments], key=_in_order)

    def cheapest(self, limit: float) -> tuple[float, list[Segment]] | None:
        """The least added cycles with no run above `limit` bytes, and the runs; None if there is no way."""
        count = len(self.timeline.schedule.steps)
        best: list[tuple[float, Segment | None]] = [(math.inf, None)] * (count + 1)
        best[0] = (0.0, None)
        for segment in self.segments:  # sorted by their last step, so that what comes before a run is settled
            if segment.nbytes <= limit:
                cost = best[segment.first][0] + segment.cycles
                if cost < best[segment.last + 1][0]:
                    best[segment.last + 1] = (cost, segment)
        if math.isinf(best[count][0]):
            return None
        path: list[Segment] = []
        at = count
        while at:
            segment_here = best[at][1]
            assert segment_here is not None
            path.append(segment_here)
            at = segment_here.first
        return best[count][0], path[::-1]

    def least(self, budget: float) -> int:
        """The position in `sizes` of the least limit with a way that adds at most `budget` cycles."""

        def affordable(size: int) -> bool:
            way = self.cheapest(size)
            return way is not None and way[0] <= budget

        return bisect_left(self.sizes, True, key=affordable)

    def ways(self, budget: float) -> Iterator[list[Segment]]:
        """Different ways within the budget, from the fewest live bytes on."""
        seen: set[tuple[Segment, ...]] = set()
        for size in self.sizes[self.least(budget) :]:
            way = self.cheapest(size)
            if way is not None and way[0] <= budget and tuple(way[1]) not in seen:
                seen.add(tuple(way[1]))
                yield way[1]


def smallest_plan(
    schedules: Sequence[Schedule], target: Target, options: CompileOptions, whole: float | None = None
) -> MemoryPlan | None:
    """Size mode: the least scratch any of the schedules reaches within the budget of cycles.

    `whole` are the cycles the budget is a share of, if not those of these schedules; None if it is exceeded.
    """
    sketches = {op: sketch(op, target) for op in schedules[0].steps}
    whole = _cycles(sketches) if whole is None else whole
    budget = (1 + options.cycle_budget) * whole - _cycles(sketches)
    if budget < 0:
        return None
    timelines = [StepTimeline(schedule, sketches, options.fetch_constants_to_sram) for schedule in schedules]
    plain = plan_memory(schedules[0], trailing=timelines[0].trailing)
    plans = [(timelines[0].needed(plain), 0.0, plain)]
    for timeline in timelines:
        plans += [(timeline.needed(plan), cycles, plan) for cycles, plan in _smallest(timeline, budget)]
    return min(plans, key=lambda item: item[:2])[2]


def fitting_plan(
    schedules: Sequence[Schedule], target: Target, options: CompileOptions, limit: int
) -> MemoryPlan:
    """The plan with the fewest added cycles within `limit` bytes; if there is none, the smallest."""
    sketches = {op: sketch(op, target) for op in schedules[0].steps}
    budget = MOST_ADDED * _cycles(sketches)
    limit += schedules[0].storage.ports_bytes  # inputs and outputs come on top, wherever they lie
    fitting: list[tuple[float, MemoryPlan]] = []
    smallest: list[MemoryPlan] = []
    for schedule in schedules:
        timeline = StepTimeline(schedule, sketches, options.fetch_constants_to_sram)
        graph = SegmentGraph(timeline, budget)
        aim = limit
        for _ in range(TRIALS):  # what is placed may need more than what is live
            graph.cut_to(aim, budget)
            way = graph.cheapest(aim)
            if way is None:
                break
            cascades = timeline.cascades(way[1])
            plan = plan_memory(schedule, cascades, trailing=timeline.trailing)
            smallest.append(plan)
            if plan.scratch_bytes <= limit:
                fitting.append((timeline.added_cycles(cascades), plan))
                break
            aim -= plan.scratch_bytes - limit
        if not fitting:
            smallest += [plan for _, plan in _smallest(timeline, budget)]
    if fitting:
        return min(fitting, key=lambda item: item[0])[1]
    return min(smallest, key=lambda plan: plan.scratch_bytes)


def network_cycles(schedule: Schedule, target: Target) -> int:
    """Estimated cycles of a schedule with every step computed whole."""
    return _cycles({op: sketch(op, target) for op in schedule.steps})


def _cycles(sketches: Mapping[Op, Sketch]) -> int:
    return sum(s.cycles for s in sketches.values())


def _smallest(timeline: StepTimeline, budget: float) -> list[tuple[float, MemoryPlan]]:
    """Plans of a timeline within the budget, with the cycles they add.

    From the fewest live bytes on, until placing can win no more.
    """
    plans: list[tuple[float, MemoryPlan]] = []
    least = math.inf
    for way in SegmentGraph(timeline, budget).ways(budget):
        if len(plans) == TRIALS or max(segment.nbytes for segment in way) >= least:
            break
        cascades = timeline.cascades(way)
        cycles = timeline.added_cycles(cascades)
        if cycles <= budget:
            plans.append((cycles, plan_memory(timeline.schedule, cascades, trailing=timeline.trailing)))
            least = min(least, timeline.needed(plans[-1][1]))
    return plans
