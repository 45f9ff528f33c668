"""Fusion: fewer operators, the same bits. Each rule states when it is exact, and does nothing otherwise."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np

from openneutron.compiler.graph.arithmetic import activation_range
from openneutron.compiler.graph.shapes import concat_axis, slice_of
from openneutron.compiler.graph.tables import (
    IDENTITY,
    TABLE,
    ByteFunction,
    byte_functions,
    clamp_table,
    is_byte,
    table_of,
)
from openneutron.litert.ir import Activation, Builtin, Op, Tensor, Trait
from openneutron.litert.perm import permutation
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import ANY, rule
from openneutron.lower.rules.fusion import clamp_in


@rule(ANY, facts=byte_functions)
def merge_tables(g: Rewriter, op: Op, regions: dict[Tensor, ByteFunction]) -> bool:
    """Element-wise functions of one byte become one table; a table that changes nothing goes.

    A table may leave all bytes alone and change what they mean (x / 4 with a quarter of the scale): that one
    stays, since readers need the meaning, but it moves nothing (`storage`).

    Exact: the table holds what the reference interpreter yields for all 256 values; float tensors never need
    to exist. Every byte tensor of a region gets its table from the region's source; those that nothing reads
    any more are dead.
    """
    region = regions.get(op.outputs[0])
    table = table_of(region) if region is not None and is_byte(op.output) else None
    if region is None or table is None:
        return False
    source = g.current(region.source)
    if source.is_like(op.output) and np.array_equal(table, IDENTITY):
        g.replace(op.output, source)
        return True
    origin = tuple(dict.fromkeys(name for link in region.ops for name in link.origin))
    data = g.constant(f"{op.output.name}_table", table)
    g.add(Builtin.CUSTOM, [source, data], op.output, origin, custom_name=TABLE)
    return True


@rule(Trait.CLAMPS, TABLE)
def fuse_clamping_table(g: Rewriter, before: Op, op: Op) -> bool:
    """A table that is exactly the clamp of RELU, RELU6 or RELU_N1_TO_1 goes into the operator before it.

    Exact: the operator clamps as its last step, to the same bounds, in the same quantization. Clamps that are
    operators of LiteRT are there already (`lower.rules`); these are all the others.
    """
    source = op.operand(0)
    if source.quant is None or not source.is_like(op.output):
        return False
    for activation in (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1):
        if np.array_equal(op.operand(1).array, clamp_table(*activation_range(activation, source.quant))):
            return clamp_in(g, before, op, activation)
    return False


@rule((Builtin.SLICE, Builtin.STRIDED_SLICE))
def read_parts(g: Rewriter, op: Op) -> bool:
    """A slice that takes just one part of a concatenation is that part: the last step of a recurrent layer.

    Exact: a concatenation has its parts as they are, and a reshape in between moves no byte.
    """
    box = slice_of(op)
    if box is None or not box.is_contiguous(op.operand(0).shape):
        return False
    chain = []  # from the slice up to the concatenation
    tensor = op.operand(0)
    while (made := g.maker(tensor, Builtin.RESHAPE, Builtin.CONCATENATION)) is not None:
        chain.append(made)
        if made.kind is Builtin.CONCATENATION:
            break
        tensor = made.operand(0)
    if made is None or math.prod(made.output.shape[: concat_axis(made)]) != 1:
        return False
    ends = list(accumulate(made.operand(i).elements for i in range(len(made.inputs))))
    first = box.flat_begin(op.operand(0).shape)
    if first + op.output.elements not in ends:
        return False
    part, out = made.operand(ends.index(first + op.output.elements)), op.output
    same = (part.elements, part.dtype, part.quant) == (out.elements, out.dtype, out.quant)
    if not same or part.is_const or made.options.get("fusedActivationFunction"):
        return False
    shape = g.ints(f"{out.name}_shape", out.shape)
    g.update(op, kind=Builtin.RESHAPE, inputs=[part, shape], options={"newShape": out.shape})
    for link in chain:
        if not g.readers(link.output) and not g.is_output(link.output):
            g.remove(link)
    return True


@rule(Builtin.TRANSPOSE, Builtin.RESHAPE, Builtin.TRANSPOSE)
def join_transposes(g: Rewriter, before: Op, between: Op, op: Op) -> bool:
    """A transpose, a reshape that only splits dimensions, a transpose: one of the map with these split.

    Pixels from channels as PyTorch has it (PixelShuffle) comes to this. Exact: elements go where they went.
    """
    parts = _split_dimensions(before.output.shape, op.operand(0).shape)
    if parts is None or not g.only_for(op.operand(0), op) or not g.only_for(before.output, between):
        return False
    first, second = permutation(before), permutation(op)
    source = before.operand(0)
    split = [parts[first.index(axis)] for axis in range(source.rank)]
    order = [axis for group in split for axis in group]  # positions in the second's input, as they lie
    shape = tuple(op.operand(0).shape[axis] for axis in order)
    view = g.tensor(f"{source.name}_split", shape, source.dtype, source.quant)
    g.reshape(source, view, before.origin)
    perm = g.ints(f"{view.name}_perm", [order.index(p) for p in second])
    g.update(op, inputs=[view, perm], merged=[before, op])
    for dead in (between, before):
        g.remove(dead)
    return True


def _split_dimensions(shape: tuple[int, ...], parts: tuple[int, ...]) -> list[list[int]] | None:
    """Which positions of `parts` each dimension of `shape` is split into; None if one is in two of these."""
    result, at = [], 0
    for dim in shape:
        group, size = [], 1
        while at < len(parts) and size * parts[at] <= dim and (size < dim or parts[at] == 1):
            size *= parts[at]
            group.append(at)
            at += 1
        if size != dim:
            return None
        result.append(group)
    return result if at == len(parts) else None


@rule(Builtin.RESHAPE, Builtin.FULLY_CONNECTED)
def read_unflattened(g: Rewriter, before: Op, op: Op) -> bool:
    """A fully connected layer reads a map as it is, not flattened: its rows stay known.

    Exact: a reshape moves no byte, and the layer takes its input as so many values one behind the other.
    """
    if before.operand(0).is_const or not g.only_for(op.operand(0), op):
        return False
    g.update(op, inputs=[before.operand(0), *op.inputs[1:]])
    g.remove(before)
    return True
