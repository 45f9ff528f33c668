"""Grouped convolutions for a converter that has none: one for each group, on slices of the channels."""

from __future__ import annotations

from openneutron.litert.ir import Builtin, Op, Quant, Tensor
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import Group, rule


@rule(Builtin.CONV_2D)
def split_groups(g: Rewriter, op: Op) -> bool:
    """CONV_2D with several groups becomes as many with one, joined."""
    source, weights = op.operand(0), op.operand(1)
    groups = source.shape[3] // weights.shape[3]
    if groups == 1:
        return False
    width, channels = weights.shape[3], weights.shape[0] // groups
    parts: list[Tensor | None] = []
    for i in range(groups):
        cut = g.tensor(f"{source.name}_group", (*source.shape[:3], width), source.dtype, source.quant)
        g.slice(source, (0, 0, 0, i * width), cut, op.origin)
        constants = [None if t is None else _chunk(g, t, i * channels, channels) for t in op.inputs[1:]]
        part = g.tensor(
            f"{op.output.name}_group", (*op.output.shape[:3], channels), op.output.dtype, op.output.quant
        )
        parts.append(g.add(Builtin.CONV_2D, [cut, *constants], part, op.origin, op.options))
    g.add(Builtin.CONCATENATION, parts, op.output, op.origin, {"axis": 3, "fusedActivationFunction": 0})
    return True


def _chunk(g: Rewriter, t: Tensor, first: int, count: int) -> Tensor:
    """A range of output channels of weights or bias; equal scales become one."""
    quant = t.quant
    if quant is not None and not quant.is_per_tensor:
        scales, zeros = quant.scale[first : first + count], quant.zero_point[first : first + count]
        if len(set(scales)) == len(set(zeros)) == 1:
            quant = Quant.per_tensor(scales[0], zeros[0])
        else:
            quant = Quant(scales, zeros, quant.axis)
    return g.constant(f"{t.name}_group", t.array[first : first + count], quant)


SPLIT_GROUPS = Group("split groups: for a converter without grouped convolutions", (split_groups,))
