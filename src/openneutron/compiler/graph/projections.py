"""Fully connected layers of a sequence that steps read row by row, cut into parts: recurrent layers.

An LSTM's or GRU's input is multiplied for all steps at once, which takes the fewest cycles and the most
memory. In parts, each made when the first step needs it, it takes a few calls more and a fraction of that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from openneutron.compiler.graph.shapes import Box, slice_of
from openneutron.litert.build import Names, ints
from openneutron.litert.ir import Builtin, Graph, Op, Tensor

PARTS = 4  # a part of a sequence of 1,000 steps is a loop still


@dataclass
class _Cut:
    """A layer in parts: the rows each has, and the tensors of those made so far."""

    op: Op
    rows: int  # of all
    each: int
    made: dict[int, Tensor] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Results of a row."""
        return self.op.output.shape[-1]

    def part_of(self, box: Box) -> int | None:
        """The part that all of a slice lies in."""
        first = box.flat_begin(self.op.output.shape)
        last = first + math.prod(box.size) - 1
        part = first // self.width // self.each
        return part if last // self.width // self.each == part else None


def cut_projections(graph: Graph, least: int) -> Graph | None:
    """Such layers of at least `least` bytes in parts; None if there is none."""
    readers, outputs = graph.consumers(), set(graph.outputs)
    cuts: dict[Tensor, _Cut] = {}
    for op in graph.ops:
        if op.kind is Builtin.FULLY_CONNECTED and op.output.nbytes >= least and op.output not in outputs:
            rows = op.output.elements // op.output.shape[-1]
            cut = _Cut(op, rows, -(-rows // PARTS))
            if rows >= 2 * PARTS and all(_fits(cut, reader) for reader in readers.get(op.output, ())):
                cuts[op.output] = cut
    if not cuts:
        return None
    names = Names(t.name for t in graph.tensors())
    ops = [new for op in graph.ops for new in _rewritten(op, cuts, names)]
    return Graph(list(graph.inputs), list(graph.outputs), ops, graph.name, graph.states).verify()


def _fits(cut: _Cut, reader: Op) -> bool:
    """Whether an op is a slice that lies in one part, in one row or of whole rows."""
    box = slice_of(reader)
    if box is None or not box.is_contiguous(cut.op.output.shape) or cut.part_of(box) is None:
        return False
    first, count = box.flat_begin(cut.op.output.shape) % cut.width, math.prod(box.size)
    return first + count <= cut.width or (first == 0 and count % cut.width == 0)


def _rewritten(op: Op, cuts: dict[Tensor, _Cut], names: Names) -> Iterator[Op]:
    if any(t in cuts for t in op.outputs):
        return  # its parts come where they are read first
    cut = cuts.get(op.operand(0)) if slice_of(op) is not None else None
    box = slice_of(op)
    if cut is None or box is None:
        yield op
        return
    part = cut.part_of(box)
    assert part is not None, "looked at above"
    if part not in cut.made:
        yield from _part(cut, part, names)
    source, out = cut.made[part], op.output
    row, column = divmod(box.flat_begin(cut.op.output.shape), cut.width)
    size = (max(out.elements // cut.width, 1), min(out.elements, cut.width))
    begins = ints((row - part * cut.each, column), names.fresh(f"{out.name}_begin"))
    view = replace(out, name=names.fresh(f"{out.name}_rows"), shape=size)
    yield Op(
        Builtin.SLICE, [source, begins, ints(size, names.fresh(f"{out.name}_size"))], [view], {}, op.origin
    )
    shape = ints(out.shape, names.fresh(f"{out.name}_shape"))
    yield Op(Builtin.RESHAPE, [view, shape], [out], {"newShape": out.shape}, op.origin)


def _part(cut: _Cut, part: int, names: Names) -> Iterator[Op]:
    """The ops that make a part: the rows of the input it needs, seen as such, and the layer."""
    op, source, first = cut.op, cut.op.operand(0), part * cut.each
    rows, depth = min(cut.each, cut.rows - first), source.elements // cut.rows
    flat = replace(source, name=names.fresh(f"{source.name}_flat"), shape=(cut.rows, depth))
    taken = replace(source, name=names.fresh(f"{source.name}_part"), shape=(rows, depth))
    made = replace(op.output, name=names.fresh(f"{op.output.name}_part"), shape=(rows, cut.width))
    shape = ints(flat.shape, names.fresh(f"{flat.name}_shape"))
    yield Op(Builtin.RESHAPE, [source, shape], [flat], {"newShape": flat.shape}, op.origin)
    begins, sizes = (ints(v, names.fresh(taken.name)) for v in ((first, 0), taken.shape))
    yield Op(Builtin.SLICE, [flat, begins, sizes], [taken], {}, op.origin)
    options = {**op.options, "keepNumDims": False}
    yield Op(op.kind, [taken, *op.inputs[1:]], [made], options, op.origin)
    cut.made[part] = made
