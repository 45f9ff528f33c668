"""Reductions over axes: mean, sum, maximum, minimum, arg max."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.compiler.graph.arithmetic import quantize_multiplier, scale_of, zero_of
from openneutron.compiler.graph.shapes import axes_of
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import KernelCall
from openneutron.compiler.select.context import (
    Context,
    KernelRule,
    const_problem,
    dense_strides,
    element_bytes,
    int8_io_problem,
    int8_problem,
    product,
    walk,
)
from openneutron.litert.ir import Builtin, Op


@dataclass(frozen=True)
class Axes:
    """The input's axes, split into those that stay and those that are reduced."""

    kept: mc.Dims
    kept_strides: mc.Strides
    reduced: mc.Dims
    reduced_strides: mc.Strides
    count: int  # elements reduced to one


def _axes(op: Op) -> Axes:
    source = op.operand(0)
    axes, strides = axes_of(op.operand(1), source.rank), dense_strides(source.shape)
    inside = [a for a in range(source.rank) if a in axes]
    outside = [a for a in range(source.rank) if a not in axes]
    kept = walk([source.shape[a] for a in outside], [strides[a] for a in outside])
    reduced = walk([source.shape[a] for a in inside], [strides[a] for a in inside])
    count = product([source.shape[a] for a in inside])
    return Axes(kept.dims, kept.strides[0], reduced.dims, reduced.strides[0], count)


def _problem(op: Op) -> str:
    problem = int8_io_problem(op) or const_problem("axes", op.operand(1))
    if not problem and op.operand(0).rank > mc.MAX_RANK:
        problem = f"rank {op.operand(0).rank} is more than {mc.MAX_RANK}"
    return problem


def _mean(op: Op, ctx: Context) -> list[KernelCall]:
    source, axes = op.operand(0), _axes(op)
    multiplier, shift = quantize_multiplier(scale_of(source) / scale_of(op.output))
    # LiteRT divides the multiplier by the count, with as many extra bits as the count's size allows and a
    # right shift of at most 31.
    bits = min(axes.count.bit_length() - 1, 32, 31 + shift)
    multiplier, shift = (multiplier << bits) // axes.count, shift - bits
    return [
        mc.ReduceSum(
            input=ctx.place(source), output=ctx.ref(op.output),
            kept=axes.kept, kept_strides=axes.kept_strides,
            reduced=axes.reduced, reduced_strides=axes.reduced_strides,
            input_zero=zero_of(source), output_zero=zero_of(op.output), multiplier=multiplier, shift=shift,
        )
    ]  # fmt: skip


def _extremum_problem(op: Op) -> str:
    same = op.operand(0).quant == op.output.quant
    return _problem(op) or ("" if same else "its input and output have different quantization")


def _extremum(op: Op, ctx: Context) -> list[KernelCall]:
    axes = _axes(op)
    return [
        mc.ReduceExtremum(
            input=ctx.place(op.operand(0)), output=ctx.ref(op.output), kept=axes.kept,
            kept_strides=axes.kept_strides, reduced=axes.reduced, reduced_strides=axes.reduced_strides,
            minimum=int(op.kind is Builtin.REDUCE_MIN),
        )
    ]  # fmt: skip


def _arg_max_problem(op: Op) -> str:
    problem = int8_problem(op.operand(0)) or const_problem("axis", op.operand(1))
    if not problem and op.output.dtype not in ("int32", "int64"):
        problem = f"its output is {op.output.dtype}"
    return problem


def _arg_max(op: Op, ctx: Context) -> list[KernelCall]:
    source = op.operand(0)
    (axis,) = axes_of(op.operand(1), source.rank)
    return [
        mc.ArgMax(
            input=ctx.place(source), output=ctx.ref(op.output), outer=product(source.shape[:axis]),
            axis=source.shape[axis], inner=product(source.shape[axis + 1 :]),
            minimum=int(op.kind is Builtin.ARG_MIN),
            index_bytes=element_bytes(op.output),
        )
    ]  # fmt: skip


RULES: dict[Builtin | str, KernelRule] = {
    Builtin.MEAN: KernelRule(_mean, _problem),
    Builtin.REDUCE_MAX: KernelRule(_extremum, _extremum_problem),
    Builtin.REDUCE_MIN: KernelRule(_extremum, _extremum_problem),
    Builtin.ARG_MAX: KernelRule(_arg_max, _arg_max_problem),
    Builtin.ARG_MIN: KernelRule(_arg_max, _arg_max_problem),
}
