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

from openneutron.compiler import microcode as mc
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
    macs, passes, tiles = _compute(call, target)
    moved = _bytes_moved(call)
    compute = int(passes + tiles * model.drain_cycles)
    memory = int(moved / model.sram_bytes_per_cycle)
    work = max(compute, memory)
    bound = Bound.OVERHEAD if work < model.call_cycles else Bound.MAC if compute >= memory else Bound.SRAM
    return Cost(macs, moved, model.call_cycles + work, bound)


def run_times(calls: Sequence[mc.KernelCall], target: Target) -> list[Slot]:
    """When every call runs: one after the other, prefetches beside the others until they are awaited."""
    setup = target.cost.copy_setup_cycles
    now = flash_free = 0
    ready: dict[int, int] = {}
    slots = []
    for call in calls:
        cost = cost_of(call, target)
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
        taps = w.kernel_h * w.kernel_w
        rows = w.y1 - w.y0
        weights = (
            taps
            * w.out_c
            * (w.in_c if isinstance(call, mc.Conv2D | mc.Conv2DPlanar | mc.Conv2DPointwise) else 1)
        )
        weights = 0 if isinstance(call, mc.AveragePool2D | mc.MaxPool2D) else weights
        return int(
            w.batch * (w.in_h * w.in_w * w.in_c * rows // w.out_h + rows * w.out_w * w.out_c) + weights
        )
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


def _up(value: int, step: int) -> int:
    return -(-value // step)
