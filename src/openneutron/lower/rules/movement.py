"""Rules for ops that only move data: transposes and reshapes, merged, cancelled, or turned into less."""

from __future__ import annotations

from dataclasses import replace

from openneutron.litert.ir import Builtin, Op, Trait
from openneutron.litert.perm import (
    Perm,
    compose,
    identity,
    moves_nothing,
    permutation,
    reshaped_constant,
    transposed_constant,
)
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import rule

_MOVES = (Builtin.RESHAPE, Builtin.TRANSPOSE)


@rule((Builtin.SQUEEZE, Builtin.EXPAND_DIMS))
def reshape_in_place_of_squeeze(g: Rewriter, op: Op) -> bool:
    """SQUEEZE and EXPAND_DIMS become RESHAPE, which the other rules know."""
    return _become_reshape(g, op)


@rule(_MOVES)
def fold_constant_movement(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE or RESHAPE of a constant becomes a constant."""
    source, target = op.operand(0), op.output
    if not source.is_const or g.is_output(target) or not (source.quant is None or source.quant.is_per_tensor):
        return False
    name = g.names.fresh(source.name)
    if op.kind is Builtin.RESHAPE:
        return g.bypass(op, reshaped_constant(source, target.shape, name))
    perm = _perm(op)
    return perm is not None and g.bypass(op, transposed_constant(source, perm, name))


@rule(Builtin.RESHAPE)
def drop_identity_reshape(g: Rewriter, op: Op) -> bool:
    """A RESHAPE to the shape that is there already goes."""
    return op.operand(0).shape == op.output.shape and g.bypass(op, op.operand(0))


@rule(Builtin.TRANSPOSE)
def drop_identity_transpose(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE that permutes nothing goes; inverse transposes come to this when they are merged."""
    perm = _perm(op)
    return perm is not None and perm == identity(len(perm)) and g.bypass(op, op.operand(0))


@rule(Builtin.TRANSPOSE)
def reshape_in_place_of_transpose(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE that only moves dimensions of size 1 becomes a RESHAPE, which costs nothing."""
    perm = _perm(op)
    return perm is not None and moves_nothing(op.operand(0).shape, perm) and _become_reshape(g, op)


@rule(Builtin.TRANSPOSE, Builtin.TRANSPOSE)
def merge_transposes(g: Rewriter, before: Op, op: Op) -> bool:
    """TRANSPOSE of a TRANSPOSE: one, with both permutations in it."""
    first, second = _perm(before), _perm(op)
    if first is None or second is None:
        return False
    if moves_nothing(op.operand(0).shape, second) and not g.only_for(before.output, op):
        return False  # it costs nothing as it is, and the one before it stays anyway
    order = g.ints(f"{op.output.name}_perm", compose(first, second))
    g.update(op, inputs=[before.operand(0), order], merged=[before, op])
    return True


@rule(Builtin.RESHAPE, Builtin.RESHAPE)
def merge_reshapes(g: Rewriter, before: Op, op: Op) -> bool:
    """RESHAPE of a RESHAPE: only the last shape counts."""
    g.update(op, inputs=[before.operand(0), *op.inputs[1:]], merged=[before, op])
    return True


@rule(_MOVES, Trait.UNARY, _MOVES)
def merge_movement_across_unary(g: Rewriter, before: Op, unary: Op, op: Op) -> bool:
    """Movement, elementwise op, movement of the same kind: compute first, then move once."""
    if before.kind is not op.kind:
        return False
    if not (g.only_for(unary.output, op) and g.only_for(before.output, unary)):
        return False  # somebody else wants what is between: merging would add an op, not save one
    first, second = _perm(before), _perm(op)
    if op.kind is Builtin.TRANSPOSE and (first is None or second is None):
        return False
    source = before.operand(0)
    name = g.names.fresh(f"{unary.output.name}_unmoved")
    result = replace(unary.output, name=name, shape=source.shape)
    parameters = op.inputs[1:]
    if first is not None and second is not None:
        parameters = [g.ints(f"{op.output.name}_perm", compose(first, second))]
    g.update(op, inputs=[result, *parameters], merged=[before, op])
    # The elementwise op takes the place of the first movement, so that the order stays legal.
    inputs = [source, *unary.inputs[1:]]
    g.remove(unary)
    g.update(before, kind=unary.kind, inputs=inputs, output=result, options=unary.options, merged=[unary])
    return True


@rule(Builtin.BATCH_MATMUL)
def fold_transpose_into_matmul(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE of the last two dimensions before BATCH_MATMUL becomes its adjX or adjY.

    A RESHAPE in between that leaves these two alone is one of what the TRANSPOSE reads.
    """
    for index, flag in enumerate(("adjX", "adjY")):
        operand = op.operand(index)
        between = g.maker(operand, Builtin.RESHAPE)
        if between is not None and between.operand(0).shape[-2:] != operand.shape[-2:]:
            between = None
        before = g.maker(between.operand(0) if between is not None else operand, Builtin.TRANSPOSE)
        perm = _perm(before) if before is not None else None
        if before is None or perm is None or len(perm) < 2:
            continue
        rank = len(perm)
        if perm == (*range(rank - 2), rank - 1, rank - 2):
            inputs, source = list(op.inputs), before.operand(0)
            if between is not None:
                shape = (*operand.shape[:-2], *source.shape[-2:])
                view = g.tensor(f"{source.name}_view", shape, source.dtype, source.quant)
                source = g.reshape(source, view, between.origin)
            inputs[index] = source
            options = {**op.options, flag: not op.options.get(flag, False)}
            g.update(op, inputs=inputs, options=options, merged=[before, op])
            return True
    return False


def _perm(op: Op) -> Perm | None:
    """The permutation of a TRANSPOSE, if it is known."""
    return permutation(op) if op.kind is Builtin.TRANSPOSE and op.operand(1).is_const else None


def _become_reshape(g: Rewriter, op: Op) -> bool:
    shape = op.output.shape
    target = g.ints(f"{op.output.name}_shape", shape)
    g.update(op, kind=Builtin.RESHAPE, inputs=[op.operand(0), target], options={"newShape": shape})
    return True
