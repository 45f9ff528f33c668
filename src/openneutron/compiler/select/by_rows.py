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

from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.cost import RowWork, row_work
from openneutron.compiler.microcode.format import KernelCall
from openneutron.compiler.select.context import broadcast_strides, dense_strides, merged
from openneutron.litert.ir import Builtin, Op, Tensor
from openneutron.targets.chip import Target

MOST_ROWS = 0xFFFF  # what a step can count
MOST_KERNEL_ROWS = mc.limit_of(mc.DepthwiseConv2D, "MOST_ROWS")  # what every window kernel takes


@dataclass(frozen=True)
class Reach:
    """Output row y reads rows y * stride - pad .. y * stride - pad + extent - 1 of an input, inside of it.

    Where an operator makes several rows at a time, `unit` of them, y counts these.
    """

    tensor: Tensor
    stride: int
    pad: int
    extent: int
    height: int  # of the input
    out_height: int
    planes: int = 1  # of the input: more if no row of it holds all channels
    unit: int = 1

    def top(self, made: np.ndarray) -> np.ndarray:
        """Input rows that must exist before `made` output rows can."""
        units = made if self.unit == 1 else -(-made // self.unit)
        rows = (units - 1) * self.stride + (self.extent - self.pad)
        return np.where(made > 0, np.maximum(np.minimum(rows, self.height), 0), 0)

    def low(self, made: np.ndarray) -> np.ndarray:
        """The first input row still needed when `made` output rows are done."""
        units = made if self.unit == 1 else made // self.unit
        rows = np.maximum(np.minimum(units * self.stride - self.pad, self.height), 0)
        return np.where(made < self.out_height, rows, self.height)

    def begins(self, low: np.ndarray, nbytes: int) -> np.ndarray:
        """Bytes before the first one still needed, of the `nbytes` of all that shares the input's rows."""
        row = nbytes // (self.height * self.planes)
        return np.where(low < self.height, low * row, nbytes)

    def needed(self, begin: int, end: int) -> tuple[int, int]:
        """The first input row, and the one behind the last, that output rows `begin` to `end` - 1 need."""
        low = min(max(begin * self.stride - self.pad, 0), self.height - 1)
        return low, max(min((end - 1) * self.stride - self.pad + self.extent, self.height), low + 1)

    @cached_property
    def mirrored(self) -> Reach:
        """The same with rows counted from the bottom."""
        last = self.out_height // self.unit - 1
        pad = last * self.stride + self.extent - self.pad - self.height
        return replace(self, pad=pad)


@dataclass(frozen=True)
class Stage:
    """An operator that can be computed in stripes of rows."""

    op: Op
    unit: int  # rows that are made together; its calls count these
    height: int
    row_bytes: int
    reads: tuple[Reach, ...]
    whole: tuple[Tensor, ...]  # activations that must be complete before it starts
    works: tuple[RowWork, ...]  # of its calls
    output: Tensor
    scattered: bool = False  # a row of it is not in one place: nothing of the cascade may read it
    sums: int | None = None  # takes all rows of its input, which it counts, and keeps so many bytes between
    columns: tuple[Reach, ...] = ()  # as `reads`, of columns; empty if its rows cannot be cut

    @cached_property
    def work(self) -> RowWork:
        """The work of all calls, for each output row."""
        compute, moved = (
            sum(getattr(w, name) for w in self.works) / self.unit for name in ("compute", "moved")
        )
        constants, start = (sum(getattr(w, name) for w in self.works) for name in ("constants", "start"))
        first = self.works[0]
        return RowWork(compute, moved, constants, first.bytes_per_cycle, start, len(self.works) * first.call)


def is_map(tensor: Tensor) -> bool:
    """Whether a tensor is one feature map: of rows, and whatever a row is of; 3-D, of a row of pixels."""
    return tensor.rank >= 3 and tensor.shape[0] == 1


def _row_axis(tensor: Tensor) -> int:
    return 2 if tensor.rank >= 4 and tensor.shape[1] == 1 else 1


def rows_of(tensor: Tensor) -> int:
    """Rows of a feature map; a map of one row, as of a 1-D convolution, is taken as a column of pixels."""
    return tensor.shape[_row_axis(tensor)]


def stage_of(op: Op, calls: Sequence[KernelCall], target: Target) -> Stage | None:
    """The operator as a stage, given the calls that compute it whole; None if it cannot be one."""
    if not calls or len(op.outputs) != 1:
        return None
    if op.kind is Builtin.TRANSPOSE:
        return _scattered(op, calls, target)
    out = op.output
    if not is_map(out) or not 1 < rows_of(out) <= MOST_ROWS:
        return None
    rows = by_rows(op, calls, lambda tensor: dense_strides(tensor.shape))
    if rows is None:
        return None
    narrow = [call for call in rows if isinstance(call, mc.STAGE_FORMS)]
    reads = _reads(op, narrow) if len(narrow) == len(calls) else None
    if reads is None or not reads.reads:
        return None
    height, row = rows_of(out), out.nbytes // rows_of(out)
    works = tuple(row_work(call, height // reads.unit, target) for call in narrow)
    columns = _columns(op, narrow[0], reads) if len(narrow) == 1 else ()
    return Stage(op, reads.unit, height, row, reads.reads, reads.whole, works, out, columns=columns)


def _columns(op: Op, call: Any, reads: _Reads) -> tuple[Reach, ...]:
    """Which columns of its inputs a call reads, if it can be narrowed to some of its output's."""
    tensors = [reach.tensor for reach in reads.reads]
    if reads.unit != 1 or any(t.rank != 4 or _row_axis(t) != 1 for t in (op.output, *tensors)):
        return ()
    if isinstance(call, mc.WindowForm):
        return (across(call.window, tensors[0]),)
    maps = op.inputs[: 2 if isinstance(call, mc.WalkForm) else 1]
    if not isinstance(call, mc.RowsForm | mc.WalkForm) or any(t not in tensors for t in maps):
        return ()
    return tuple(Reach(t, 1, 0, 1, t.shape[2], t.shape[2]) for t in tensors)


def _scattered(op: Op, calls: Sequence[KernelCall], target: Target) -> Stage | None:
    """A transposed map, its channels apart as PyTorch wants outputs: every row goes to all planes."""
    source, out = op.operand(0), op.output
    if not _movable(source, calls):
        return None
    height = rows_of(source)
    works = _transposed_work(op, calls[0], source, target)
    reads = (Reach(source, 1, 0, 1, height, height),)
    return Stage(op, 1, height, out.nbytes // height, reads, (), works, out, scattered=True)


def gathering_stage(op: Op, calls: Sequence[KernelCall], target: Target) -> Stage | None:
    """A transpose that makes the rows of a map of something whole: an input in planes, for one."""
    out = op.output
    if not _movable(out, calls):
        return None
    height = rows_of(out)
    works = _transposed_work(op, calls[0], out, target)
    return Stage(op, 1, height, out.nbytes // height, (), (op.operand(0),), works, out)


def _movable(rows_in: Tensor, calls: Sequence[KernelCall]) -> bool:
    fits = is_map(rows_in) and rows_in.rank <= mc.MAX_RANK and rows_in.dtype in ("int8", "uint8")
    return fits and 1 < rows_of(rows_in) <= MOST_ROWS and len(calls) == 1


def _transposed_work(op: Op, call: Any, rows_in: Tensor, target: Target) -> tuple[RowWork, ...]:
    (moved,) = transposed_by_rows(op, [call], lambda tensor: dense_strides(tensor.shape), rows_in)
    return (row_work(moved, rows_of(rows_in), target),)


def accumulating_stage(op: Op, call: mc.AccumulateForm, target: Target) -> Stage:
    """An operator that takes the rows of its input one after the other: its result is there at the end."""
    works = (row_work(call, call.height, target),)
    reads = (Reach(op.operand(0), 1, 0, 1, call.height, call.height),)
    return Stage(op, 1, call.height, 0, reads, (), works, op.output, scattered=True, sums=call.carried())


@dataclass(frozen=True)
class _Reads:
    """What a stage reads by rows and what as a whole."""

    reads: tuple[Reach, ...]
    whole: tuple[Tensor, ...] = ()
    unit: int = 1


def _reads(op: Op, calls: Sequence[Any]) -> _Reads | None:
    activations = list(dict.fromkeys(t for t in op.inputs if t is not None and not t.is_const))
    if isinstance(calls[0], mc.MoveForm):
        return _moved(op, calls)
    if op.kind is Builtin.TRANSPOSE_CONV:
        return _phases(op, calls)
    if len(calls) != 1:
        return None
    if isinstance(calls[0], mc.WindowForm):
        return _window(op, calls[0], activations)
    if isinstance(calls[0], mc.ProductForm):
        return _rows_of_product(op, calls[0])
    if isinstance(calls[0], mc.ResizeForm):
        return _between(op)
    out = op.output
    reads = [Reach(t, 1, 0, 1, rows_of(out), rows_of(out)) for t in activations if t.shape == out.shape]
    whole = [t for t in activations if t.shape != out.shape]
    axis = out.rank - _row_axis(out)  # of rows, counted from the end: 3 or 2
    fits = all(t.rank < axis or t.shape[-axis] == 1 for t in whole) and out.dtype in ("int8", "uint8")
    return _Reads(tuple(reads), tuple(whole)) if fits else None


def _window(op: Op, call: mc.WindowForm, activations: list[Tensor]) -> _Reads | None:
    w, source, out = call.window, op.operand(0), op.output
    planes = w.in_c if isinstance(call, mc.Conv2DPlanar) and call.plane > call.input.row else 1
    reach = Reach(source, w.stride_h, w.pad_top, _extent(w), w.in_h, w.out_h, planes)
    fits = w.out_h == rows_of(out) and call.output.row == out.nbytes // w.out_h
    if call.input_in_planes:  # the input is there as a whole
        return _Reads((reach,), tuple(activations)) if fits else None
    fits = fits and activations == [source] and w.batch == 1
    fits = fits and w.in_h == rows_of(source) and call.input.row == w.in_w * w.in_c
    return _Reads((reach,)) if fits else None


def _rows_of_product(op: Op, call: mc.ProductForm) -> _Reads | None:
    """A fully connected layer of a sequence: a row of features becomes one."""
    source, height = op.operand(0), call.rows
    fits = is_map(source) and rows_of(source) == height == rows_of(op.output)
    return _Reads((Reach(source, 1, 0, 1, height, height),)) if fits else None


def across(w: mc.Window, source: Tensor) -> Reach:
    """A window's reach from left to right."""
    return Reach(source, w.stride_w, w.pad_left, (w.kernel_w - 1) * w.dilation_w + 1, w.in_w, w.out_w)


def _extent(w: mc.Window) -> int:
    return (w.kernel_h - 1) * w.dilation_h + 1


def _phases(op: Op, calls: Sequence[Any]) -> _Reads | None:
    """A transposed convolution: every phase of the stride is a window over the same rows."""
    source, out, unit = op.operand(2), op.output, int(op.options["strideH"])
    height = rows_of(out)
    if source.shape[1] == 1 or height % unit or any(call.window.out_h != height // unit for call in calls):
        return None
    windows = [call.window for call in calls]
    reads = (Reach(source, 1, w.pad_top, _extent(w), w.in_h, height, 1, unit) for w in windows)
    return _Reads(tuple(dict.fromkeys(reads)), (), unit)


def _between(op: Op) -> _Reads | None:
    """A resize to a multiple, whose rows lie between two rows near them, or on them."""
    source, out = op.operand(0), op.output
    factor, rest = divmod(out.shape[1], source.shape[1])
    if rest or source.shape[1] == 1 or op.options.get("alignCorners") or factor & (factor - 1):
        return None  # what is no power of two is rounded, and drifts
    return _Reads((Reach(source, 1, 1, 3, source.shape[1], out.shape[1], 1, factor),))


def _moved(op: Op, calls: Sequence[mc.MoveForm]) -> _Reads | None:
    """Copies row by row: a concatenation's parts, or one that makes several rows of one."""
    out, parts = op.output, op.inputs[: len(calls)]
    if op.kind is Builtin.CONCATENATION and len(op.inputs) != len(calls):
        return None
    unit = rows_of(out) // calls[0].dims[0]
    reads = []
    for call, t in zip(calls, parts, strict=True):
        if t is None or t.is_const or not is_map(t) or rows_of(t) * unit != rows_of(out):
            return None
        steps = call.input_strides[0], call.output_strides[0]
        if steps != (t.nbytes // rows_of(t), unit * out.nbytes // rows_of(out)):
            return None
        reads.append(Reach(t, 1, 0, 1, rows_of(t), rows_of(out), 1, unit))
    return _Reads(tuple(dict.fromkeys(reads)), (), unit)


def by_rows(
    op: Op, calls: Sequence[KernelCall], strides_of: Callable[[Tensor], list[int]]
) -> list[KernelCall] | None:
    """The calls with their rows counted by the outermost dimension, as a cascade needs them, if they can be.

    `strides_of` gives the bytes between neighbours along every axis of a tensor.
    """
    if op.kind is Builtin.TRANSPOSE_CONV:
        return [_in_units(call, int(op.options["strideH"])) for call in calls]
    if op.kind is Builtin.TRANSPOSE:
        return transposed_by_rows(op, calls, strides_of, op.operand(0))
    if any(isinstance(call, mc.MoveForm) for call in calls):
        return _copies_by_rows(op, calls)
    if len(calls) != 1:
        return None
    return [_call_by_rows(op, calls[0], strides_of)]


def _in_units(call: Any, unit: int) -> Any:
    """A call that writes every `unit`-th row of a rolling buffer: it counts in these."""
    ref = call.output.ref
    return replace(call, output=replace(call.output, ref=replace(ref, rows=ref.rows // unit)))


def transposed_by_rows(
    op: Op, calls: Sequence[Any], strides_of: Callable[[Tensor], list[int]], rows_in: Tensor
) -> list[KernelCall]:
    """A transpose with the rows of its input or of its output, `rows_in`, counted outermost."""
    source, out, perm = op.operand(0), op.output, [int(p) for p in op.operand(1).array]
    axis = perm.index(_row_axis(source)) if rows_in is source else _row_axis(out)  # of the output
    moved = [strides_of(source)[p] for p in perm]
    rest = [a for a in range(out.rank) if a != axis]
    dims, inner = merged(
        [out.shape[a] for a in rest], [[s[a] for a in rest] for s in (moved, strides_of(out))]
    )
    pad = mc.MAX_RANK - 1 - len(dims)
    walks = [(s[axis], *[0] * pad, *i) for s, i in zip((moved, strides_of(out)), inner, strict=True)]
    fitted = (out.shape[axis], *[1] * pad, *dims)
    return [replace(calls[0], dims=fitted, input_strides=walks[0], output_strides=walks[1])]


def _copies_by_rows(op: Op, calls: Sequence[KernelCall]) -> list[KernelCall] | None:
    if op.kind not in (Builtin.CONCATENATION, Builtin.RESIZE_NEAREST_NEIGHBOR, Builtin.DEPTH_TO_SPACE):
        return None
    height = rows_of(op.output if op.kind is Builtin.CONCATENATION else op.operand(0))
    unit = rows_of(op.output) // height
    result: list[KernelCall] = []
    for call in calls:
        if not isinstance(call, mc.MoveForm):
            return None
        first = next((i for i, d in enumerate(call.dims) if d != 1), 0)
        each, rest = divmod(call.dims[first], height)
        if rest or (first == 0 and each != 1):
            return None
        pad = [1] * (first - (each > 1))
        split = [each] if each > 1 else []

        def outer(strides: Sequence[int], first: int = first, each: int = each) -> tuple[int, ...]:
            inner = [strides[first]] if each > 1 else []
            return (strides[first] * each, *[0] * (first - len(inner)), *inner, *strides[first + 1 :])

        output = replace(call.output, rows=call.output.rows // unit)
        dims = (height, *pad, *split, *call.dims[first + 1 :])
        result.append(
            replace(
                call,
                output=output,
                dims=dims,
                input_strides=outer(call.input_strides),
                output_strides=outer(call.output_strides),
            )
        )
    return result


def _call_by_rows(op: Op, call: KernelCall, strides_of: Callable[[Tensor], list[int]]) -> KernelCall:
    out = op.output
    height, row = rows_of(out), out.nbytes // rows_of(out)
    if isinstance(call, mc.WindowForm):
        return call if call.input_in_planes else _upright(call)
    if isinstance(call, mc.RowsForm):
        if isinstance(call, mc.TableRuns):
            return call
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
