"""Fusion: fewer operators, the same bits. Each pass states when it is exact, and does nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable

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
from openneutron.compiler.graph.rewrite import Rewriter, rewrite
from openneutron.compiler.graph.tables import (
    IDENTITY,
    TABLE,
    byte_regions,
    clamp_table,
    is_byte,
    is_table,
    table_of,
)
from openneutron.litert.ir import Activation, Builtin, Graph, Op, Tensor, Trait, kinds
from openneutron.litert.perm import compose, moves_nothing

__all__ = ["PADDING", "PASSES", "fuse"]


def fuse(graph: Graph) -> Graph:
    """All passes, in order."""
    for step in PASSES:
        graph = step(graph).verify()
    return graph


def merge_tables(graph: Graph) -> Graph:
    """Element-wise functions of one byte become one table; a table that changes nothing goes.

    A table may leave all bytes alone and change what they mean (x / 4 with a quarter of the scale): that one
    stays, since readers need the meaning, but it moves nothing (`storage`).

    Exact: the table holds what the reference interpreter yields for all 256 values; float tensors never need
    to exist. Every byte tensor of a region gets its table from the region's source; those that nothing reads
    any more are dead.
    """
    regions = byte_regions(graph)

    def tabulate(op: Op, out: Rewriter) -> bool:
        region = regions.get(op.outputs[0])
        if region is None or not is_byte(op.output):
            return False
        table = table_of(region)
        if table is None:
            return False
        source = out.current(region.source)
        same = (source.shape, source.dtype, source.quant) == (
            op.output.shape,
            op.output.dtype,
            op.output.quant,
        )
        if same and np.array_equal(table, IDENTITY):
            out.replace(op.output, source)
            return True
        origin = tuple(dict.fromkeys(name for link in region.ops for name in link.origin))
        data = out.constant(f"{op.output.name}_table", table)
        out.add(Builtin.CUSTOM, [source, data], op.output, origin, custom_name=TABLE)
        return True

    return rewrite(graph, tabulate)


def fuse_activations(graph: Graph) -> Graph:
    """A table that is exactly the clamp of RELU, RELU6 or RELU_N1_TO_1 goes into the operator before it.

    Exact: the operator clamps as its last step, to the same bounds, in the same quantization.
    """
    readers = graph.consumers()
    outputs = set(graph.outputs)
    producers = graph.producers()
    fused: dict[Tensor, tuple[Op, Activation]] = {}  # output of the operator before -> table, activation
    for op in graph.ops:
        if not is_table(op):
            continue
        source = op.operand(0)
        before = producers.get(source)
        if (
            before is None
            or not before.kind.has(Trait.CLAMPS)
            or source in outputs
            or len(readers[source]) != 1
            or before.options.get("fusedActivationFunction", 0) != Activation.NONE
            or source.quant is None
            or source.quant != op.output.quant
            or source.shape != op.output.shape
            or source.dtype != op.output.dtype
        ):
            continue
        for activation in (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1):
            if np.array_equal(op.operand(1).array, clamp_table(*activation_range(activation, source.quant))):
                fused[source] = op, activation
                break
    tables = {op.output for op, _ in fused.values()}

    def fuse_one(op: Op, out: Rewriter) -> bool:
        if op.outputs[0] in tables:
            return True
        if op.outputs[0] not in fused:
            return False
        table, activation = fused[op.outputs[0]]
        options = {**op.options, "fusedActivationFunction": int(activation)}
        out.add(op.kind, op.inputs, table.output, (*op.origin, *table.origin), options)
        return True

    return rewrite(graph, fuse_one)


def merge_transposes(graph: Graph) -> Graph:
    """Transposes in a row become one; one that moves nothing in memory becomes a reshape, which is free."""
    producers = graph.producers()

    def merge(op: Op, out: Rewriter) -> bool:
        if op.kind is not Builtin.TRANSPOSE or not op.operand(1).is_const:
            return False
        source, perm = op.operand(0), tuple(int(p) for p in op.operand(1).array)
        before = producers.get(source)
        while before is not None and before.kind is Builtin.TRANSPOSE and before.operand(1).is_const:
            perm = compose(tuple(int(p) for p in before.operand(1).array), perm)
            source = out.current(before.operand(0))
            before = producers.get(source)
        if moves_nothing(source.shape, perm):
            out.reshape(source, op.output, op.origin)
        else:
            out.add(
                Builtin.TRANSPOSE, [source, out.ints(f"{op.output.name}_perm", perm)], op.output, op.origin
            )
        return True

    return rewrite(graph, merge)


def drop_moves_of_nothing(graph: Graph) -> Graph:
    """Reshapes in a row become one; a reshape, slice, pad or concatenation that keeps everything goes."""
    producers = graph.producers()

    def drop(op: Op, out: Rewriter) -> bool:
        if op.kind not in _MOVES or op.operand(0).is_const:
            return False
        source = op.operand(0)
        if op.kind is Builtin.CONCATENATION and len(op.inputs) != 1:
            return False
        if op.kind is Builtin.RESHAPE:
            before = producers.get(source)
            while before is not None and before.kind is Builtin.RESHAPE and not before.operand(0).is_const:
                source = out.current(before.operand(0))
                before = producers.get(source)
        if source.shape == op.output.shape:
            out.replace(op.output, source)
            return True
        if op.kind is Builtin.RESHAPE and source is not op.operand(0):
            out.reshape(source, op.output, op.origin)
            return True
        return False

    return rewrite(graph, drop)


# An op of these kinds whose output has its input's shape hands its input on: there is nothing else it can do.
_MOVES = kinds(Trait.PADS) | {
    Builtin.RESHAPE, Builtin.SLICE, Builtin.CONCATENATION, Builtin.TILE, Builtin.BROADCAST_TO,
}  # fmt: skip


def separate_outputs(graph: Graph) -> Graph:
    """Give every program output a tensor of its own: an input, a constant or another output is copied.

    A copy is a RESHAPE to the same shape; inputs and outputs are the caller's memory, so it moves bytes.
    """
    out = Rewriter(graph)
    for op in graph.ops:
        out.keep(op)
    taken: set[Tensor] = set(graph.inputs)
    outputs: list[Tensor] = []
    for t in graph.outputs:
        if t in taken or t.is_const:
            t = out.reshape(t, out.tensor(f"{t.name}_copy", t.shape, t.dtype, t.quant), (t.name,))
        taken.add(t)
        outputs.append(t)
    return Graph(list(graph.inputs), outputs, out.ops, graph.name)


PASSES: tuple[Callable[[Graph], Graph], ...] = (
    merge_tables,  # first: the passes below look at tables, not at thirty operators
    fuse_activations,
    widen_depthwise_of_one,
    join_group_convolutions,
    pad_after_reshape,
    fuse_padding,
    merge_transposes,  # before reshapes are merged: it makes some
    read_planes,
    drop_moves_of_nothing,
    separate_outputs,  # last: dropping a no-op may make an output an input
)
