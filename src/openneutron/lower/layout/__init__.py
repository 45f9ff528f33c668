"""Layout inference: the fewest transposed bytes, exactly, by a minimum cut.

Lowering wraps each spatial op in a TRANSPOSE to channels last and one back. Such a TRANSPOSE relates two
tensors as the two versions (0: as is, 1: channels last) of one value. Here they all vanish; each
layout-agnostic op is free to be computed in either version; and a conversion is put back only where a value
is wanted in a version that its maker does not make. Choosing the versions so that the conversions move the
fewest bytes is a binary labelling problem with submodular costs, so a minimum cut solves it to the optimum:

    agnostic  which ops can be computed in either version, and how
    orient    which version each tensor of the graph is, and which transposes are mere conversions
    problem   for each value: who makes it, who wants it, what a conversion costs; the minimum cut
    emit      the graph with the versions chosen
    borders   conversions of graph inputs and outputs left to the runtime

Two kinds of op can take a value in any order of its elements: FULLY_CONNECTED after a flatten (the columns of
its constant weights are permuted instead) and before an unflatten (the rows). Integer accumulation makes that
exact.
"""

from openneutron.litert.ir import Builtin, Graph
from openneutron.litert.perm import moves_nothing, permutation
from openneutron.lower.layout.borders import strip_border_transposes
from openneutron.lower.layout.emit import emit
from openneutron.lower.layout.orient import orient
from openneutron.lower.layout.problem import pose

__all__ = ["infer_layout", "strip_border_transposes", "transposed_bytes"]


def infer_layout(graph: Graph) -> Graph:
    """The same function, bit for bit, with the fewest bytes moved by TRANSPOSE ops."""
    before = None
    # The cut is exact for one choice of what the versions mean. Where permutations follow one another, there
    # is more than one, and the graph that comes out may suggest a better: go on as long as that gains bytes.
    while before is None or transposed_bytes(graph) < before:
        before = transposed_bytes(graph)
        if not any(op.kind is Builtin.TRANSPOSE for op in graph.ops):
            break
        plan = orient(graph)
        graph = emit(plan, pose(plan).solve()).verify()
    return graph


def transposed_bytes(graph: Graph) -> int:
    """The bytes that the graph's TRANSPOSE ops move; those that only move unit dimensions are free."""
    return sum(
        op.output.nbytes
        for op in graph.ops
        if op.kind is Builtin.TRANSPOSE
        and not (op.operand(1).is_const and moves_nothing(op.operand(0).shape, permutation(op)))
    )
