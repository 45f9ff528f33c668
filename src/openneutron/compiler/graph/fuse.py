"""Fusion: fewer operators, the same bits. Each pass states when it is exact, and does nothing otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np

from openneutron.compiler.emit.quantized import activation_range
from openneutron.compiler.graph.fuse_conv import (
    PADDING,
    fuse_padding,
    join_group_convolutions,
    pad_after_reshape,
    read_planes,
    widen_depthwise_of_one,
)
from openneutron.compiler.graph.islands import form_islands
from openneutron.compiler.graph.shapes import concat_axis, slice_of
from openneutron.compiler.graph.tables import (
    IDENTITY,
    TABLE,
    byte_functions,
    clamp_table,
    is_byte,
    is_table,
    table_of,
)
from openneutron.litert.build import Names, ints
from openneutron.litert.ir import Activation, Builtin, Graph, Op, Tensor, Trait, kinds
from openneutron.litert.rewriter import Rewriter, rewrite
from openneutron.lower.rules import tidy

__all__ = ["PADDING", "PASSES", "fuse"]


def fuse(graph: Graph) -> Graph:
    """All passes, in order."""
    for step in PASSES:
        graph = step(graph)  # each verifies what it changed
    return graph.verify()


def merge_tables(graph: Graph) -> Graph:
    """Element-wise functions of one byte become one table; a table that changes nothing goes.

    A table may leave all bytes alone and change what they mean (x / 4 with a quarter of the scale): that one
    stays, since readers need the meaning, but it moves nothing (`storage`).

    Exact: the table holds what the reference interpreter yields for all 256 values; float tensors never need
    to exist. Every byte tensor of a region gets its table from the region's source; those that nothing reads
    any more are dead.
    """
    regions = byte_functions(graph)

    def tabulate(g: Rewriter, op: Op) -> bool:
        region = regions.get(op.outputs[0])
        if region is None or not is_byte(op.output):
            return False
        table = table_of(region)
        if table is None:
            return False
        source = g.current(region.source)
        same = (source.shape, source.dtype, source.quant) == (
            op.output.shape,
            op.output.dtype,
            op.output.quant,
        )
        if same and np.array_equal(table, IDENTITY):
            g.replace(op.output, source)
            return True
        origin = tuple(dict.fromkeys(name for link in region.ops for name in link.origin))
        data = g.constant(f"{op.output.name}_table", table)
        g.add(Builtin.CUSTOM, [source, data], op.output, origin, custom_name=TABLE)
        return True

    return rewrite(graph, tabulate)


def fuse_activations(graph: Graph) -> Graph:
    """A table that is exactly the clamp of RELU, RELU6 or RELU_N1_TO_1 goes into the operator before it.

    Exact: the operator clamps as its last step, to the same bounds, in the same quantization. Clamps that are
    operators of LiteRT are there already (`lower.rules`); these are all the others.
    """

    def fuse_one(g: Rewriter, op: Op) -> bool:
        if not is_table(op):
            return False
        source, output = op.operand(0), op.output
        before = g.maker(source, *kinds(Trait.CLAMPS))
        if before is None or before.options.get("fusedActivationFunction") or source.quant is None:
            return False
        same = (source.shape, source.dtype, source.quant) == (output.shape, output.dtype, output.quant)
        if not same or not g.only_for(source, op):
            return False
        for activation in (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1):
            if np.array_equal(op.operand(1).array, clamp_table(*activation_range(activation, source.quant))):
                options = {**before.options, "fusedActivationFunction": int(activation)}
                g.remove(op)
                g.update(before, output=output, options=options, merged=[before, op])
                return True
        return False

    return rewrite(graph, fuse_one)


def read_parts(graph: Graph) -> Graph:
    """A slice that takes just one part of a concatenation is that part: the last step of a recurrent layer.

    Exact: a concatenation has its parts as they are, and a reshape in between moves no byte.
    """

    def take(g: Rewriter, op: Op) -> bool:
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

    return rewrite(graph, take)


def join_transposes(graph: Graph) -> Graph:
    """A transpose, a reshape that only splits dimensions, a transpose: one of the map with these split.

    Pixels from channels as PyTorch has it (PixelShuffle) comes to this. Exact: elements go where they went.
    """

    def join(g: Rewriter, op: Op) -> bool:
        if op.kind is not Builtin.TRANSPOSE:
            return False
        between = g.maker(op.operand(0), Builtin.RESHAPE)
        before = between and g.maker(between.operand(0), Builtin.TRANSPOSE)
        if between is None or before is None or not g.only_for(op.operand(0), op):
            return False
        parts = _split_dimensions(before.output.shape, op.operand(0).shape)
        if parts is None or not g.only_for(before.output, between):
            return False
        first, second = ([int(p) for p in o.operand(1).array] for o in (before, op))
        source = before.operand(0)
        split = [parts[first.index(axis)] for axis in range(source.rank)]
        order = [axis for group in split for axis in group]  # positions in the second's input, as they lie
        shape = tuple(op.operand(0).shape[axis] for axis in order)
        view = replace(source, name=g.names.fresh(f"{source.name}_split"), shape=shape, data=None)
        target = g.constant(f"{view.name}_shape", np.array(shape, np.int32))
        perm = g.constant(f"{view.name}_perm", np.array([order.index(p) for p in second], np.int32))
        g.add(Builtin.RESHAPE, [source, target], view, before.origin, options={"newShape": shape})
        g.update(op, inputs=[view, perm], merged=[before, op])
        for dead in (between, before):
            g.remove(dead)
        return True

    return rewrite(graph, join)


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


def read_unflattened(graph: Graph) -> Graph:
    """A fully connected layer reads a map as it is, not flattened: its rows stay known.

    Exact: a reshape moves no byte, and the layer takes its input as so many values one behind the other.
    """

    def look_behind(g: Rewriter, op: Op) -> bool:
        if op.kind is not Builtin.FULLY_CONNECTED:
            return False
        before = g.maker(op.operand(0), Builtin.RESHAPE)
        if before is None or before.operand(0).is_const or not g.only_for(op.operand(0), op):
            return False
        g.update(op, inputs=[before.operand(0), *op.inputs[1:]])
        g.remove(before)
        return True

    return rewrite(graph, look_behind)


def separate_outputs(graph: Graph) -> Graph:
    """Give every program output a tensor of its own: an input, a constant or another output is copied.

    A copy is a RESHAPE to the same shape; inputs and outputs are the caller's memory, so it moves bytes.
    """
    names = Names(t.name for t in graph.tensors())
    taken: set[Tensor] = set(graph.inputs)
    outputs: list[Tensor] = []
    copies: list[Op] = []
    for t in graph.outputs:
        source = t
        if t in taken or t.is_const:
            t = replace(source, name=names.fresh(f"{t.name}_copy"), data=None)
            shape = ints(t.shape, names.fresh(f"{t.name}_shape"))
            copies.append(Op(Builtin.RESHAPE, [source, shape], [t], {"newShape": t.shape}, (source.name,)))
        taken.add(t)
        outputs.append(t)
    return Graph(list(graph.inputs), outputs, [*graph.ops, *copies], graph.name)


PASSES: tuple[Callable[[Graph], Graph], ...] = (
    merge_tables,  # first: the passes below look at tables, not at thirty operators
    form_islands,  # what is left of float operators
    fuse_activations,
    widen_depthwise_of_one,
    join_group_convolutions,
    pad_after_reshape,
    fuse_padding,
    tidy,  # fusion adds reshapes, and takes out what stood between others
    read_planes,
    read_parts,
    tidy,
    join_transposes,
    read_unflattened,
    separate_outputs,  # last: dropping a no-op may make an output an input
)
