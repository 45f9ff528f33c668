"""Convolutions, matrix products and pools equal the oracle, case by case."""

from __future__ import annotations

import pytest

from openneutron.litert.ir import Activation, Builtin, Op, Padding, Quant
from tests.kernels.harness import Maker, check_cases


def _out(size: int, window: int, stride: int, dilation: int, padding: int) -> int:
    if padding == Padding.SAME:
        return -(-size // stride)
    return (size + stride - ((window - 1) * dilation + 1)) // stride


def _act(make: Maker) -> int:
    return int(make.pick(*Activation))


def conv(make: Maker, groups: int = 1) -> Op:
    h, w = make.size(1, 9), make.size(1, 9)
    kh, kw = make.size(1, min(h, 4)), make.size(1, min(w, 4))
    if make.size(0, 2) == 0:
        kh = kw = 1
    stride_h, stride_w = make.size(1, 3), make.size(1, 3)
    dil_h = make.size(1, 2) if (kh - 1) * 2 < h else 1
    dil_w = make.size(1, 2) if (kw - 1) * 2 < w else 1
    padding = int(make.pick(*Padding))
    in_c, out_c = make.size(1, 13), make.size(1, 19)
    source = make.tensor((make.size(1, 2), h, w, in_c * groups))
    weights = make.weights((out_c * groups, kh, kw, in_c), axis=make.pick(0, None))
    shape = (source.shape[0], _out(h, kh, stride_h, dil_h, padding), _out(w, kw, stride_w, dil_w, padding))
    out = make.tensor((*shape, out_c * groups), make.quant(1e-3, 4.0))
    bias = make.bias(out_c * groups, source, weights)  # the oracle takes no int8 convolution without one
    options = {
        "padding": padding, "strideH": stride_h, "strideW": stride_w, "dilationHFactor": dil_h,
        "dilationWFactor": dil_w, "fusedActivationFunction": _act(make),
    }  # fmt: skip
    return Op(Builtin.CONV_2D, [source, weights, bias], [out], options)


def grouped(make: Maker) -> Op:
    return conv(make, groups=make.size(2, 4))


def depthwise(make: Maker) -> Op:
    h, w = make.size(1, 10), make.size(1, 10)
    kh, kw = make.size(1, min(h, 5)), make.size(1, min(w, 5))
    stride, dilation = make.size(1, 3), 1
    if (max(kh, kw) - 1) * 2 < min(h, w):
        dilation = make.size(1, 2)
    padding = int(make.pick(*Padding))
    in_c, multiplier = make.size(1, 37), make.pick(1, 1, 1, 2, 3)
    source = make.tensor((make.size(1, 2), h, w, in_c))
    weights = make.weights((1, kh, kw, in_c * multiplier), axis=make.pick(3, None))
    shape = (source.shape[0], _out(h, kh, stride, dilation, padding), _out(w, kw, stride, dilation, padding))
    out = make.tensor((*shape, in_c * multiplier), make.quant(1e-3, 2.0))
    bias = [make.bias(in_c * multiplier, source, weights)] if make.size(0, 3) else []
    options = {
        "padding": padding, "strideH": stride, "strideW": stride, "dilationHFactor": dilation,
        "dilationWFactor": dilation, "depthMultiplier": multiplier, "fusedActivationFunction": _act(make),
    }  # fmt: skip
    return Op(Builtin.DEPTHWISE_CONV_2D, [source, weights, *bias], [out], options)


def transpose_conv(make: Maker) -> Op:
    h, w = make.size(1, 6), make.size(1, 6)
    kh, kw = make.size(1, 4), make.size(1, 4)
    stride_h, stride_w = make.size(1, 3), make.size(1, 3)
    padding = int(make.pick(*Padding))
    in_c, out_c = make.size(1, 9), make.size(1, 10)
    source = make.tensor((make.size(1, 2), h, w, in_c))
    weights = make.weights((out_c, kh, kw, in_c), axis=make.pick(0, None))
    if padding == Padding.SAME:
        size = (h * stride_h, w * stride_w)
    else:
        size = ((h - 1) * stride_h + kh, (w - 1) * stride_w + kw)
    shape = (source.shape[0], *size, out_c)
    out = make.tensor(shape, make.quant(1e-3, 2.0))
    inputs = [make.ints(shape), weights, source]
    if make.size(0, 2):
        inputs.append(make.bias(out_c, source, weights))
    options = {
        "padding": padding,
        "strideH": stride_h,
        "strideW": stride_w,
        "fusedActivationFunction": _act(make),
    }
    return Op(Builtin.TRANSPOSE_CONV, inputs, [out], options)


def fully_connected(make: Maker) -> Op:
    rows, in_f, out_f = make.size(1, 9), make.size(1, 70), make.size(1, 90)
    source = make.tensor((rows, in_f))
    weights = make.weights((out_f, in_f), axis=make.pick(0, None))
    bias = make.bias(out_f, source, weights) if make.size(0, 3) else None
    out = make.tensor((rows, out_f), make.quant(1e-3, 2.0))
    options = {"fusedActivationFunction": _act(make), "keepNumDims": False}
    return Op(Builtin.FULLY_CONNECTED, [source, weights, bias], [out], options)


def batch_matmul(make: Maker) -> Op:
    m, n, k = make.size(1, 9), make.size(1, 40), make.size(1, 20)
    batch = [make.size(1, 3) for _ in range(make.size(0, 2))]
    left = [d if make.size(0, 3) else 1 for d in batch]
    right = [d if make.size(0, 3) or a == 1 else 1 for a, d in zip(left, batch, strict=True)]
    adj_x, adj_y = bool(make.size(0, 1)), bool(make.size(0, 1))
    lhs = make.tensor((*left, *((k, m) if adj_x else (m, k))))
    rhs = make.tensor((*right, *((n, k) if adj_y else (k, n))))
    out = make.tensor((*[max(a, b) for a, b in zip(left, right, strict=True)], m, n), make.quant(1e-3, 4.0))
    return Op(Builtin.BATCH_MATMUL, [lhs, rhs], [out], {"adjX": adj_x, "adjY": adj_y})


def pool(make: Maker) -> Op:
    h, w = make.size(1, 10), make.size(1, 10)
    kh, kw = make.size(1, min(h, 4)), make.size(1, min(w, 4))
    stride_h, stride_w = make.size(1, 3), make.size(1, 3)
    padding = int(make.pick(*Padding))
    source = make.tensor((make.size(1, 2), h, w, make.size(1, 40)))
    out_shape = (_out(h, kh, stride_h, 1, padding), _out(w, kw, stride_w, 1, padding))
    out = make.tensor((source.shape[0], *out_shape, source.shape[3]), source.quant)
    options = {
        "padding": padding, "strideH": stride_h, "strideW": stride_w, "filterHeight": kh, "filterWidth": kw,
        "fusedActivationFunction": _act(make),
    }  # fmt: skip
    return Op(make.pick(Builtin.AVERAGE_POOL_2D, Builtin.MAX_POOL_2D), [source], [out], options)


CASES = (
    (conv, 1500),
    (grouped, 300),
    (depthwise, 1000),
    (transpose_conv, 500),
    (fully_connected, 800),
    (batch_matmul, 600),
    (pool, 800),
)


@pytest.mark.parametrize(("case", "count"), CASES)
def test_equals_oracle(case, count):
    check_cases(case, count, seed=1)


def test_large_windows_and_channels():
    """Shapes beyond the stack patch and beyond one block or vector of channels."""

    def large(make: Maker) -> Op:
        in_c, out_c, k = make.pick((300, 9, 3), (520, 17, 5), (64, 40, 3), (1300, 8, 7), (33, 130, 1))
        source = make.tensor((1, k, k + 2, in_c))
        weights = make.weights((out_c, k, k, in_c), axis=0, scale=0.005)
        out = make.tensor((1, k, k + 2, out_c), Quant.per_tensor(0.5, -3))
        bias = make.bias(out_c, source, weights)
        options = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1,
                   "fusedActivationFunction": 0}  # fmt: skip
        return Op(Builtin.CONV_2D, [source, weights, bias], [out], options)

    check_cases(large, 15, seed=2, batch=15)


def test_full_tiles():
    """Shapes that fill the registers of a vectorised tile, with and without padding and a remainder."""

    def wide(make: Maker) -> Op:
        kh, kw = make.pick((1, 1), (1, 1), (3, 3), (3, 3), (1, 5), (5, 2))
        h, w = make.size(kh, 9), make.size(max(kw, 8), 40)
        in_c = make.pick(1, 3, 4, 6, 16, 20)
        out_c = make.pick(8, 16, 16, 24, 32, 32, 40, 48, 64, 67)
        stride, dilation = make.pick((1, 1), (1, 1), (2, 1), (1, 2) if (kw - 1) * 2 < w else (1, 1))
        dilation_h = dilation if (kh - 1) * 2 < h else 1
        padding = int(make.pick(*Padding))
        source = make.tensor((1, h, w, in_c))
        weights = make.weights((out_c, kh, kw, in_c), axis=0)
        size = (_out(h, kh, stride, dilation_h, padding), _out(w, kw, stride, dilation, padding))
        out = make.tensor((1, *size, out_c), make.quant(0.02, 4.0))
        options = {"padding": padding, "strideH": stride, "strideW": stride, "dilationHFactor": dilation_h,
                   "dilationWFactor": dilation, "fusedActivationFunction": _act(make)}  # fmt: skip
        return Op(Builtin.CONV_2D, [source, weights, make.bias(out_c, source, weights)], [out], options)

    check_cases(wide, 300, seed=3)


def test_maps_one_pixel_wide():
    """1-D convolutions: rows are taken as one, all of them or as many as fit the memory."""

    def tall(make: Maker) -> Op:
        h, in_c = make.pick((5, 7), (8, 16), (9, 1), (40, 16), (130, 2), (300, 100))
        kh, stride, out_c = make.size(1, 9), make.size(1, 3), make.pick(3, 16, 33)
        dilation = make.size(1, 4) if (kh - 1) * 4 < h else 1
        h = max(h, kh)
        padding = int(make.pick(*Padding))
        source = make.tensor((make.pick(1, 1, 1, 2), h, 1, in_c))
        weights = make.weights((out_c, kh, 1, in_c), axis=0)
        shape = (source.shape[0], _out(h, kh, stride, dilation, padding), 1, out_c)
        options = {"padding": padding, "strideH": stride, "strideW": 1, "dilationHFactor": dilation,
                   "dilationWFactor": 1, "fusedActivationFunction": _act(make)}  # fmt: skip
        out = make.tensor(shape, make.quant(0.02, 4.0))
        return Op(Builtin.CONV_2D, [source, weights, make.bias(out_c, source, weights)], [out], options)

    check_cases(tall, 80, seed=5)


def test_wide_depthwise():
    """3x3 windows over more channels than one vector holds."""

    def wide(make: Maker) -> Op:
        h, w, channels = make.size(1, 9), make.size(1, 20), make.pick(8, 16, 32, 48, 64, 96, 100)
        stride, padding = make.size(1, 2), int(Padding.SAME)
        source = make.tensor((make.size(1, 2), h, w, channels))
        weights = make.weights((1, 3, 3, channels), axis=3)
        shape = (source.shape[0], _out(h, 3, stride, 1, padding), _out(w, 3, stride, 1, padding), channels)
        out = make.tensor(shape, make.quant(0.02, 2.0))
        options = {
            "padding": padding, "strideH": stride, "strideW": stride, "dilationHFactor": 1,
            "dilationWFactor": 1, "depthMultiplier": 1, "fusedActivationFunction": _act(make),
        }  # fmt: skip
        bias = make.bias(channels, source, weights)
        return Op(Builtin.DEPTHWISE_CONV_2D, [source, weights, bias], [out], options)

    check_cases(wide, 300, seed=4)
