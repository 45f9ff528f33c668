"""LiteRT's integer arithmetic at compile time: multipliers, activation ranges, packed weights."""

from __future__ import annotations

import math

import numpy as np

from openneutron.litert.ir import Activation, Quant, Tensor

INT8_MIN, INT8_MAX = -128, 127
BLOCK, GROUP = 8, 4  # of the packed weights: channels side by side, values of one dot product


def quantize_multiplier(real: float) -> tuple[int, int]:
    """(multiplier, shift) with real ~ multiplier * 2^(shift - 31); too small a number gives (0, 0)."""
    if real == 0.0:
        return 0, 0
    if not math.isfinite(real):
        return (1 << 31) - 1, 30
    mantissa, shift = math.frexp(real)
    multiplier = _round(mantissa * (1 << 31))
    if multiplier == 1 << 31:
        multiplier //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        return (1 << 31) - 1, 30
    return multiplier, shift


def _round(x: float) -> int:
    """To the nearest integer, halves away from zero."""
    whole = math.floor(abs(x))
    whole += abs(x) - whole >= 0.5
    return whole if x >= 0 else -whole


def quant_of(tensor: Tensor) -> Quant:
    """The quantization of a tensor that must have one."""
    assert tensor.quant is not None, f"{tensor.name} is not quantized"
    return tensor.quant


def scale_of(tensor: Tensor) -> float:
    """The scale of a per-tensor quantized tensor."""
    return quant_of(tensor).scale[0]


def scale_product(*factors: Tensor, over: Tensor | None = None) -> float:
    """The product of scales, divided by another, as LiteRT computes some: in float32."""
    with np.errstate(all="ignore"):  # a damaged file's may be infinite: it saturates
        product = np.prod([np.float32(scale_of(t)) for t in factors], dtype=np.float32)
        return float(product if over is None else product / np.float32(scale_of(over)))


def zero_of(tensor: Tensor) -> int:
    """The zero point of a per-tensor quantized tensor."""
    return quant_of(tensor).zero_point[0]


def channel_multipliers(real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Multipliers and shifts of many scales, as int32 arrays."""
    pairs = [quantize_multiplier(float(r)) for r in real]
    return np.array([m for m, _ in pairs], np.int32), np.array([s for _, s in pairs], np.int32)


def activation_range(activation: int, quant: Quant) -> tuple[int, int]:
    """The int8 values an output may have after its fused activation."""
    scale, zero = np.float32(quant.scale[0]), quant.zero_point[0]

    def quantized(x: float) -> int:
        steps = min(max(x / float(scale), -1e9), 1e9)  # a tiny scale has more of them than a float has
        return min(max(zero + _round(float(np.float32(steps))), INT8_MIN), INT8_MAX)

    match Activation(activation):
        case Activation.RELU:
            return quantized(0), INT8_MAX
        case Activation.RELU6:
            return quantized(0), quantized(6)
        case Activation.RELU_N1_TO_1:
            return quantized(-1), quantized(1)
        case _:
            return INT8_MIN, INT8_MAX


def pack_matrix(weights: np.ndarray) -> np.ndarray:
    """int8 [n][k] as [ceil(n/8)][ceil(k/4)][up to 8][4], values padded with 0: the layout of gemm.h."""
    n, k = weights.shape
    groups = -(-k // GROUP)
    padded = np.zeros((n, groups * GROUP), np.int8)
    padded[:, :k] = weights
    blocks = [
        padded[j : j + BLOCK].reshape(-1, groups, GROUP).transpose(1, 0, 2).reshape(-1)
        for j in range(0, n, BLOCK)
    ]
    return np.concatenate(blocks)


def fold_zero_point(bias: np.ndarray, weights: np.ndarray, zero: int) -> np.ndarray:
    """bias - zero * sum of each channel's weights, wrapped to 32 bits as the accumulator wraps."""
    sums = weights.reshape(len(weights), -1).astype(np.int64).sum(axis=1)
    return (bias.astype(np.int64) - zero * sums).astype(np.uint64).astype(np.uint32).view(np.int32)
