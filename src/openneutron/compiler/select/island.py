"""Islands: float32 expressions of int8 tensors, one call each."""

from __future__ import annotations

import numpy as np

from openneutron.compiler.graph.arithmetic import scale_of, zero_of
from openneutron.compiler.graph.islands import ISLAND, Plan, plan_of
from openneutron.compiler.graph.registers import Source
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import KernelCall, Operand, OperandForm, Ref, Region, ResultForm
from openneutron.compiler.select.context import (
    Context,
    KernelRule,
    broadcast_strides,
    dense_strides,
    element_bytes,
    merged,
)
from openneutron.litert.ir import Builtin, Op, Tensor


def _problem(op: Op) -> str:
    plan = plan_of(op)
    if np.prod(plan.shape, dtype=np.int64) > mc.ISLAND_ELEMENTS:
        return f"it has more than {mc.ISLAND_ELEMENTS:,} elements"
    dims, _, _ = _walk(op, plan, [dense_strides(op.operand(s.tensor).shape) for s in plan.sources], None)
    return "" if len(dims) <= mc.MAX_RANK else f"rank {len(dims)} is more than {mc.MAX_RANK}"


def _island(op: Op, ctx: Context) -> list[KernelCall]:
    plan, out = plan_of(op), op.output
    strides = [_strides(op.operand(s.tensor), s, ctx) for s in plan.sources]
    dims, inner, reduced = _walk(op, plan, strides, ctx.strides(out))
    pad = mc.MAX_RANK - len(dims)
    *walks, output_strides = [(0,) * pad + tuple(s) for s in inner]
    operands = [_operand(op, s, w, ctx) for s, w in zip(plan.sources, walks, strict=True)]
    operands += [Operand()] * (mc.ISLAND_OPERANDS - len(operands))
    form, scale, zero, steps = ResultForm.FLOAT, 1.0, 0, Ref(Region.WEIGHTS)
    if plan.steps is not None:
        form, steps, zero = ResultForm.STEPS, ctx.pool.add(plan.steps.at), plan.steps.no_number
    elif out.dtype == "int8":
        form, scale, zero = ResultForm.INT8, scale_of(out), zero_of(out)
    a, b, c, d, e, f = operands
    call = mc.Island(
        ctx.ref(out), (1,) * pad + tuple(dims), output_strides, plan.reduction, reduced, plan.divisor,
        form, scale, zero, steps, a, b, c, d, e, f, len(plan.sources), len(plan.code), plan.code,
    )  # fmt: skip
    return [call]


def _strides(tensor: Tensor, source: Source, ctx: Context) -> list[int]:
    if source.shape == tensor.shape:
        return ctx.strides(tensor)
    return dense_strides(source.shape, element_bytes(tensor))


def _operand(op: Op, source: Source, strides: tuple[int, ...], ctx: Context) -> Operand:
    tensor = op.operand(source.tensor)
    ref = ctx.place(tensor)
    if source.table is not None:
        return Operand(ref, ctx.pool.add(source.table), OperandForm.TABLE, strides=strides)
    if tensor.dtype == "int8":
        return Operand(
            ref, form=OperandForm.INT8, scale=scale_of(tensor), zero=zero_of(tensor), strides=strides
        )
    return Operand(ref, form=OperandForm.FLOAT, strides=strides)


def _walk(
    op: Op, plan: Plan, strides: list[list[int]], out: list[int] | None
) -> tuple[list[int], list[list[int]], int]:
    """Dims, the reduced ones innermost; strides of each operand and of the output; how many are reduced."""
    rank = len(plan.shape)
    operands = [broadcast_strides(s.shape, plan.shape, w) for s, w in zip(plan.sources, strides, strict=True)]
    target = list(dense_strides(op.output.shape)) if out is None else list(out)
    if plan.axes and len(target) < rank:  # the reduced dims are gone from the output
        remaining = iter(target)
        target = [0 if a in plan.axes else next(remaining) for a in range(rank)]
    target = [0 if a in plan.axes else s for a, s in enumerate(target)]
    walks = [*operands, target]
    kept = [a for a in range(rank) if a not in plan.axes]
    dims, inner = merged([plan.shape[a] for a in kept], [[w[a] for a in kept] for w in walks])
    if not plan.axes:
        return dims or [1], inner if dims else [[0]] * len(walks), 0
    axes = sorted(plan.axes)
    more, inside = merged([plan.shape[a] for a in axes], [[w[a] for a in axes] for w in walks])
    if not more:
        more, inside = [1], [[0]] * len(walks)
    return dims + more, [a + b for a, b in zip(inner, inside, strict=True)], len(more)


RULES: dict[Builtin | str, KernelRule] = {ISLAND: KernelRule(_island, _problem, in_place=True)}
