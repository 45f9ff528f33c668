"""Import: any static LiteRT graph becomes one of fewer operators, which the later stages know.

Operators that only spell a reshape, a slice or a concatenation differently are rewritten to those; what can
be computed now is computed now, by the oracle itself, so that folding never changes a bit.
"""

from __future__ import annotations

import numpy as np

from openneutron.compiler.graph.check import check_graph
from openneutron.compiler.graph.shapes import axes_of, resolve_strided_slice
from openneutron.compiler.microcode.format import DepthwiseConv2D, limit_of
from openneutron.diagnostics import fail
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor, constant
from openneutron.litert.reference import run_reference
from openneutron.litert.rewriter import Rewriter, drop_dead_ops
from openneutron.litert.rules import ANY, Group, rule, run
from openneutron.lower.rules.movement import reshape_in_place_of_squeeze


def legalize(graph: Graph) -> Graph:
    """The graph, checked, in the compiler's few operators; constants are not folded yet."""
    return run(check_graph(drop_dead_ops(graph.verify())), [LEGALIZE])


def _constant_values(graph: Graph) -> dict[Tensor, Tensor]:
    """What depends on constants only and is read elsewhere, as constants; the oracle computes all at once."""
    constants: set[Tensor] = set()
    foldable: list[Op] = []
    for op in graph.ops:
        if all(t is None or t.is_const or t in constants for t in op.inputs):
            foldable.append(op)
            constants.update(op.outputs)
    if not foldable:
        return {}
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
    return {t: constant(t.name, v.reshape(t.shape), t.quant) for t, v in zip(wanted, values, strict=True)}


@rule(ANY, facts=_constant_values)
def fold_constants(g: Rewriter, op: Op, constants: dict[Tensor, Tensor]) -> bool:
    """What depends on constants only becomes its value, which the reference interpreter computes."""
    folded = [t for t in op.outputs if t in constants]
    for t in folded:
        g.replace(t, constants[t])
    return bool(folded)


@rule(Builtin.SHAPE)
def fold_shape(g: Rewriter, op: Op) -> bool:
    """SHAPE of a static tensor becomes a constant."""
    g.replace(op.output, g.constant(op.output.name, np.array(op.operand(0).shape, op.output.dtype)))
    return True


@rule(Builtin.PACK)
def concatenate_in_place_of_pack(g: Rewriter, op: Op) -> bool:
    """PACK becomes a CONCATENATION of tensors with an axis more."""
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


@rule(Builtin.UNPACK)
def slice_in_place_of_unpack(g: Rewriter, op: Op) -> bool:
    """UNPACK becomes a SLICE for each part, and a RESHAPE that drops the axis."""
    source = op.operand(0)
    axis = int(op.options.get("axis", 0)) % source.rank
    shape = (*source.shape[:axis], 1, *source.shape[axis + 1 :])
    for index, t in enumerate(op.outputs):
        begin = [index if a == axis else 0 for a in range(source.rank)]
        part = g.tensor(f"{t.name}_part", shape, source.dtype, source.quant)
        g.reshape(g.slice(source, begin, part, op.origin), t, op.origin)
    return True


@rule((Builtin.SPLIT, Builtin.SPLIT_V))
def slice_in_place_of_split(g: Rewriter, op: Op) -> bool:
    """SPLIT and SPLIT_V become a SLICE for each part."""
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


@rule(Builtin.STRIDED_SLICE)
def resolve_masks(g: Rewriter, op: Op) -> bool:
    """Masks and negative indices go: a SLICE, or a STRIDED_SLICE of full rank, and a RESHAPE."""
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
        limits = {"begin": begin, "end": [max(e, 0) for e in end], "stride": stride}
        bounds = [g.ints(f"{cut.name}_{name}", values) for name, values in limits.items()]
        none = {"beginMask": 0, "ellipsisMask": 0, "newAxisMask": 0, "shrinkAxisMask": 0, "offset": False}
        options = {**none, "endMask": mask}
        g.add(Builtin.STRIDED_SLICE, [source, *bounds], cut, op.origin, options)
    if cut is not op.output:
        g.reshape(cut, op.output, op.origin)
    return True


@rule(Builtin.DEPTHWISE_CONV_2D)
def group_high_depthwise(g: Rewriter, op: Op) -> bool:
    """A window higher than the depthwise kernel takes: a convolution with a group for each channel."""
    return op.operand(1).shape[1] > limit_of(DepthwiseConv2D, "MOST_ROWS") and group_channels(g, op)


def group_channels(g: Rewriter, op: Op) -> bool:
    """Make a depthwise convolution one with a group for each channel; False if its weights are not known."""
    weights, quant = op.operand(1), op.operand(1).quant
    if not weights.is_const:
        return False
    if quant is not None and not quant.is_per_tensor:
        quant = Quant(quant.scale, quant.zero_point, 0)
    grouped = g.constant(f"{weights.name}_grouped", weights.array.transpose(3, 1, 2, 0), quant)
    options = {key: value for key, value in op.options.items() if key != "depthMultiplier"}
    g.update(op, kind=Builtin.CONV_2D, inputs=[op.operand(0), grouped, *op.inputs[2:]], options=options)
    return True


LEGALIZE = Group(
    "legalize: fewer operators, which the other rules know",
    (
        reshape_in_place_of_squeeze,
        fold_shape,
        concatenate_in_place_of_pack,
        slice_in_place_of_unpack,
        slice_in_place_of_split,
        resolve_masks,
        group_high_depthwise,
    ),
)
