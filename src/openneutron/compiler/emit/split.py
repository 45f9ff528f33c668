"""Splitting an operator by output channels, so that its constants reach SRAM in several pieces.

Needed only for streaming, and only where the constants of one operator exceed the SRAM left for them. Each
piece computes a range of output channels into its place in the same output: no arithmetic changes.
"""

from __future__ import annotations

import dataclasses

from openneutron.compiler.microcode.format import KernelCall, View, WindowForm
from openneutron.litert.ir import Builtin, Op, Quant, Tensor, constant

UNIT = 8  # channels the weights are packed by; a range that cuts one would waste the rest of it


@dataclasses.dataclass(frozen=True)
class Part:
    """A range of output channels: the operator that computes it alone, and where its first channel lies."""

    op: Op
    first: int
    input_first: int = 0  # the first channel it reads; a part of a grouped convolution reads its groups alone


def can_split(op: Op) -> bool:
    """Whether output channels can be computed apart: convolutions, and products of one row."""
    if op.kind is Builtin.CONV_2D:
        return True
    return op.kind is Builtin.FULLY_CONNECTED and op.output.elements == op.operand(1).shape[0]


def split(op: Op, count: int) -> list[Part]:
    """At most `count` parts of nearly equal numbers of channels, in order."""
    channels = op.operand(1).shape[0]
    groups = op.operand(0).shape[-1] // op.operand(1).shape[-1] if op.kind is Builtin.CONV_2D else 1
    if groups > 1:
        step = -(-groups // count)
        return [_group_part(op, i, min(i + step, groups), groups) for i in range(0, groups, step)]
    size = -(-channels // (count * UNIT)) * UNIT
    return [_part(op, first, min(first + size, channels)) for first in range(0, channels, size)]


def _part(op: Op, first: int, end: int) -> Part:
    weights = _range(op.operand(1), first, end)
    bias = [None if t is None else _range(t, first, end) for t in op.inputs[2:]]
    output = dataclasses.replace(op.output, shape=(*op.output.shape[:-1], end - first))
    return Part(Op(op.kind, [op.operand(0), weights, *bias], [output], op.options, op.origin), first)


def _group_part(op: Op, first: int, end: int, groups: int) -> Part:
    channels, width = op.operand(1).shape[0] // groups, op.operand(1).shape[3]
    part = _part(op, first * channels, end * channels)
    source = dataclasses.replace(op.operand(0), shape=(*op.operand(0).shape[:3], (end - first) * width))
    whole = Op(op.kind, [source, *part.op.inputs[1:]], part.op.outputs, op.options, op.origin)
    return Part(whole, part.first, first * width)


def _range(t: Tensor, first: int, end: int) -> Tensor:
    """A range along the first axis, the output channels, of weights or bias."""
    quant = t.quant
    if quant is not None and not quant.is_per_tensor:
        quant = Quant(quant.scale[first:end], quant.zero_point[first:end], quant.axis)
    return constant(t.name, t.array[first:end], quant)


def widen_output(call: KernelCall, whole: Tensor, pitch: int = 0) -> KernelCall:
    """A part's call, writing into the whole output: pixels are `pitch`, or all its channels, apart."""
    if isinstance(call, WindowForm):
        pixel = pitch or whole.shape[3]
        return dataclasses.replace(call, output=View(call.output.ref, pixel, whole.shape[2] * pixel))
    return call
