"""Rules that make two ops one: activations and paddings taken in by the op beside them."""

from __future__ import annotations

from openneutron.litert.ir import Activation, Builtin, Op, Padding, Tensor, Trait
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import rule

_FUSED = {
    Builtin.RELU: Activation.RELU,
    Builtin.RELU6: Activation.RELU6,
    Builtin.RELU_N1_TO_1: Activation.RELU_N1_TO_1,
}


@rule(Trait.CLAMPS, tuple(_FUSED))
def fuse_activation(g: Rewriter, before: Op, op: Op) -> bool:
    """A clamp after an op that can clamp its result, when both have the same quantization.

    With equal parameters the clamp on its own rescales by exactly 1, so clamping at once gives the same bits.
    """
    between = op.operand(0)
    if (between.dtype, between.quant) != (op.output.dtype, op.output.quant):
        return False
    return clamp_in(g, before, op, _FUSED[op.kind])


def clamp_in(g: Rewriter, before: Op, op: Op, activation: Activation) -> bool:
    """Let `before` do the clamp that `op` is; False if it has one already, or others read its result."""
    if before.options.get("fusedActivationFunction") or not g.only_for(op.operand(0), op):
        return False
    options = {**before.options, "fusedActivationFunction": int(activation)}
    g.remove(op)
    g.update(before, output=op.output, options=options, merged=[before, op])
    return True


@rule((Builtin.PAD, Builtin.PADV2), (Builtin.CONV_2D, Builtin.DEPTHWISE_CONV_2D))
def fold_pad(g: Rewriter, pad: Op, op: Op) -> bool:
    """A PAD with zeros before a convolution without padding, where SAME padding is just that."""
    valid = op.options.get("padding") == Padding.VALID
    if not valid or not pad.operand(1).is_const or not _pads_with_zero(pad):
        return False
    source, rows = pad.operand(0), pad.operand(1).array.tolist()
    weights = op.operand(1)
    if source.rank != 4 or any(rows[0]) or any(rows[3]) or source.quant != op.operand(0).quant:
        return False
    for axis, side in ((1, "H"), (2, "W")):
        stride, dilation = op.options[f"stride{side}"], op.options.get(f"dilation{side}Factor", 1)
        size, reach = source.shape[axis], (weights.shape[axis] - 1) * dilation + 1
        outputs = -(-size // stride)
        total = max((outputs - 1) * stride + reach - size, 0)
        # What is padded after the last window does not matter, what stands before the first does.
        if op.output.shape[axis] != outputs or rows[axis][0] != total // 2:
            return False
    options = {**op.options, "padding": int(Padding.SAME)}
    g.update(op, inputs=[source, *op.inputs[1:]], options=options, merged=[pad, op])
    return True


def _pads_with_zero(pad: Op) -> bool:
    """PAD fills with real zero by definition; PADV2 with a constant that may be it."""
    if pad.kind is Builtin.PAD:
        return True
    fill: Tensor = pad.operand(2)
    zero = fill.quant.zero_point[0] if fill.quant is not None else 0
    return fill.is_const and fill.quant == pad.operand(0).quant and bool((fill.array == zero).all())
