"""Sums of a LiteRT graph as means: LiteRT's own int8 SUM is not to be trusted, and `open` has none."""

from __future__ import annotations

import math

import numpy as np

from openneutron.litert.ir import Activation, Builtin, Graph, Op, Quant, Tensor, constant


def sums_as_means(graph: Graph) -> Graph:
    """Each int8 SUM as a mean in units of the result's scale / n; times n changes the unit and no bit."""
    ops = [new for op in graph.ops for new in (_as_mean(op) if op.kind is Builtin.SUM else [op])]
    return Graph(graph.inputs, graph.outputs, ops)


def _as_mean(op: Op) -> list[Op]:
    source, axes, total = op.operand(0), op.operand(1), op.outputs[0]
    if total.quant is None or not axes.is_const or total.dtype != "int8":
        return [op]
    dims = {int(axis) % source.rank for axis in axes.array.reshape(-1)}
    count = math.prod(source.shape[d] for d in dims)
    unit = Quant.per_tensor(total.quant.scale[0] / count, total.quant.zero_point[0])
    mean = Tensor(f"{total.name}/mean", total.shape, "int8", unit)
    steps = np.full((1,) * total.rank, 127, np.int8)
    number = constant(f"{total.name}/count", steps, Quant.per_tensor(count / 127))
    none = {"fusedActivationFunction": Activation.NONE}
    return [
        Op(Builtin.MEAN, [source, axes], [mean], op.options, op.origin),
        Op(Builtin.MUL, [mean, number], [total], none, op.origin),
    ]
