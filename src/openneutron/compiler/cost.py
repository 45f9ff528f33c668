"""Estimated cycles of kernel calls: the larger of a compute and a memory bound, plus what starting costs.

These are estimates of a simple model, not measurements. The compute bound counts the passes of an
output-stationary array: `pipes` output channels side by side, `macs_per_pipe` input channels each; a channel
count that does not fill the array wastes the rest, and a depthwise convolution uses one multiplier a pipe.
Call overhead and SRAM rate are fitted to three whole-network times published for i.MX RT700 (CifarNet,
DS-CNN, MobileNetV1-0.25) by a coarse grid search. Two parameters on three points: the 4 % by which these
agree say how well it fits, not how well it predicts. On MobileNetV1 1.0-224 with weights in flash, which took
no part in the fit, the estimate is 24 % low. `benchmarks/bench_compile.py` prints all four.
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
    macs, passes = _compute(call, target)
    moved = _bytes_moved(call)
    memory = int(moved / model.sram_bytes_per_cycle)
    work = max(passes, memory)
    bound = Bound.OVERHEAD if work < model.call_cycles else Bound.MAC if passes >= memory else Bound.SRAM
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


def _compute(call: Any, target: Target) -> tuple[int, int]:
    """Multiply-accumulates, and the cycles of the array they take."""
    pipes, depth = target.pipes * target.units, target.macs_per_pipe
    if isinstance(call, mc.Conv2D | mc.Conv2DPointwise):
        w = call.window
        pixels, taps = w.batch * (w.y1 - w.y0) * w.out_w, w.kernel_h * w.kernel_w
        return pixels * taps * w.in_c * w.out_c, pixels * taps * _up(w.in_c, depth) * _up(w.out_c, pipes)
    if isinstance(call, mc.DepthwiseConv2D):
        w = call.window
        pixels, taps = w.batch * (w.y1 - w.y0) * w.out_w, w.kernel_h * w.kernel_w
        return pixels * taps * w.out_c, pixels * taps * _up(w.out_c, pipes)
    if isinstance(call, mc.AveragePool2D | mc.MaxPool2D):
        w = call.window
        return 0, w.batch * (w.y1 - w.y0) * w.out_w * w.kernel_h * w.kernel_w * _up(w.out_c, pipes)
    if isinstance(call, mc.FullyConnected):
        passes = call.rows * _up(call.in_features, depth) * _up(call.out_features, pipes)
        return call.rows * call.in_features * call.out_features, passes
    if isinstance(call, mc.BatchMatmul):
        count = prod(call.batch)
        return count * call.m * call.n * call.k, count * call.m * _up(call.k, depth) * _up(call.n, pipes)
    return 0, 0


def _bytes_moved(call: Any) -> int:
    """Bytes read and written once each; what a kernel reads again it is taken to keep."""
    if (w := getattr(call, "window", None)) is not None:
        taps = w.kernel_h * w.kernel_w
        rows = w.y1 - w.y0
        weights = taps * w.out_c * (w.in_c if isinstance(call, mc.Conv2D | mc.Conv2DPointwise) else 1)
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
