"""Rules that take out what does nothing, is there twice, or is not wanted."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Op, Quant, Tensor, Trait
from openneutron.litert.reference import run_reference
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import ANY, rule


@rule(ANY)
def remove_dead_op(g: Rewriter, op: Op) -> bool:
    """An op whose results nobody reads goes."""
    if any(g.readers(t) or g.is_output(t) for t in op.outputs):
        return False
    g.remove(op)
    return True


@rule((Builtin.SLICE, Builtin.STRIDED_SLICE))
def drop_whole_slice(g: Rewriter, op: Op) -> bool:
    """A SLICE or STRIDED_SLICE that takes everything, in order, goes."""
    if op.kind is Builtin.STRIDED_SLICE:
        strides = op.operand(3)
        masks = ("ellipsisMask", "newAxisMask", "shrinkAxisMask")
        if not strides.is_const or np.any(strides.array != 1) or any(op.options.get(m) for m in masks):
            return False
    return _bypass_if_alike(g, op)


@rule(Trait.PADS)
def drop_empty_pad(g: Rewriter, op: Op) -> bool:
    """A PAD, PADV2 or MIRROR_PAD that adds nothing goes."""
    return _bypass_if_alike(g, op)


@rule((Builtin.TILE, Builtin.BROADCAST_TO))
def drop_single_tile(g: Rewriter, op: Op) -> bool:
    """A TILE or BROADCAST_TO that repeats nothing goes."""
    return _bypass_if_alike(g, op)


@rule(Builtin.CONCATENATION)
def drop_single_concatenation(g: Rewriter, op: Op) -> bool:
    """A CONCATENATION of one tensor goes."""
    clamps = op.options.get("fusedActivationFunction")
    return len(op.inputs) == 1 and not clamps and _bypass_if_alike(g, op)


@rule(Builtin.QUANTIZE)
def drop_same_quantize(g: Rewriter, op: Op) -> bool:
    """A QUANTIZE to the parameters that are there already goes."""
    return _bypass_if_alike(g, op)


@rule(Builtin.DEQUANTIZE, Builtin.QUANTIZE)
def drop_quantize_of_dequantize(g: Rewriter, before: Op, op: Op) -> bool:
    """DEQUANTIZE, then QUANTIZE to the same parameters: both go.

    Exact: n * scale / scale is within two roundings of the integer n, whose magnitude is at most 255.
    """
    source = before.operand(0)
    return op.output.dtype == "int8" and source.is_like(op.output) and g.bypass(op, source)


_BOUNDS = {
    Builtin.RELU: (0.0, float("inf")),
    Builtin.RELU6: (0.0, 6.0),
    Builtin.RELU_0_TO_1: (0.0, 1.0),
    Builtin.RELU_N1_TO_1: (-1.0, 1.0),
}


@rule(tuple(_BOUNDS))
def drop_idle_activation(g: Rewriter, op: Op) -> bool:
    """A clamp whose bounds lie outside what its int8 operand can be goes.

    Reaching 256 steps above the zero point and not merely 255 keeps clear of how the bound is rounded.
    """
    if op.output.dtype != "int8" or op.output.quant is None:
        return False
    low, high = _BOUNDS[op.kind]
    scale, zero = op.output.quant.scale[0], op.output.quant.zero_point[0]
    below = zero == -128 if low == 0 else zero + low / scale <= -129
    return below and zero + high / scale >= 128 and _bypass_if_alike(g, op)


@rule(Builtin.QUANTIZE, Builtin.QUANTIZE)
def merge_requantize(g: Rewriter, before: Op, op: Op) -> bool:
    """QUANTIZE of a QUANTIZE becomes one where the oracle gives the same for all 256 values."""
    source, between, target = before.operand(0), op.operand(0), op.output
    if not all(t.dtype == "int8" and t.quant is not None for t in (source, between, target)):
        return False
    assert source.quant and between.quant and target.quant
    if not _requantizes_alike(source.quant, between.quant, target.quant):
        return False
    g.update(op, inputs=[source], merged=[before, op])
    return True


@lru_cache(maxsize=1024)
def _requantizes_alike(source: Quant, between: Quant, target: Quant) -> bool:
    """Whether requantizing in one step is the same as in two, for every int8 value."""
    b = Builder("requantize")
    x = b.input("x", (256,), "int8", source)
    quantize = Builtin.QUANTIZE  # not b.requantize, which would leave out a step that changes nothing
    twice = b.op(quantize, [b.op(quantize, [x], x.shape, between)], x.shape, target)
    once = b.op(quantize, [x], x.shape, target)
    results = run_reference(b.graph([twice, once]), [np.arange(-128, 128, dtype=np.int8)])
    return bool(np.array_equal(results[0], results[1]))


@rule(ANY)
def dedupe_constants(g: Rewriter, op: Op) -> bool:
    """Constants with the same type, quantization and bytes become one."""
    inputs = [t if t is None or t.data is None else _first_like(g, t) for t in op.inputs]
    if all(new is old for new, old in zip(inputs, op.inputs, strict=True)):
        return False
    g.update(op, inputs=inputs)
    return True


def _first_like(g: Rewriter, t: Tensor) -> Tensor:
    key = (t.dtype, t.shape, t.quant, t.array.tobytes())
    return g.constants.setdefault(key, t)


@rule(ANY)
def merge_common_ops(g: Rewriter, op: Op) -> bool:
    """Of ops that compute the same from the same, the first stays."""
    inputs = [t for t in op.inputs if t is not None]
    if all(t.is_const for t in inputs) or op.kind is Builtin.CUSTOM or len(op.outputs) != 1:
        return False
    # Twins read the same: all are among the readers of any input, and the fewest are quickly looked through.
    # The graph's order decides which is first: the readers of a tensor are in no order once rules have fired.
    readers = min((g.readers(t) for t in inputs), key=len)
    twins = [other for other in readers if other is not op and _computes_same(other, op)]
    if not twins:
        return False
    order = {other: index for index, other in enumerate(g.ops)}
    first = min(twins, key=order.__getitem__)
    if order[first] > order[op] or not g.can_replace(op.output, first.output):
        return False
    g.update(first, merged=[first, op])
    return g.bypass(op, first.output)


def _computes_same(a: Op, b: Op) -> bool:
    same_inputs = len(a.inputs) == len(b.inputs) and all(
        s is t for s, t in zip(a.inputs, b.inputs, strict=True)
    )
    same = same_inputs and a.kind is b.kind and a.options == b.options
    return same and len(a.outputs) == 1 and a.output.is_like(b.output)


def _bypass_if_alike(g: Rewriter, op: Op) -> bool:
    return op.operand(0).is_like(op.output) and g.bypass(op, op.operand(0))
