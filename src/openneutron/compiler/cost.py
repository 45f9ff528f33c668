"""Estimated cycles of kernel calls: the larger of a compute and a memory bound, plus what starting costs.

These are estimates of a simple model, not measurements (docs/cost-model.md). The compute bound counts the
passes of an output-stationary array: `pipes` output channels side by side, `macs_per_pipe` input channels
each; a channel count that does not fill the array wastes the rest, and a depthwise convolution uses one
multiplier a pipe. When a tile of outputs is done its accumulators are emptied, which stops the array. The
parameters are the target's (`CostModel`); `benchmarks/bench_cost_model.py` prints their errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

from openneutron.compiler.microcode import format as mc
from openneutron.target import Target


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


def cost_of(call: mc.KernelCall, target: Target) -> Cost:
    """The cost of one call by itself, as if nothing ran beside it."""
    model = target.cost
    if isinstance(call, mc.Prefetch):
        cycles = call.size * target.frequency_hz // model.flash_bytes_per_second
        return Cost(0, call.size, model.copy_setup_cycles + cycles, Bound.FLASH)
    if isinstance(call, mc.Wait):
        return Cost(0, 0, model.copy_setup_cycles, Bound.OVERHEAD)
    if isinstance(call, mc.Cascade):
        return Cost(0, 0, 0, Bound.OVERHEAD)  # by itself; with its stages, see `cascade_cost`
    macs, passes, tiles = _compute(call, target)
    moved = _bytes_moved(call)
    compute = int(passes + tiles * model.drain_cycles)
    memory = int(moved / model.sram_bytes_per_cycle)
    work = max(compute, memory)
    bound = Bound.OVERHEAD if work < model.call_cycles else Bound.MAC if compute >= memory else Bound.SRAM
    return Cost(macs, moved, model.call_cycles + work, bound)


def costs_of(calls: Sequence[mc.KernelCall], target: Target) -> list[Cost]:
    """The cost of each call; a cascade's is what its stripes add to its stages, which come behind it."""
    return [
        cascade_cost(call, calls[index + 1 : index + 1 + call.stages], target)
        if isinstance(call, mc.Cascade)
        else cost_of(call, target)
        for index, call in enumerate(calls)
    ]


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

    def cycles(self, rows: float, fresh: bool) -> float:
        """Cycles for a stripe; `fresh`: another stage ran before, so that constants are read again."""
        moved = self.moved * rows + (self.constants if fresh else 0)
        return max(self.compute * rows, moved / self.bytes_per_cycle)


def row_work(call: mc.KernelCall, rows: int, target: Target) -> RowWork:
    """The work of each of the `rows` rows of a call."""
    model = target.cost
    _, passes, tiles = _compute(call, target)
    compute = (passes + tiles * model.drain_cycles) / rows
    constants = _weight_bytes(call)
    moved = (_bytes_moved(call) - constants) / rows
    return RowWork(compute, moved, constants, model.sram_bytes_per_cycle, model.step_cycles)


def cascade_cost(cascade: mc.Cascade, stages: Sequence[mc.KernelCall], target: Target) -> Cost:
    """What a cascade costs beyond its stages in one go each.

    Every step but a stage's first starts it again, and reads its constants again unless it ran just before.
    """
    works = [row_work(stage, _rows(stage), target) for stage in stages]
    whole = sum(work.cycles(_rows(stage), True) for work, stage in zip(works, stages, strict=True))
    starts = [
        step for i, step in enumerate(cascade.steps) if not i or cascade.steps[i - 1].stage != step.stage
    ]
    again = sum(works[step.stage].constants for step in starts) - sum(work.constants for work in works)
    return Cost(0, again, max(0, round(steps_cycles(works, cascade.steps) - whole)), Bound.OVERHEAD)


def steps_cycles(works: Sequence[RowWork], steps: Sequence[mc.Step]) -> float:
    """Cycles of the steps of a cascade, but for the first start of each stage."""
    cycles = float(sum(works[step.stage].start for step in steps) - sum(work.start for work in works))
    before = -1
    for step in steps:
        cycles += works[step.stage].cycles(step.y1 - step.y0, step.stage != before)
        before = step.stage
    return cycles


def _compute(call: Any, target: Target) -> tuple[int, int, int]:
    """Multiply-accumulates, the passes of the array they take, and the tiles of outputs they make."""
    pipes, depth = target.pipes * target.units, target.macs_per_pipe
    if isinstance(call, mc.FullyConnected):
        tiles = call.rows * _up(call.out_features, pipes)
        macs = call.rows * call.in_features * call.out_features
        return macs, tiles * _up(call.in_features, depth), tiles
    if isinstance(call, mc.BatchMatmul):
        tiles = prod(call.batch) * call.m * _up(call.n, pipes)
        return prod(call.batch) * call.m * call.n * call.k, tiles * _up(call.k, depth), tiles
    if (w := getattr(call, "window", None)) is None:
        return 0, 0, 0
    pixels, taps = w.batch * (w.y1 - w.y0) * w.out_w, w.kernel_h * w.kernel_w
    tiles = pixels * _up(w.out_c, pipes)
    if isinstance(call, mc.Conv2D | mc.Conv2DPlanar | mc.Conv2DPointwise):
        return pixels * taps * w.in_c * w.out_c, tiles * taps * _up(w.in_c, depth), tiles
    if isinstance(call, mc.DepthwiseConv2D):
        return pixels * taps * w.out_c, tiles * taps, tiles
    return 0, tiles * taps, tiles  # pooling


def _bytes_moved(call: Any) -> int:
    """Bytes read and written once each; what a kernel reads again it is taken to keep."""
    if (w := getattr(call, "window", None)) is not None:
        rows = w.y1 - w.y0
        maps = w.batch * (w.in_h * w.in_w * w.in_c * rows // w.out_h + rows * w.out_w * w.out_c)
        return int(maps + _weight_bytes(call))
    if (walk := getattr(call, "walk", None)) is not None:
        return 3 * prod(walk.dims)
    if isinstance(call, mc.FullyConnected):
        return call.in_features * call.out_features + call.rows * (call.in_features + call.out_features)
    if isinstance(call, mc.BatchMatmul):
        return prod(call.batch) * (call.m * call.k + call.k * call.n + call.m * call.n)
    if isinstance(call, mc.ReduceSum | mc.ReduceExtremum):
        return prod(call.kept) * (prod(call.reduced) + 1)
    if isinstance(call, mc.ResizeBilinear):
        return call.batch * call.channels * (call.in_h * call.in_w + call.out_h * call.out_w)
    if isinstance(call, mc.ArgMax):
        return call.outer * call.inner * (call.axis + 1)
    if isinstance(call, mc.Quantize | mc.Dequantize):
        return 5 * call.count
    if isinstance(call, mc.Softmax):
        return 2 * call.rows * call.depth
    if isinstance(call, mc.Table):
        return 2 * call.rows * call.length
    if isinstance(call, mc.Gather):
        return 2 * prod(call.dims) * call.run
    if isinstance(call, mc.Copy | mc.Fill):
        return 2 * prod(call.dims) * call.element_bytes
    return 0


def _rows(call: Any) -> int:
    """The rows of a call that can be a stage."""
    if (w := getattr(call, "window", None)) is not None:
        return int(w.out_h)
    return int(call.rows if isinstance(call, mc.Table) else call.walk.dims[0])


def _weight_bytes(call: Any) -> int:
    """The weights of a convolution."""
    if isinstance(call, mc.Conv2D | mc.Conv2DPlanar | mc.Conv2DPointwise):
        return int(call.window.kernel_h * call.window.kernel_w * call.window.in_c * call.window.out_c)
    if isinstance(call, mc.DepthwiseConv2D):
        return int(call.window.kernel_h * call.window.kernel_w * call.window.out_c)
    return 0


def _up(value: int, step: int) -> int:
    return -(-value // step)
