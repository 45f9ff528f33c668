"""Operators whose result takes all rows of a feature map, as stages that take them a few at a time.

Global pools, means and extrema over all pixels, and fully connected layers that read a map: as the last stage
of a cascade they keep sums between stripes, so that the map need not be whole. Sums of integers are the same
in whatever parts they are made.
"""

from __future__ import annotations

from typing import Any

from openneutron.compiler.graph.shapes import axes_of
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Ref
from openneutron.compiler.select.by_rows import MOST_ROWS, is_map, rows_of
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.select.context import Context
from openneutron.compiler.select.convolution import fully_connected_rows
from openneutron.compiler.select.select import select
from openneutron.litert.ir import Builtin, Op

_REDUCTIONS = {
    Builtin.MEAN: mc.RowsReduction.SUM,
    Builtin.AVERAGE_POOL_2D: mc.RowsReduction.AVERAGE,
    Builtin.MAX_POOL_2D: mc.RowsReduction.MAXIMUM,
    Builtin.REDUCE_MAX: mc.RowsReduction.MAXIMUM,
    Builtin.REDUCE_MIN: mc.RowsReduction.MINIMUM,
}


def accumulate(op: Op, ctx: Context, sums: Ref) -> mc.AccumulateForm | None:
    """The call that takes the rows of an operator's input in parts, with `sums` between; None if none can."""
    if op.kind is not Builtin.FULLY_CONNECTED and op.kind not in _REDUCTIONS:
        return None
    source = op.operand(0)
    if not is_map(source) or source.dtype != "int8" or not 1 < rows_of(source) <= MOST_ROWS:
        return None
    call = (
        fully_connected_rows(op, ctx, rows_of(source), sums)
        if op.kind is Builtin.FULLY_CONNECTED
        else _reduced(op, ctx, sums)
    )
    return None if call is None or mc.out_of_range(call) else call


def _reduced(op: Op, ctx: Context, sums: Ref) -> mc.ReduceRows | None:
    """A reduction over all pixels, from the call that computes it whole: constants it has none."""
    if not _takes_all_pixels(op):
        return None
    source, strides, rows = op.operand(0), ctx.strides(op.operand(0)), rows_of(op.operand(0))
    whole: Any = select(op, ctx.ref, ConstPool(), ctx.pitch)[0]
    channels = source.shape[-1]
    return mc.ReduceRows(
        input=ctx.place(source), output=ctx.ref(op.output), sums=sums, height=rows,
        row=source.elements // rows // channels * strides[-2], y0=0, y1=rows,
        reduction=_REDUCTIONS[op.kind], width=source.elements // rows // channels, channels=channels,
        pixel=strides[-2], **{name: getattr(whole, name, value) for name, value in _PLAIN.items()},
    )  # fmt: skip


_PLAIN = {"input_zero": 0, "output_zero": 0, "multiplier": 0, "shift": 0, "clamp_min": -128, "clamp_max": 127}


def _takes_all_pixels(op: Op) -> bool:
    source = op.operand(0)
    if op.kind in (Builtin.AVERAGE_POOL_2D, Builtin.MAX_POOL_2D):
        window = op.options["filterHeight"], op.options["filterWidth"]
        return window == source.shape[1:3] and op.output.shape[1:3] == (1, 1)
    axes = axes_of(op.operand(1), source.rank)
    last = source.rank - 1
    return last not in axes and all(a in axes or source.shape[a] == 1 for a in range(last))
