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

from openneutron.compiler.emit.emit import Sketch, sketch
from openneutron.compiler.memory.place import ALIGNMENT
from openneutron.compiler.memory.schedule import (
    MemoryPlan,
    Schedule,
    plan_memory,
)
from openneutron.compiler.stripes.bands import CutRun
from openneutron.compiler.stripes.timeline import Segment, StepTimeline
from openneutron.litert.ir import Op
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target

TRIALS = 6  # ways that are placed before the best is taken
PEAKS = 3  # how often the runs that need most are cut into bands
CUT_RUNS = 4  # at most so many at a time
GRAIN = 256  # the share of the memory that is not worth a further cut
SLACK = (0.05, 0.1, 0.2)  # shares of what cuts save that may be given back to placing
MOST_ADDED = 2.0  # the share of cycles that may be added to fit the SRAM at all


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
            if least < most:
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
