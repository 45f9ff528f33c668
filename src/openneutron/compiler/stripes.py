"""Operators by rows: which rows of its inputs an operator reads for a range of its output rows.

An operator whose kernel can compute any range of output rows may be a stage of a cascade. Its inputs are read
through a window that moves down with the output (convolutions, pools) or row by row (element-wise operators);
whatever else it reads, constants and operands broadcast over the rows, must be there as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from openneutron.compiler import microcode as mc
from openneutron.compiler.cost import RowWork, row_work
from openneutron.compiler.microcode import KernelCall, Ref
from openneutron.compiler.selection import broadcast_strides, merged
from openneutron.litert.ir import Op, Tensor
from openneutron.target import Target

WINDOWS = (mc.Conv2D, mc.Conv2DPointwise, mc.DepthwiseConv2D, mc.AveragePool2D, mc.MaxPool2D)
WALKS = (mc.Add, mc.Mul, mc.Extremum, mc.SquaredDifference, mc.Prelu)
MOST_ROWS = 0xFFFF  # what a step can count


@dataclass(frozen=True)
class Reach:
    """Output row y reads rows y * stride - pad .. y * stride - pad + extent - 1 of an input, inside of it."""

    tensor: Tensor
    stride: int
    pad: int
    extent: int
    height: int  # of the input
    out_height: int

    def top(self, made: np.ndarray) -> np.ndarray:
        """Input rows that must exist before `made` output rows can."""
        rows = (made - 1) * self.stride - self.pad + self.extent
        return np.where(made > 0, np.clip(rows, 0, self.height), 0)

    def low(self, made: np.ndarray) -> np.ndarray:
        """The first input row still needed when `made` output rows are done."""
        rows = np.clip(made * self.stride - self.pad, 0, self.height)
        return np.where(made < self.out_height, rows, self.height)

    @cached_property
    def mirrored(self) -> Reach:
        """The same with rows counted from the bottom."""
        pad = (self.out_height - 1) * self.stride + self.extent - self.pad - self.height
        return replace(self, pad=pad)


@dataclass(frozen=True)
class Stage:
    """An operator that can be computed in stripes of rows."""

    op: Op
    call: KernelCall
    height: int
    row_bytes: int
    reads: tuple[Reach, ...]
    whole: tuple[Tensor, ...]  # activations that must be complete before it starts
    work: RowWork
    output: Tensor

    @property
    def rows_in_one_piece(self) -> bool:
        """Whether the rows of a step must lie behind one another, also in rolling buffers."""
        return isinstance(self.call, (*WALKS, mc.Table))


def stage_of(op: Op, calls: Sequence[KernelCall], target: Target) -> Stage | None:
    """The operator as a stage, given the calls that compute it whole; None if it cannot be one."""
    if len(calls) != 1 or len(op.outputs) != 1:
        return None
    (call,), out = calls, op.output
    if out.rank != 4 or out.shape[0] != 1 or not 1 < out.shape[1] <= MOST_ROWS:
        return None
    activations = [t for t in op.inputs if t is not None and not t.is_const]
    row = out.nbytes // out.shape[1]
    if isinstance(call, mc.Conv2DPlanar):  # planes have no rows of all channels: the input stays whole
        if call.output.row != row:
            return None
        return Stage(
            op, call, out.shape[1], row, (), tuple(activations), row_work(call, out.shape[1], target), out
        )
    if isinstance(call, WINDOWS):
        w = call.window
        if activations != [op.operand(0)] or w.batch != 1 or w.out_h != out.shape[1]:
            return None
        if call.input.row != w.in_w * w.in_c or call.output.row != row:
            return None
        extent = (w.kernel_h - 1) * w.dilation_h + 1
        reach = Reach(op.operand(0), w.stride_h, w.pad_top, extent, w.in_h, w.out_h)
        return Stage(op, call, w.out_h, row, (reach,), (), row_work(call, w.out_h, target), out)
    if isinstance(call, (*WALKS, mc.Table)):
        reads, whole = [], []
        for t in dict.fromkeys(activations):
            if t.shape == out.shape:
                reads.append(Reach(t, 1, 0, 1, out.shape[1], out.shape[1]))
            elif t.rank < 3 or t.shape[-3] == 1:
                whole.append(t)
            else:
                return None
        if not reads or out.dtype not in ("int8", "uint8"):
            return None
        work = row_work(call, out.shape[1], target)
        return Stage(op, call, out.shape[1], row, tuple(reads), tuple(whole), work, out)
    return None


def by_rows(op: Op, call: KernelCall, strides_of: Callable[[Tensor], list[int]]) -> KernelCall:
    """The call with its rows counted by the outermost dimension, as a cascade needs it.

    `strides_of` gives the bytes between neighbours along every axis of a tensor.
    """
    out = op.output
    height, row = out.shape[1], out.nbytes // out.shape[1]
    if isinstance(call, mc.Table):
        return replace(call, rows=height, length=row, input_pitch=row, output_pitch=row)
    if isinstance(call, WALKS):
        strides = [
            broadcast_strides(op.operand(0).shape, out.shape, strides_of(op.operand(0))),
            broadcast_strides(op.operand(1).shape, out.shape, strides_of(op.operand(1))),
            strides_of(out),
        ]
        dims, inner = merged(out.shape[2:], [s[2:] for s in strides])
        pad = mc.MAX_RANK - 1 - len(dims)
        walks = [(s[1], *[0] * pad, *i) for s, i in zip(strides, inner, strict=True)]
        walk = replace(
            call.walk,
            dims=(height, *[1] * pad, *dims),
            a_strides=walks[0],
            b_strides=walks[1],
            output_strides=walks[2],
        )
        return replace(call, walk=walk)
    return call


def rolling(ref: Ref, rows: int) -> Ref:
    """The address as that of a rolling buffer."""
    return replace(ref, rows=rows)
