"""Element-by-element operators: sums, products, tables, softmax, changes of type."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from openneutron.compiler.graph.arithmetic import (
    activation_range,
    quant_of,
    quantize_multiplier,
    scale_of,
    scale_product,
    zero_of,
)
from openneutron.compiler.graph.tables import TABLE, ByteFunction, is_byte, table_of
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Broadcast, KernelCall, Table, TableRuns
from openneutron.compiler.select.context import (
    Context,
    Gaps,
    KernelRule,
    broadcast_strides,
    int8_problem,
    merged,
    walk,
)
from openneutron.litert.ir import Builtin, Op, Trait, kinds


def _binary_problem(op: Op) -> str:
    a, b, out = op.operand(0), op.operand(1), op.output
    problem = int8_problem(a, b, out)
    if problem:
        return problem
    if tuple(np.broadcast_shapes(a.shape, b.shape)) != out.shape:
        return f"{list(a.shape)} and {list(b.shape)} do not broadcast to {list(out.shape)}"
    strides = (broadcast_strides(a.shape, out.shape), broadcast_strides(b.shape, out.shape))
    dims, _ = merged(out.shape, strides)
    return "" if len(dims) <= mc.MAX_RANK else f"rank {len(dims)} is more than {mc.MAX_RANK}"


def _broadcast(op: Op, ctx: Context) -> Broadcast:
    a, b, out = op.operand(0), op.operand(1), op.output
    w = walk(
        out.shape,
        broadcast_strides(a.shape, out.shape, ctx.strides(a)),
        broadcast_strides(b.shape, out.shape, ctx.strides(b)),
        ctx.strides(out),
    )
    return Broadcast(ctx.place(a), ctx.place(b), ctx.ref(out), w.dims, *w.strides)


def _clamp(op: Op) -> dict[str, int]:
    low, high = activation_range(op.options.get("fusedActivationFunction", 0), quant_of(op.output))
    return {"clamp_min": low, "clamp_max": high}


def _common_scale(op: Op, left_shift: int, square: bool) -> dict[str, int]:
    """Both inputs on twice the larger scale, shifted left; the (squared) result back to the output's."""
    a, b, out = scale_of(op.operand(0)), scale_of(op.operand(1)), scale_of(op.output)
    # LiteRT takes the maximum in double for ADD and SUB; float32 scales make it the same number.
    twice = 2.0 * max(a, b)
    real = (
        twice * twice / (float(1 << 2 * left_shift) * out)
        if square
        else twice / (float(1 << left_shift) * out)
    )
    a_multiplier, a_shift = quantize_multiplier(a / twice)
    b_multiplier, b_shift = quantize_multiplier(b / twice)
    multiplier, shift = quantize_multiplier(real)
    return {
        "left_shift": left_shift,
        "a_zero": zero_of(op.operand(0)), "b_zero": zero_of(op.operand(1)), "output_zero": zero_of(op.output),
        "a_multiplier": a_multiplier, "a_shift": a_shift, "b_multiplier": b_multiplier, "b_shift": b_shift,
        "output_multiplier": multiplier, "output_shift": shift,
    }  # fmt: skip


def _add(op: Op, ctx: Context) -> list[KernelCall]:
    scales = _common_scale(op, 20, square=False)
    if op.kind is Builtin.SUB:
        scales["b_multiplier"] = -scales["b_multiplier"]
    return [mc.Add(walk=_broadcast(op, ctx), **scales, **_clamp(op))]


def _squared_difference(op: Op, ctx: Context) -> list[KernelCall]:
    return [mc.SquaredDifference(walk=_broadcast(op, ctx), **_common_scale(op, 7, square=True), **_clamp(op))]


def _mul(op: Op, ctx: Context) -> list[KernelCall]:
    a, b = op.operand(0), op.operand(1)
    multiplier, shift = quantize_multiplier(scale_product(a, b, over=op.output))
    return [
        mc.Mul(
            walk=_broadcast(op, ctx), a_zero=zero_of(a), b_zero=zero_of(b), output_zero=zero_of(op.output),
            multiplier=multiplier, shift=shift, **_clamp(op),
        )
    ]  # fmt: skip


def _same_quant(op: Op) -> str:
    problem = _binary_problem(op)
    quants = {op.operand(0).quant, op.operand(1).quant, op.output.quant}
    return problem or ("its inputs and output have different quantization" if len(quants) > 1 else "")


def _extremum(op: Op, ctx: Context) -> list[KernelCall]:
    return [mc.Extremum(walk=_broadcast(op, ctx), minimum=int(op.kind is Builtin.MINIMUM))]


def _prelu(op: Op, ctx: Context) -> list[KernelCall]:
    a, slope, out = op.operand(0), op.operand(1), op.output
    positive = quantize_multiplier(scale_product(a, over=out))
    negative = quantize_multiplier(scale_product(a, slope, over=out))
    return [
        mc.Prelu(
            walk=_broadcast(op, ctx),
            a_zero=zero_of(a), b_zero=zero_of(slope), output_zero=zero_of(out),
            positive_multiplier=positive[0], positive_shift=positive[1],
            negative_multiplier=negative[0], negative_shift=negative[1],
        )
    ]  # fmt: skip


def _unary_problem(op: Op) -> str:
    if not (is_byte(op.operand(0)) and is_byte(op.output)):
        return f"{op.operand(0).dtype} to {op.output.dtype} is not a function of one byte"
    return (
        ""
        if table_of(ByteFunction(op.operand(0), (op,))) is not None
        else "LiteRT's reference kernels do not take it either"
    )


def _unary(op: Op, ctx: Context) -> list[KernelCall]:
    table = table_of(ByteFunction(op.operand(0), (op,)))
    assert table is not None
    return _lookup(op, ctx, table)


def _table(op: Op, ctx: Context) -> list[KernelCall]:
    """The compiler's own operator, see `graph.tables`."""
    return _lookup(op, ctx, op.operand(1).array)


def _lookup(op: Op, ctx: Context, table: np.ndarray) -> list[KernelCall]:
    source, out = op.operand(0), op.output
    read, written = 0 if source.is_const else ctx.pitch(source), ctx.pitch(out)
    place = ctx.place(source), ctx.ref(out), ctx.pool.add(table)
    if not read and not written:
        size = out.nbytes
        return [Table(*place, 1, size, size, size)]
    batch, height, width, length = out.shape
    rows, runs = (width, 1) if batch == height == 1 else (batch * height, width)  # see `stripes.rows_of`
    near, far = read or length, written or length
    return [TableRuns(*place, rows, length, near * runs, far * runs, runs, near, far)]


def _quantize_problem(op: Op) -> str:
    if op.operand(0).dtype == "float32":
        return int8_problem(op.output)
    return _unary_problem(op)


def _quantize(op: Op, ctx: Context) -> list[KernelCall]:
    source, out = op.operand(0), op.output
    if source.dtype != "float32":
        return _unary(op, ctx)
    return [mc.Quantize(ctx.place(source), ctx.ref(out), out.elements, scale_of(out), zero_of(out))]


def _dequantize_problem(op: Op) -> str:
    return int8_problem(op.operand(0)) or (
        "" if op.output.dtype == "float32" else f"its output is {op.output.dtype}"
    )


def _dequantize(op: Op, ctx: Context) -> list[KernelCall]:
    source = op.operand(0)
    return [
        mc.Dequantize(
            ctx.place(source), ctx.ref(op.output), source.elements, scale_of(source), zero_of(source)
        )
    ]


def _softmax_problem(op: Op) -> str:
    problem = int8_problem(op.operand(0), op.output)
    if not problem and (scale_of(op.output) != 1 / 256 or zero_of(op.output) != -128):
        problem = f"its output must have scale 1/256 and zero point -128, not {op.output.quant}"
    if not problem and not _softmax_steps(op) > 1:
        problem = f"the scale of its input times beta must be more than 2^{_SOFTMAX_INTEGER_BITS - 31}"
    return problem


_SOFTMAX_INTEGER_BITS = 5


def _softmax_steps(op: Op) -> float:
    """What one step of the input is in Q5.26."""
    steps = float(op.options.get("beta", 1.0)) * scale_of(op.operand(0)) * (1 << (31 - _SOFTMAX_INTEGER_BITS))
    return min(steps, (1 << 31) - 1.0)


def _softmax(op: Op, ctx: Context) -> list[KernelCall]:
    source = op.operand(0)
    multiplier, shift = quantize_multiplier(_softmax_steps(op))
    # Below this difference the exponential is 0 in Q5.26.
    radius = ((1 << _SOFTMAX_INTEGER_BITS) - 1) * (1 << (31 - _SOFTMAX_INTEGER_BITS)) / (1 << shift)
    depth = source.shape[-1]
    return [
        mc.Softmax(
            input=ctx.place(source), output=ctx.ref(op.output), rows=source.elements // depth, depth=depth,
            multiplier=multiplier, shift=shift, diff_min=-math.floor(radius),
        )
    ]  # fmt: skip


_WALK = partial(KernelRule, gaps=Gaps.BOTH, in_place=True)

RULES: dict[Builtin | str, KernelRule] = {
    TABLE: KernelRule(_table, lambda op: "", gaps=Gaps.BOTH, in_place=True),
    **{kind: KernelRule(_unary, _unary_problem) for kind in kinds(Trait.UNARY)},
    Builtin.ADD: _WALK(_add, _binary_problem),
    Builtin.SUB: _WALK(_add, _binary_problem),
    Builtin.MUL: _WALK(_mul, _binary_problem),
    Builtin.MAXIMUM: _WALK(_extremum, _same_quant),
    Builtin.MINIMUM: _WALK(_extremum, _same_quant),
    Builtin.SQUARED_DIFFERENCE: _WALK(_squared_difference, _binary_problem),
    Builtin.PRELU: _WALK(_prelu, _binary_problem),
    Builtin.QUANTIZE: KernelRule(_quantize, _quantize_problem),
    Builtin.DEQUANTIZE: KernelRule(_dequantize, _dequantize_problem),
    Builtin.SOFTMAX: KernelRule(_softmax, _softmax_problem),
}
