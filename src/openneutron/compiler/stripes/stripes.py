"""Operators by rows: which rows of its inputs an operator reads for a range of its output rows.

An operator whose kernel can compute any range of output rows may be a stage of a cascade. Its inputs are read
through a window that moves down with the output (convolutions, pools) or row by row (element-wise operators);
whatever else it reads, constants and operands broadcast over the rows, must be there as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from openneutron.compiler.emit.selection import broadcast_strides, dense_strides, merged
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.cost import RowWork, row_work
from openneutron.compiler.microcode.format import KernelCall
from openneutron.litert.ir import Op, Tensor
from openneutron.target import Target

MOST_ROWS = 0xFFFF  # what a step can count
MOST_KERNEL_ROWS = mc.limit_of(mc.DepthwiseConv2D, "MOST_ROWS")  # what every window kernel takes


@dataclass(frozen=True)
class Reach:
    """Output row y reads rows y * stride - pad .. y * stride - pad + extent - 1 of an input, inside of it."""

    tensor: Tensor
    stride: int
    pad: int
    extent: int
    height: int  # of the input
    out_height: int
    planes: int = 1  # of the input: more if no row of it holds all channels

    def top(self, made: np.ndarray) -> np.ndarray:
        """Input rows that must exist before `made` output rows can."""
        rows = (made - 1) * self.stride - self.pad + self.extent
        return np.where(made > 0, np.clip(rows, 0, self.height), 0)

    def low(self, made: np.ndarray) -> np.ndarray:
        """The first input row still needed when `made` output rows are done."""
        rows = np.clip(made * self.stride - self.pad, 0, self.height)
        return np.where(made < self.out_height, rows, self.height)

    def begins(self, low: np.ndarray, nbytes: int) -> np.ndarray:
        """Bytes before the first one still needed, of the `nbytes` of all that shares the input's rows."""
        row = nbytes // (self.height * self.planes)
        return np.where(low < self.height, low * row, nbytes)

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


def is_map(tensor: Tensor) -> bool:
    """Whether a tensor is one feature map: of rows, columns and channels, or of a row of pixels."""
    return tensor.rank in (3, 4) and tensor.shape[0] == 1


def _row_axis(tensor: Tensor) -> int:
    return 2 if tensor.rank == 4 and tensor.shape[1] == 1 else 1


def rows_of(tensor: Tensor) -> int:
    """Rows of a feature map; a map of one row, as of a 1-D convolution, is taken as a column of pixels."""
    return tensor.shape[_row_axis(tensor)]


def stage_of(op: Op, calls: Sequence[KernelCall], target: Target) -> Stage | None:
    """The operator as a stage, given the calls that compute it whole; None if it cannot be one."""
    if len(calls) != 1 or len(op.outputs) != 1:
        return None
    out = op.output
    if not is_map(out) or not 1 < rows_of(out) <= MOST_ROWS:
        return None
    call = by_rows(op, calls[0], lambda tensor: dense_strides(tensor.shape))
    height, row = rows_of(out), out.nbytes // rows_of(out)
    activations = list(dict.fromkeys(t for t in op.inputs if t is not None and not t.is_const))
    reads: list[Reach] = []
    whole: list[Tensor] = []
    if not isinstance(call, mc.STAGE_FORMS):
        return None
    if isinstance(call, mc.WindowForm):
        w = call.window
        extent = (w.kernel_h - 1) * w.dilation_h + 1
        planes = w.in_c if call.input_in_planes else 1
        reads = [Reach(op.operand(0), w.stride_h, w.pad_top, extent, w.in_h, w.out_h, planes)]
    if isinstance(call, mc.WindowForm) and call.input_in_planes:  # the input is there as a whole
        whole = activations
        fits = call.output.row == row and call.window.out_h == height
    elif isinstance(call, mc.WindowForm):
        fits = (
            activations == [op.operand(0)]
            and w.batch == 1
            and (w.in_h, w.out_h) == (rows_of(op.operand(0)), height)
            and (call.input.row, call.output.row) == (w.in_w * w.in_c, row)
        )
    else:
        reads = [Reach(t, 1, 0, 1, height, height) for t in activations if t.shape == out.shape]
        whole = [t for t in activations if t.shape != out.shape]
        axis = out.rank - _row_axis(out)  # of rows, counted from the end: 3 or 2
        fits = bool(reads) and all(t.rank < axis or t.shape[-axis] == 1 for t in whole)
        fits = fits and out.dtype in ("int8", "uint8")
    if not fits:
        return None
    return Stage(op, call, height, row, tuple(reads), tuple(whole), row_work(call, height, target), out)


def by_rows(op: Op, call: KernelCall, strides_of: Callable[[Tensor], list[int]]) -> KernelCall:
    """The call with its rows counted by the outermost dimension, as a cascade needs it.

    `strides_of` gives the bytes between neighbours along every axis of a tensor.
    """
    out = op.output
    height, row = rows_of(out), out.nbytes // rows_of(out)
    if isinstance(call, mc.WindowForm):
        return call if call.input_in_planes else _upright(call)
    if isinstance(call, mc.RowsForm):
        return replace(call, rows=height, length=row, input_pitch=row, output_pitch=row)
    if isinstance(call, mc.WalkForm):
        strides = [
            broadcast_strides(op.operand(0).shape, out.shape, strides_of(op.operand(0))),
            broadcast_strides(op.operand(1).shape, out.shape, strides_of(op.operand(1))),
            strides_of(out),
        ]
        axis = _row_axis(out)
        dims, inner = merged(out.shape[axis + 1 :], [s[axis + 1 :] for s in strides])
        pad = mc.MAX_RANK - 1 - len(dims)
        walks = [(s[axis], *[0] * pad, *i) for s, i in zip(strides, inner, strict=True)]
        walk = replace(
            call.walk,
            dims=(height, *[1] * pad, *dims),
            a_strides=walks[0],
            b_strides=walks[1],
            output_strides=walks[2],
        )
        return replace(call, walk=walk)
    return call


def _upright(call: Any) -> Any:
    """A window over a single row turned by 90 degrees: the same bytes, as a column of pixels."""
    w = call.window
    flat = w.in_h == w.out_h == w.kernel_h == 1 and w.pad_top == 0 and w.out_w > 1
    if not flat or w.kernel_w > MOST_KERNEL_ROWS or w.batch != 1:
        return call
    window = replace(
        w,
        in_h=w.in_w, in_w=1, out_h=w.out_w, out_w=1, kernel_h=w.kernel_w, kernel_w=1,
        stride_h=w.stride_w, stride_w=1, dilation_h=w.dilation_w, dilation_w=1,
        pad_top=w.pad_left, pad_left=0, y0=0, y1=w.out_w,
    )  # fmt: skip
    source, output = (replace(view, row=view.pixel) for view in (call.input, call.output))
    return replace(call, window=window, input=source, output=output)
