"""Import: any static LiteRT graph becomes one of fewer operators, which the later stages know.

Operators that only spell a reshape, a slice or a concatenation differently are rewritten to those; what can
be computed now is computed now, by the oracle itself, so that folding never changes a bit. Then come the
rules of `lower`: a graph of ours has been through them, one from a file has not.
"""

from __future__ import annotations

import numpy as np

from openneutron.compiler.graph.check import check_graph
from openneutron.compiler.graph.shapes import axes_of, resolve_strided_slice
from openneutron.compiler.microcode.format import DepthwiseConv2D, limit_of
from openneutron.diagnostics import fail
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor, constant
from openneutron.litert.reference import run_reference
from openneutron.litert.rewriter import Rewrite, Rewriter, drop_dead_ops, rewrite
from openneutron.lower.rules import optimize


def import_graph(graph: Graph) -> Graph:
    """The graph in the compiler's few operators; one that makes no sense is a diagnostic."""
    return optimize(fold_constants(legalize(graph)))


def legalize(graph: Graph) -> Graph:
    """The graph, checked, in the compiler's few operators; constants are not folded yet."""
    return rewrite(check_graph(drop_dead_ops(graph.verify())), _legalize)


def fold_constants(graph: Graph) -> Graph:
    """Replace what depends on constants only by its value, computed by the reference interpreter."""
    known: set[Tensor] = set()
    foldable: list[Op] = []
    for op in graph.ops:
        if all(t is None or t.is_const or t in known for t in op.inputs):
            foldable.append(op)
            known.update(op.outputs)
    if not foldable:
        return graph
    folded = set(foldable)
    read = {t for op in graph.ops if op not in folded for t in op.inputs if t is not None} | set(
        graph.outputs
    )
    wanted = [t for op in foldable for t in op.outputs if t in read]
    try:
        values = run_reference(Graph([], wanted, foldable, graph.name).verify(), [])
    except (RuntimeError, ValueError) as error:
        names = ", ".join(f"{op.kind.name} {op.outputs[0].name}" for op in foldable[:3])
        fail(
            "ON402", names, f"LiteRT refuses to compute these constants ({error})", "Export the model again."
        )
    constants = {
        t: constant(t.name, v.reshape(t.shape), t.quant) for t, v in zip(wanted, values, strict=True)
    }

    def fold(g: Rewriter, op: Op) -> bool:
        if op.outputs[0] not in known:
            return False
        for t in op.outputs:
            if t in constants:
                g.replace(t, constants[t])
        return True

    return rewrite(graph, fold)


def _legalize(g: Rewriter, op: Op) -> bool:
    rule = _RULES.get(op.kind)
    return rule(g, op) if rule else False


def _reshape_like(g: Rewriter, op: Op) -> bool:
    g.reshape(op.operand(0), op.output, op.origin)
    return True


def _shape(g: Rewriter, op: Op) -> bool:
    g.replace(op.output, g.constant(op.output.name, np.array(op.operand(0).shape, op.output.dtype)))
    return True


def _pack(g: Rewriter, op: Op) -> bool:
    axis = int(op.options.get("axis", 0)) % op.output.rank
    parts: list[Tensor | None] = []
    for index in range(len(op.inputs)):
        t = op.operand(index)
        shape = (*t.shape[:axis], 1, *t.shape[axis:])
        parts.append(g.reshape(t, g.tensor(f"{t.name}_packed", shape, t.dtype, t.quant), op.origin))
    if len(parts) == 1:
        g.reshape(op.operand(0), op.output, op.origin)
    else:
        options = {"axis": axis, "fusedActivationFunction": 0}
        g.add(Builtin.CONCATENATION, parts, op.output, op.origin, options)
    return True


def _unpack(g: Rewriter, op: Op) -> bool:
    source = op.operand(0)
    axis = int(op.options.get("axis", 0)) % source.rank
    shape = (*source.shape[:axis], 1, *source.shape[axis + 1 :])
    for index, t in enumerate(op.outputs):
        begin = [index if a == axis else 0 for a in range(source.rank)]
        part = g.tensor(f"{t.name}_part", shape, source.dtype, source.quant)
        g.reshape(g.slice(source, begin, part, op.origin), t, op.origin)
    return True


def _split(g: Rewriter, op: Op) -> bool:
    source, axis_tensor = (
        (op.operand(1), op.operand(0)) if op.kind is Builtin.SPLIT else (op.operand(0), op.operand(2))
    )
    if not axis_tensor.is_const:
        fail(
            "ON402",
            f"{op.kind.name} {op.outputs[0].name}",
            f"the axis {axis_tensor.name} is not a constant",
            "Make the axis a constant of the model.",
        )
    (axis,) = axes_of(axis_tensor, source.rank)
    at = 0
    for t in op.outputs:
        g.slice(source, [at if a == axis else 0 for a in range(source.rank)], t, op.origin)
        at += t.shape[axis]
    return True


def _strided_slice(g: Rewriter, op: Op) -> bool:
    """Masks and negative indices resolved: a SLICE, or a STRIDED_SLICE of full rank, and a RESHAPE."""
    if not all(op.operand(i).is_const for i in (1, 2, 3)):
        return False
    source = op.operand(0)
    begin, end, stride, size = resolve_strided_slice(op)
    if tuple(size) == op.output.shape:
        cut = op.output
    else:
        cut = g.tensor(f"{op.output.name}_cut", size, source.dtype, source.quant)
    if all(s == 1 for s in stride):
        g.slice(source, begin, cut, op.origin)
    else:
        # Going backwards past index 0 can be written as a mask only: -1 would count from the end.
        mask = sum(1 << a for a, e in enumerate(end) if e < 0)
        bounds = (
            g.ints(f"{cut.name}_begin", begin),
            g.ints(f"{cut.name}_end", [max(e, 0) for e in end]),
            g.ints(f"{cut.name}_stride", stride),
        )
        options = {
            "beginMask": 0,
            "endMask": mask,
            "ellipsisMask": 0,
            "newAxisMask": 0,
            "shrinkAxisMask": 0,
            "offset": False,
        }
        g.add(Builtin.STRIDED_SLICE, [source, *bounds], cut, op.origin, options)
    if cut is not op.output:
        g.reshape(cut, op.output, op.origin)
    return True


def _depthwise(g: Rewriter, op: Op) -> bool:
    """A window higher than the depthwise kernel takes: a convolution with a group for each channel."""
    weights = op.operand(1)
    if weights.shape[1] <= limit_of(DepthwiseConv2D, "MOST_ROWS") or not weights.is_const:
        return False
    quant = weights.quant
    if quant is not None and not quant.is_per_tensor:
        quant = Quant(quant.scale, quant.zero_point, 0)
    grouped = constant(weights.name, weights.array.transpose(3, 1, 2, 0), quant)
    options = {key: value for key, value in op.options.items() if key != "depthMultiplier"}
    g.add(Builtin.CONV_2D, [op.operand(0), grouped, *op.inputs[2:]], op.output, op.origin, options)
    return True


_RULES: dict[Builtin, Rewrite] = {
    Builtin.SQUEEZE: _reshape_like,
    Builtin.EXPAND_DIMS: _reshape_like,
    Builtin.SHAPE: _shape,
    Builtin.PACK: _pack,
    Builtin.UNPACK: _unpack,
    Builtin.SPLIT: _split,
    Builtin.SPLIT_V: _split,
    Builtin.STRIDED_SLICE: _strided_slice,
    Builtin.DEPTHWISE_CONV_2D: _depthwise,
}
