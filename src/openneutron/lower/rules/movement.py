"""Rules for ops that only move data: transposes and reshapes, merged, cancelled, or turned into less."""

from __future__ import annotations

from dataclasses import replace

from openneutron.litert.build import ints
from openneutron.litert.ir import Builtin, Op, Tensor, Trait, kinds
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


def reshape_in_place_of_squeeze(g: Rewriter, op: Op) -> bool:
    """SQUEEZE and EXPAND_DIMS become RESHAPE, which the other rules know."""
    if not op.kind.has(Trait.RENAMES) or op.kind is Builtin.RESHAPE:
        return False
    _become_reshape(g, op, op.operand(0))
    return True


def fold_constant_movement(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE or RESHAPE of a constant becomes a constant."""
    if op.kind not in (Builtin.TRANSPOSE, Builtin.RESHAPE) or not op.operand(0).is_const:
        return False
    source, target = op.operand(0), op.output
    if g.is_output(target) or not (source.quant is None or source.quant.is_per_tensor):
        return False
    name = g.names.fresh(source.name)
    if op.kind is Builtin.RESHAPE:
        return g.bypass(op, reshaped_constant(source, target.shape, name))
    perm = _perm(op)
    return perm is not None and g.bypass(op, transposed_constant(source, perm, name))


def drop_identity_reshape(g: Rewriter, op: Op) -> bool:
    """A RESHAPE to the shape that is there already goes."""
    return (
        op.kind is Builtin.RESHAPE and op.operand(0).shape == op.output.shape and g.bypass(op, op.operand(0))
    )


def drop_identity_transpose(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE that permutes nothing goes; inverse transposes come to this when they are merged."""
    perm = _perm(op)
    return perm is not None and perm == identity(len(perm)) and g.bypass(op, op.operand(0))


def reshape_in_place_of_transpose(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE that only moves dimensions of size 1 becomes a RESHAPE, which costs nothing."""
    perm = _perm(op)
    if perm is None or not moves_nothing(op.operand(0).shape, perm):
        return False
    _become_reshape(g, op, op.operand(0))
    return True


def merge_transposes(g: Rewriter, op: Op) -> bool:
    """TRANSPOSE of a TRANSPOSE: one, with both permutations in it."""
    before = g.maker(op.operand(0), Builtin.TRANSPOSE) if op.kind is Builtin.TRANSPOSE else None
    first, second = (_perm(before), _perm(op)) if before is not None else (None, None)
    if before is None or first is None or second is None:
        return False
    if moves_nothing(op.operand(0).shape, second) and not g.only_for(before.output, op):
        return False  # it costs nothing as it is, and the one before it stays anyway
    order = ints(compose(first, second), g.names.fresh(f"{op.output.name}_perm"))
    g.update(op, inputs=[before.operand(0), order], merged=[before, op])
    return True


def merge_reshapes(g: Rewriter, op: Op) -> bool:
    """RESHAPE of a RESHAPE: only the last shape counts."""
    before = g.maker(op.operand(0), Builtin.RESHAPE) if op.kind is Builtin.RESHAPE else None
    if before is None:
        return False
    g.update(op, inputs=[before.operand(0), *op.inputs[1:]], merged=[before, op])
    return True


def merge_movement_across_unary(g: Rewriter, op: Op) -> bool:
    """movement, elementwise op, movement of the same kind: compute first, then move once."""
    if op.kind not in (Builtin.RESHAPE, Builtin.TRANSPOSE):
        return False
    unary = g.maker(op.operand(0), *kinds(Trait.UNARY))
    before = g.maker(unary.operand(0), op.kind) if unary is not None else None
    if unary is None or before is None:
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
        parameters = [ints(compose(first, second), g.names.fresh(f"{op.output.name}_perm"))]
    g.update(op, inputs=[result, *parameters], merged=[before, op])
    # The elementwise op takes the place of the first movement, so that the order stays legal.
    inputs = [source, *unary.inputs[1:]]
    g.remove(unary)
    g.update(before, kind=unary.kind, inputs=inputs, output=result, options=unary.options, merged=[unary])
    return True


def fold_transpose_into_matmul(g: Rewriter, op: Op) -> bool:
    """A TRANSPOSE of the last two dimensions before BATCH_MATMUL becomes its adjX or adjY."""
    if op.kind is not Builtin.BATCH_MATMUL:
        return False
    for index, flag in enumerate(("adjX", "adjY")):
        before = g.maker(op.operand(index), Builtin.TRANSPOSE)
        perm = _perm(before) if before is not None else None
        if before is None or perm is None or len(perm) < 2:
            continue
        rank = len(perm)
        if perm == (*range(rank - 2), rank - 1, rank - 2):
            inputs = list(op.inputs)
            inputs[index] = before.operand(0)
            options = {**op.options, flag: not op.options.get(flag, False)}
            g.update(op, inputs=inputs, options=options, merged=[before, op])
            return True
    return False


def _perm(op: Op) -> Perm | None:
    """The permutation of a TRANSPOSE, if it is known."""
    return permutation(op) if op.kind is Builtin.TRANSPOSE and op.operand(1).is_const else None


def _become_reshape(g: Rewriter, op: Op, source: Tensor) -> None:
    shape = op.output.shape
    target = ints(shape, g.names.fresh(f"{op.output.name}_shape"))
    g.update(op, kind=Builtin.RESHAPE, inputs=[source, target], options={"newShape": shape})
