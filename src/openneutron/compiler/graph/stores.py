"""Writes at a place that is known only when the program runs: a row of a cache, as one call.

LiteRT starts an update at a vector with a number for each axis. What is written by position has one that
counts, between zeros; in the compiler's graphs such an op is CUSTOM "Store" with inputs (target, part, index)
and the axis. Several in a row, of consecutive parts at consecutive indices, are one.
"""

from __future__ import annotations

from openneutron.compiler.graph.shapes import Box, slice_of
from openneutron.litert.ir import Builtin, Op, Tensor
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import rule

STORE = "Store"


@rule(Builtin.DYNAMIC_UPDATE_SLICE)
def store_in_place_of_update(g: Rewriter, op: Op) -> bool:
    """An update of some rows along one axis, whose start is an index between constants, takes the index.

    Exact: along the other axes the update is as long as its target, so that it can only start at 0.
    """
    target, part, begin = (op.operand(i) for i in range(3))
    lengths = zip(part.shape, target.shape, strict=True)
    partial = [axis for axis, (length, whole) in enumerate(lengths) if length != whole]
    parts = _elements(g, begin)
    if len(partial) != 1 or parts is None or parts[partial[0]].is_const:
        return False
    g.update(op, kind=Builtin.CUSTOM, inputs=[target, part, parts[partial[0]]], options={"axis": partial[0]},
             custom_name=STORE)  # fmt: skip
    return True


def _elements(g: Rewriter, vector: Tensor) -> list[Tensor] | None:
    """The tensors that the elements of a vector are put together from; of a constant each is the constant."""
    made = g.maker(vector, Builtin.CONCATENATION)
    if made is None:
        return None
    parts = [made.operand(i) for i in range(len(made.inputs))]
    if not all(t.elements == 1 or t.is_const for t in parts):
        return None
    return [t for t in parts for _ in range(t.elements)]


@rule(STORE)
def join_stores(g: Rewriter, op: Op) -> bool:
    """A store into what a store made, of the next rows at the next indices: one of all of them.

    Exact: it writes them one after the other, too.
    """
    before = g.maker(op.operand(0))
    if before is None or before.key != STORE or not g.only_for(op.operand(0), op):
        return False
    axis = int(op.options["axis"])
    lengths = {o.operand(1).shape[axis] // o.operand(2).elements for o in (before, op)}
    if before.options["axis"] != axis or len(lengths) != 1:
        return False
    rows = _neighbours(g, before.operand(1), op.operand(1), axis)
    indices = _neighbours(g, before.operand(2), op.operand(2), 0)
    if rows is None or indices is None:
        return False
    inputs = [before.operand(0), _taken(g, *rows, op), _taken(g, *indices, op)]
    g.update(op, inputs=inputs, merged=[before, op])
    g.remove(before)
    return True


def _neighbours(g: Rewriter, first: Tensor, second: Tensor, axis: int) -> tuple[Tensor, Box] | None:
    """A tensor and the box of it that two slices are, one behind the other along an axis; None if not."""
    a, b = (g.maker(t, Builtin.SLICE) for t in (first, second))
    if a is None or b is None or a.operand(0) is not b.operand(0):
        return None
    one, two = slice_of(a), slice_of(b)
    if one is None or two is None:
        return None
    begin, size = list(one.begin), list(one.size)
    begin[axis] += size[axis]
    size[axis] = two.size[axis]
    if (tuple(begin), tuple(size)) != (two.begin, two.size):
        return None
    size[axis] += one.size[axis]
    return a.operand(0), Box(one.begin, tuple(size))


def _taken(g: Rewriter, source: Tensor, box: Box, op: Op) -> Tensor:
    """A box of a tensor: the tensor itself if it is all of it."""
    if box.size == source.shape:
        return source
    cut = g.tensor(f"{source.name}_part", box.size, source.dtype, source.quant)
    return g.slice(source, box.begin, cut, op.origin)
