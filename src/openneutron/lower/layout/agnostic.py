"""Which ops can be computed in either layout, and what changes in them when they are.

A tensor of rank 3 or more has two versions: 0, as is (N, C, ...), and 1, channels last (N, ..., C). An op is
agnostic when it can be computed on the other version of its operands and then gives, bit for bit, the other
version of its result: only its parameters (axes, paddings, constant operands) have to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openneutron.litert.build import Names
from openneutron.litert.ir import Builtin, Op, Tensor, Trait, constant, kinds
from openneutron.litert.perm import Perm, reshaped_constant, to_first, to_last, transposed_constant

# Every operand comes in the op's version.
_PAIRED = kinds(Trait.BINARY | Trait.TERNARY) | {Builtin.CONCATENATION}

MAX_RANK = 6
"""LiteRT transposes no more dimensions than this; what could not be converted must stay as it is."""

Turn = Callable[[int], Perm]
"""The permutation, by rank, from the version that an op is written in to the other one."""


def turn_from(version: int) -> Turn:
    """The permutation that leaves this version for the other one."""
    return to_first if version else to_last


def depends_on_version(op: Op) -> bool:
    """Whether it must be known which version the operands are before one can say if the op is agnostic."""
    if op.kind.has(Trait.REDUCES):
        return not op.options.get("keepDims", False) or _adds_floats(op)
    return op.kind is Builtin.RESHAPE


def _adds_floats(op: Op) -> bool:
    return op.kind in (Builtin.MEAN, Builtin.SUM) and op.operand(0).dtype == "float32"


def layout_operands(op: Op) -> list[Tensor]:
    """The computed operands that must come in the version that the (agnostic) op is computed in."""
    if op.kind in _PAIRED:
        # A single element is the same in every version.
        return [t for t in op.inputs if t is not None and not t.is_const and t.elements != 1]
    return [op.operand(0)]


def is_agnostic(op: Op, version: int) -> bool:
    """Whether an op whose operands are in `version` could be computed in the other one."""
    if len(op.outputs) != 1 or (op.output.quant is not None and not op.output.quant.is_per_tensor):
        return False
    rank = op.output.rank
    if max(rank, *(t.rank for t in op.inputs if t is not None)) > MAX_RANK:
        return False
    if op.kind.has(Trait.UNARY):
        return not op.operand(0).is_const
    if op.kind.has(Trait.BINARY | Trait.TERNARY):
        return all(
            t is not None
            and (t.elements == 1 or t.rank == rank or (t.is_const and t.rank < rank))
            and (t.quant is None or t.quant.is_per_tensor)
            for t in op.inputs
        )
    if op.kind is Builtin.CONCATENATION:
        return all(t is not None and t.rank == rank for t in op.inputs)
    if op.kind.has(Trait.PER_DIMENSION):
        masked = any(op.options.get(m) for m in ("ellipsisMask", "newAxisMask", "shrinkAxisMask"))
        complete = all(t.is_const and t.rank and t.shape[0] == rank for t in _per_dimension(op))
        return op.operand(0).rank == rank and complete and not masked
    if op.kind.has(Trait.REDUCES):
        return _axes_are_free(op, version) and _reduce_is_agnostic(op, version)
    if op.kind is Builtin.RESHAPE:
        return _reshape_is_agnostic(op.operand(0), op.output, version)
    return False


def _per_dimension(op: Op) -> list[Tensor]:
    """The parameters with one entry per dimension: all but the fill value of PADV2."""
    parameters = op.inputs[1:2] if op.kind is Builtin.PADV2 else op.inputs[1:]
    return [t for t in parameters if t is not None]


def _reshape_is_agnostic(source: Tensor, target: Tensor, version: int) -> bool:
    """Batch and channels stay, the other dimensions are regrouped: the same is true in the other version."""
    if min(source.rank, target.rank) < 2 or max(source.rank, target.rank) < 3:
        return False
    channels = -1 if version else 1
    return source.shape[0] == target.shape[0] and source.shape[channels] == target.shape[channels]


def _axes_are_free(op: Op, version: int) -> bool:
    """Whether a reduction may be taken in the other version: one that adds floats must keep their order."""
    if not op.operand(1).is_const:
        return False
    if not _adds_floats(op):
        return True
    turn, axes = turn_from(version)(op.operand(0).rank), reduced_axes(op)
    return [p for p in turn if p in axes] == sorted(axes)


def _reduce_is_agnostic(op: Op, version: int) -> bool:
    if op.options.get("keepDims", False):
        return True
    rank, axes = op.operand(0).rank, reduced_axes(op)
    channels = rank - 1 if version else 1
    return 0 not in axes and channels not in axes


def reads_either(op: Op, version: int) -> bool:
    """Whether the op gives the very same result from either version of its operand (axes mapped).

    So does a reduction that leaves the remaining dimensions in one order, whatever the version.
    """
    if not op.kind.has(Trait.REDUCES) or op.options.get("keepDims", False) or not _axes_are_free(op, version):
        return False
    turn, axes = turn_from(version)(op.operand(0).rank), reduced_axes(op)
    return [p for p in turn if p not in axes] == [p for p in range(len(turn)) if p not in axes]


def reduced_axes(op: Op) -> set[int]:
    """The axes of a reduction, none of them negative."""
    rank = op.operand(0).rank
    return {int(a) % rank for a in op.operand(1).array.reshape(-1)}


def relayout(op: Op, turn: Turn, inputs: Sequence[Tensor | None], output: Tensor, names: Names) -> Op:
    """The op computed in the other version: `inputs` has the computed operands, `output` the result, turned.

    Constant operands and parameters in `inputs` are still as they were; they are turned here.
    """
    operands: list[Tensor | None] = list(inputs)
    options: dict[str, Any] = dict(op.options)
    source = op.operand(0)
    perm = turn(source.rank)

    def parameter(index: int, values: np.ndarray) -> None:
        old = op.operand(index)
        operands[index] = constant(names.fresh(old.name), values.astype(old.dtype), old.quant)

    if op.kind in _PAIRED:
        perm = turn(output.rank)
        for index, operand in enumerate(op.inputs):
            if operand is not None and operand.is_const and operand.elements != 1:
                full = (1,) * (output.rank - operand.rank) + operand.shape
                raised = reshaped_constant(operand, full, operand.name)
                operands[index] = transposed_constant(raised, perm, names.fresh(operand.name))
        if op.kind is Builtin.CONCATENATION:
            options["axis"] = perm.index(int(options.get("axis", 0)) % output.rank)
    elif op.kind.has(Trait.PER_DIMENSION):
        for index, old in enumerate(_per_dimension(op), start=1):
            parameter(index, old.array[list(perm)])
        for mask in ("beginMask", "endMask"):
            if options.get(mask):
                options[mask] = sum(1 << i for i, p in enumerate(perm) if options[mask] >> p & 1)
    elif op.kind.has(Trait.REDUCES):
        parameter(1, np.array(sorted(perm.index(a) for a in reduced_axes(op))))
    elif op.kind is Builtin.RESHAPE:
        shape = constant(names.fresh(f"{output.name}_shape"), np.array(output.shape, np.int32))
        operands[1:] = [shape]
        options["newShape"] = output.shape
    return Op(op.kind, operands, [output], options, op.origin, op.custom_name)


def turned_flat_order(shape: Sequence[int], version: int) -> np.ndarray:
    """For a tensor flattened but for its batch: where in it each element of the other version stands."""
    perm = turn_from(version)(len(shape))
    order = np.arange(int(np.prod(shape[1:]))).reshape(1, *shape[1:])
    return np.transpose(order, perm).reshape(-1)


def between(version: int, wanted: int, rank: int) -> Perm:
    """The permutation from one version to another."""
    if version == wanted:
        return tuple(range(rank))
    return turn_from(version)(rank)
