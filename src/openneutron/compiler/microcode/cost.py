"""Estimated cycles of kernel calls: the larger of a compute and a memory bound, plus what starting costs.

These are estimates of a simple model, not measurements (docs/cost-model.md). The compute bound counts the
passes of an output-stationary array: `pipes` output channels side by side, `macs_per_pipe` input channels
each; a channel count that does not fill the array wastes the rest, and a depthwise convolution uses one
multiplier a pipe. When a tile of outputs is done its accumulators are emptied, which stops the array. The
parameters are the target's (`CostModel`); `benchmarks/bench_cost_model.py` prints their errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from openneutron.compiler.microcode import format as mc
from openneutron.targets.chip import Target


class Bound(Enum):
    """What limits a call."""

    MAC = "mac"
    SRAM = "sram"
    FLASH = "flash"
    OVERHEAD = "overhead"


@dataclass(frozen=True)
class Cost:
    """Estimated cost of one call."""

    macs: int
    bytes_moved: int
    cycles: int
    bound: Bound


@dataclass(frozen=True)
class Slot:
    """When a call runs: `advance` is by how much the CPU's clock moves on, less than `cycles` for a copy."""

    start: int
    cycles: int
    advance: int
    bound: Bound


@dataclass(frozen=True)
class _Pipes:
    """The target's array as the records' cost rules see it."""

    target: Target

    @property
    def pipes(self) -> int:
        return self.target.pipes * self.target.units

    @property
    def depth(self) -> int:
        return self.target.macs_per_pipe


def cost_of(call: mc.KernelCall, target: Target) -> Cost:
    """The cost of one call by itself, as if nothing ran beside it."""
    model = target.cost
    if isinstance(call, mc.Prefetch):
        cycles = call.size * target.frequency_hz // model.flash_bytes_per_second
        return Cost(0, call.size, model.copy_setup_cycles + cycles, Bound.FLASH)
    if isinstance(call, mc.Wait):
        return Cost(0, 0, model.copy_setup_cycles, Bound.OVERHEAD)
    if isinstance(call, mc.Cascade | mc.Loop):
        return Cost(0, 0, 0, Bound.OVERHEAD)  # by itself; with its stages, see `cascade_cost`
    work, moved = call.work(_Pipes(target)), call.moved()
    compute = int(work.passes + work.tiles * model.drain_cycles + work.instructions * model.island_cycles)
    memory = int((moved + _slower(call.constants(), target)) / model.sram_bytes_per_cycle)
    longer = max(compute, memory)
    bound = Bound.OVERHEAD if longer < model.call_cycles else Bound.MAC if compute >= memory else Bound.SRAM
    return Cost(work.macs, moved, model.call_cycles + longer, bound)


def _slower(constants: int, target: Target) -> int:
    """By how many bytes of SRAM's rate constants take longer, where the NPU reads them from slower flash."""
    rate = target.cost.flash_bytes_per_second / target.frequency_hz
    slower = target.reads_flash and rate < target.cost.sram_bytes_per_cycle
    return round(constants * (target.cost.sram_bytes_per_cycle / rate - 1)) if slower else 0


def costs_of(calls: Sequence[mc.KernelCall], target: Target) -> list[Cost]:
    """The cost of each call; a cascade's is what its stripes add to its stages, which come behind it.

    The calls in the body of a loop cost what they do all the times that they run.
    """
    costs: list[Cost] = []
    times = left = 1
    made: Iterator[int] = iter(())  # rows of the stages of the last cascade, still to come
    for index, call in enumerate(calls):
        if isinstance(call, mc.Cascade):
            costs.append(cascade_cost(call, calls[index + 1 : index + 1 + call.stages], target))
            made = iter(_rows_made(call))
        elif (rows := next(made, None)) is not None:
            costs.append(_stage_cost(call, rows, target))
        else:
            costs.append(repeated(cost_of(call, target), times))
        left -= 1
        if isinstance(call, mc.Loop):
            times, left = call.times, call.body
        elif left <= 0:
            times = 1
    return costs


def _rows_made(cascade: mc.Cascade) -> list[int]:
    rows = [0] * cascade.stages
    for step in cascade.steps:
        rows[step.stage] += step.y1 - step.y0
    return rows


def _stage_cost(stage: mc.KernelCall, made: int, target: Target) -> Cost:
    """The cost of as many rows of a stage as its cascade makes, in one go."""
    whole = cost_of(stage, target)
    assert isinstance(stage, mc.STAGE_FORMS)
    if made == stage.rows:
        return whole
    work, call = row_work(stage, stage.rows, target), target.cost.call_cycles
    moved = round(work.moved * made) + work.constants
    return Cost(whole.macs * made // stage.rows, moved, call + round(work.cycles(made, True)), whole.bound)


def repeated(cost: Cost, times: int) -> Cost:
    """What a call costs that runs several times."""
    return Cost(cost.macs * times, cost.bytes_moved * times, cost.cycles * times, cost.bound)


def run_times(calls: Sequence[mc.KernelCall], target: Target) -> list[Slot]:
    """When every call runs: one after the other, prefetches beside the others until they are awaited."""
    setup = target.cost.copy_setup_cycles
    now = flash_free = 0
    ready: dict[int, int] = {}
    slots = []
    for call, cost in zip(calls, costs_of(calls, target), strict=True):
        cycles = advance = cost.cycles
        bound = cost.bound
        if isinstance(call, mc.Prefetch):
            flash_free = max(now + setup, flash_free) + cost.cycles - setup
            ready[call.channel] = flash_free
            cycles, advance = flash_free - now, setup
        elif isinstance(call, mc.Wait):
            cycles = advance = max(setup, ready.get(call.channel, 0) - now)
            bound = Bound.FLASH if advance > setup else Bound.OVERHEAD
        slots.append(Slot(now, cycles, advance, bound))
        now += advance
    return slots


def total_cycles(calls: Sequence[mc.KernelCall], target: Target) -> int:
    """Cycles of a program; a copy that nobody awaits ends it too."""
    return max((slot.start + slot.cycles for slot in run_times(calls, target)), default=0)


@dataclass(frozen=True)
class RowWork:
    """What one output row of a stage takes: cycles of the array, bytes moved; and its constants, in bytes."""

    compute: float
    moved: float
    constants: int
    bytes_per_cycle: float
    start: int
    call: int  # what the first start takes

    def cycles(self, rows: float, fresh: bool) -> float:
        """Cycles for a stripe; `fresh`: another stage ran before, so that constants are read again."""
        moved = self.moved * rows + (self.constants if fresh else 0)
        return max(self.compute * rows, moved / self.bytes_per_cycle)


def row_work(call: mc.KernelCall, rows: int, target: Target) -> RowWork:
    """The work of each of the `rows` rows of a call."""
    model = target.cost
    work, constants = call.work(_Pipes(target)), call.constants()
    compute = (work.passes + work.tiles * model.drain_cycles) / rows
    moved = (call.moved() - constants) / rows
    constants += _slower(constants, target)
    start = model.step_cycles + int(2 * call.carried() / model.sram_bytes_per_cycle)  # read and written again
    return RowWork(compute, moved, constants, model.sram_bytes_per_cycle, start, model.call_cycles)


def cascade_cost(cascade: mc.Cascade, stages: Sequence[mc.KernelCall], target: Target) -> Cost:
    """What a cascade costs beyond its stages in one go each.

    Every step but a stage's first starts it again and reads its constants again, unless it ran just before.
    """
    narrow = [stage for stage in stages if isinstance(stage, mc.STAGE_FORMS)]
    works = [row_work(stage, stage.rows, target) for stage in narrow]
    whole = sum(work.cycles(rows, True) for work, rows in zip(works, _rows_made(cascade), strict=True))
    starts = [
        step for i, step in enumerate(cascade.steps) if not i or cascade.steps[i - 1].stage != step.stage
    ]
    again = sum(works[step.stage].constants for step in starts) - sum(work.constants for work in works)
    return Cost(0, again, max(0, round(steps_cycles(works, cascade.steps) - whole)), Bound.OVERHEAD)


def steps_cycles(works: Sequence[RowWork], steps: Sequence[mc.Step]) -> float:
    """Cycles of the steps of a cascade, but for the first start of each stage.

    A step that goes on where one of the same stage just ended starts nothing: rows are made in order.
    """
    cycles = -float(sum(work.start for work in works))
    before = -1
    for step in steps:
        fresh = step.stage != before
        cycles += works[step.stage].cycles(step.y1 - step.y0, fresh) + fresh * works[step.stage].start
        before = step.stage
    return cycles
