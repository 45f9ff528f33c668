"""Quantized operators: their integers, scales and zero points go into the program as the file has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from openneutron.onnx.file import torch_dtype
from openneutron.onnx.narrow import INTEGERS, NARROW, closed, opened
from openneutron.onnx.ops.matrix import matmul
from openneutron.onnx.ops.window import average, convolve, global_average
from openneutron.onnx.spec import MICROSOFT, Call, Case, OnnxOp, Run, Unsupported, normalized
from openneutron.onnx.values import (
    UNSIGNED_SHIFT,
    Dequantized,
    Quantized,
    Tensor,
    Value,
    as_tensor,
    quantize,
    shifted,
)

# --------------------------------------------------------------------------------------------------
# Parameters


def _with_parameters(call: Call, ints: Tensor, scale: int, zero: int, unsigned: bool, axis: int) -> Quantized:
    """A tensor with the parameters that two inputs give; the zero points are those of the int8 form."""
    scales = call.static(scale, "scale").astype(np.float32)
    zeros = call.static(zero, "zero point") if call.has(zero) else np.zeros(scales.shape, np.int64)
    if scales.size != zeros.size or scales.ndim > 1:
        raise Unsupported("its scale and zero point have different shapes, or more than one dimension")
    shift = UNSIGNED_SHIFT if unsigned else 0
    points = tuple(int(z) - shift for z in zeros.reshape(-1))
    return _quantized(call, ints, scales.reshape(-1), points, axis, unsigned, call.node.inputs[scale])


def _quantized(
    call: Call,
    ints: Tensor,
    scales: np.ndarray,
    points: tuple[int, ...],
    axis: int,
    unsigned: bool,
    name: str,
) -> Quantized:
    values = tuple(float(np.float32(s)) for s in scales)
    if not all(np.isfinite(v) and v > 0 for v in values):
        raise Unsupported("a scale is not a positive number")
    if len(values) == 1:
        return Quantized(ints, values, points, None, unsigned)
    where = normalized(axis, ints.dim())
    if ints.shape[where] != len(values):
        raise Unsupported(f"it has {len(values)} scales for the {ints.shape[where]} elements of axis {where}")
    channels = (
        call.constant(f"{name}_scales", lambda: torch.tensor(values, dtype=torch.float32)),
        call.constant(f"{name}_zeros", lambda: torch.tensor(points, dtype=torch.int64)),
    )
    return Quantized(ints, values, points, where, unsigned, channels)


def _as_int8(value: Value, call: Call, index: int) -> tuple[Tensor, bool]:
    """The integers of an input as int8 (int32 of a bias), and whether the file has uint8."""
    if isinstance(value, Quantized):
        return value.ints, value.unsigned
    assert isinstance(value, torch.Tensor)
    plain, narrow = opened(value), value.dtype in INTEGERS
    unsigned = plain.dtype == torch.uint8
    if not (unsigned or narrow):
        return value, False
    if not call.is_static(index):
        return (shifted(plain) if unsigned else plain), unsigned
    make = shifted if unsigned else torch.clone
    return call.constant(f"{call.node.inputs[index]}_int8", lambda: make(call.real_constant(index))), unsigned


def dequantized(call: Call, index: int, scale: int, zero: int, axis: int = 1) -> Value:
    """An input with its parameters, as a real tensor yet to be written."""
    value = call.value(index)
    constant = call.is_static(index)
    ints, unsigned = _as_int8(value, call, index)
    simple = ints.dtype in (torch.int8, torch.int32) and call.is_static(scale)
    simple = simple and (not call.has(zero) or call.is_static(zero)) and not call.attr("block_size", 0)
    if not simple:
        raw = value.raw() if isinstance(value, Quantized) else value
        assert isinstance(raw, torch.Tensor)
        return _in_float(call, raw, scale, zero, axis)
    return Dequantized(_with_parameters(call, ints, scale, zero, unsigned, axis), constant)


def _in_float(call: Call, ints: Tensor, scale: int, zero: int, axis: int) -> Tensor:
    """Other types, blocks, or parameters that are computed: in ordinary arithmetic."""
    s, ints = _along(call, call.tensor(scale), ints, axis), opened(ints)
    wide = ints.to(torch.int32 if not ints.is_floating_point() else torch.float32)
    if call.has(zero):
        wide = wide - _along(call, opened(call.tensor(zero)), ints, axis).to(wide.dtype)
    return (wide.to(torch.float32) * s.to(torch.float32)).to(s.dtype)


def _along(call: Call, parameter: Tensor, x: Tensor, axis: int) -> Tensor:
    """Parameters in a shape that broadcasts with what they belong to."""
    block = int(call.attr("block_size", 0))
    if block:
        where = normalized(axis, x.dim())
        return parameter.repeat_interleave(block, where).narrow(where, 0, int(x.shape[where]))
    if parameter.numel() == 1:
        return parameter.reshape(())
    shape = [1] * x.dim()
    shape[normalized(axis, x.dim())] = -1
    return parameter.reshape(shape)


# --------------------------------------------------------------------------------------------------
# QDQ

_INTEGERS = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.int16: (-32768, 32767),
    torch.uint16: (0, 65535),
    **INTEGERS,
}


def _quantize_linear(call: Call) -> Value:
    x = call.tensor(0)
    dtype = _quantized_type(call)
    axis = int(call.attr("axis", 1))
    fixed = call.is_static(1) and (not call.has(2) or call.is_static(2)) and not call.attr("block_size", 0)
    if fixed and dtype in (torch.int8, torch.uint8) and x.dtype == torch.float32:
        return quantize(x, _with_parameters(call, x, 1, 2, dtype == torch.uint8, axis))
    if dtype not in _INTEGERS and dtype not in NARROW:
        raise Unsupported(f"it quantizes to {dtype}", "Integers of 2, 4, 8 and 16 bits are read.")
    y = x / _along(call, call.tensor(1), x, axis).to(x.dtype)
    if dtype not in _INTEGERS:  # floats of 4 or 8 bits, whose zero point is 0
        return closed(y, dtype, bool(call.attr("saturate", 1)))
    low, high = _INTEGERS[dtype]
    y = torch.round(y).to(torch.int32)
    if call.has(2):
        y = y + _along(call, opened(call.tensor(2)), x, axis).to(torch.int32)
    return closed(torch.clamp(y, low, high), dtype)


def _quantized_type(call: Call) -> torch.dtype:
    if call.has(2):
        zero = call.values[2]
        assert isinstance(zero, torch.Tensor)
        return zero.dtype
    given = int(call.attr("output_dtype", 0))
    return torch_dtype(given) if given else torch.uint8


def _dequantize_linear(call: Call) -> Value:
    return dequantized(call, 0, 1, 2, int(call.attr("axis", 1)))


def _dynamic_quantize(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    x = call.tensor(0)
    low, high = torch.clamp(x.min(), max=0.0), torch.clamp(x.max(), min=0.0)
    scale = (high - low) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(-low / scale), 0, 255)
    return torch.clamp(torch.round(x / scale) + zero, 0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


# --------------------------------------------------------------------------------------------------
# QOperator


def _real(call: Call, index: int, scale: int, zero: int, axis: int = 1) -> Tensor:
    value = dequantized(call, index, scale, zero, axis)
    return value.real() if isinstance(value, Dequantized | Quantized) else value


def _result(call: Call, real: Tensor, scale: int, zero: int) -> Quantized:
    """A result quantized to the parameters that two inputs give."""
    return quantize(real, _with_parameters(call, real, scale, zero, _is_unsigned(call, zero), 1))


def _is_unsigned(call: Call, zero: int) -> bool:
    value = call.values[zero] if call.has(zero) else None
    return not isinstance(value, torch.Tensor) or value.dtype == torch.uint8


def _qlinear_conv(call: Call) -> Quantized:
    x, weight = dequantized(call, 0, 1, 2), _real(call, 3, 4, 5, axis=0)
    bias = _bias(call, 8, 1, 4) if call.has(8) else None
    return _result(call, convolve(call, x, weight, bias), 6, 7)


def _bias(call: Call, index: int, x_scale: int, w_scale: int) -> Tensor:
    """An int32 bias, whose scale is that of input times weight."""
    ints = call.value(index)
    assert isinstance(ints, torch.Tensor)
    steps = call.static(x_scale).astype(np.float64).reshape(-1) * call.static(w_scale).astype(
        np.float64
    ).reshape(-1)
    return _quantized(call, ints, steps, (0,) * len(steps), 0, False, call.node.inputs[index]).real()


def _qlinear_matmul(call: Call) -> Quantized:
    left, right = dequantized(call, 0, 1, 2, -2), dequantized(call, 3, 4, 5, -1)
    inner = Call(call.node, call.version, [left, right], [None, None], call.store)
    return _result(call, matmul(inner), 6, 7)


def _qgemm(call: Call) -> Value:
    x, weight = _real(call, 0, 1, 2), dequantized(call, 3, 4, 5, 0 if call.attr("transB", 0) else 1)
    alpha = float(call.attr("alpha", 1.0))
    bias = _bias(call, 6, 1, 4) if call.has(6) else None
    x = x.transpose(0, 1) if call.attr("transA", 0) else x
    if isinstance(weight, Dequantized):
        matrix = weight.real() if call.attr("transB", 0) else weight.transposed().real()
    else:
        matrix = as_tensor(weight) if call.attr("transB", 0) else as_tensor(weight).transpose(0, 1)
    if alpha == 1.0:
        y = F.linear(x, matrix, bias)
    else:
        y = F.linear(x, matrix) * alpha
        y = y if bias is None else y + bias
    return _result(call, y, 7, 8) if call.has(7) else y


def _qlinear_binary(function: Callable[[Tensor, Tensor], Tensor]) -> Run:
    return lambda call: _result(call, function(_real(call, 0, 1, 2), _real(call, 3, 4, 5)), 6, 7)


def _qlinear_unary(function: Callable[[Call, Tensor], Tensor]) -> Run:
    return lambda call: _result(call, function(call, _real(call, 0, 1, 2)), 3, 4)


def _first_channels(function: Callable[[Call, Tensor], Tensor]) -> Callable[[Call, Tensor], Tensor]:
    def run(call: Call, x: Tensor) -> Tensor:
        if call.attr("channels_last", 0):
            return function(call, x.movedim(-1, 1)).movedim(1, -1)
        return function(call, x)

    return run


def _softmax(call: Call, x: Tensor) -> Tensor:
    axis = call.axis(-1, x.dim())
    if int(call.attr("opset", 13)) < 13 and axis != x.dim() - 1:
        return torch.softmax(x.flatten(axis), axis).reshape(x.shape)
    return torch.softmax(x, axis)


def _qlinear_concat(call: Call) -> Quantized:
    parts = [_real(call, i, i + 1, i + 2) for i in range(2, len(call), 3)]
    return _result(call, torch.cat(parts, normalized(int(call.required("axis")), parts[0].dim())), 0, 1)


def _reduce_mean(call: Call, x: Tensor) -> Tensor:
    axes = call.attr("axes") or list(range(x.dim()))
    return x.mean([normalized(int(a), x.dim()) for a in axes], bool(call.attr("keepdims", 1)))


# --------------------------------------------------------------------------------------------------
# Integer products, whose result is int32


def _less_zero(call: Call, index: int, zero: int, axis: int) -> Tensor:
    x = call.tensor(index).to(torch.float64)  # exact: the sums of products stay below 2 ** 53
    if not call.has(zero):
        return x
    point = call.tensor(zero)
    if point.numel() > 1 and point.dim() == 1:
        shape = [1] * x.dim()
        shape[normalized(axis, x.dim())] = -1
        point = point.reshape(shape)
    return x - point.to(x.dtype)


def _matmul_integer(call: Call) -> Tensor:
    return torch.matmul(_less_zero(call, 0, 2, -2), _less_zero(call, 1, 3, -1)).to(torch.int32)


def _conv_integer(call: Call) -> Tensor:
    return convolve(call, _less_zero(call, 0, 2, 1), _less_zero(call, 1, 3, 0), None).to(torch.int32)


def _fast_gelu(call: Call) -> Any:
    x, bias = call.tensor(0), call.optional(1)
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


def _ms(name: str, run: Run, *cases: Case) -> OnnxOp:
    return OnnxOp(name, 1, run, domain=MICROSOFT, fold=False, cases=cases)


def _drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-128, 128, shape).astype(np.int8)


_IN, _OUT = (np.float32(0.05), np.int8(3)), (np.float32(0.04), np.int8(-5))
_IMAGE = (1, 4, 6, 8)


def _unary_case(out: tuple[Any, Any] = _OUT, **attributes: Any) -> Case:
    return Case("int8", (_drawn(*_IMAGE), *_IN, *out), attributes, (1, 2, 3, 4))


_BINARY_CASE = Case("int8", (_drawn(*_IMAGE), *_IN, _drawn(4, 1, 1), *_OUT, *_OUT), {}, (1, 2, 3, 4, 5, 6, 7))
_SHARES = (np.float32(1 / 256), np.int8(-128))


OPERATORS: tuple[OnnxOp, ...] = (
    OnnxOp("QuantizeLinear", 25, _quantize_linear),
    OnnxOp("DequantizeLinear", 25, _dequantize_linear, fold=False),
    OnnxOp("DynamicQuantizeLinear", 11, _dynamic_quantize),
    OnnxOp("QLinearConv", 10, _qlinear_conv, fold=False),
    OnnxOp("QLinearMatMul", 21, _qlinear_matmul, fold=False),
    OnnxOp("MatMulInteger", 10, _matmul_integer),
    OnnxOp("ConvInteger", 10, _conv_integer),
    OnnxOp(
        "QuantizeLinear", 1, _quantize_linear, domain=MICROSOFT,
        cases=(Case("int8", (_IMAGE, *_OUT), {}, (1, 2)),),
    ),
    OnnxOp(
        "DequantizeLinear", 1, _dequantize_linear, domain=MICROSOFT, fold=False,
        cases=(Case("int8", (_drawn(*_IMAGE), *_IN), {}, (1, 2)),),
    ),
    _ms("QGemm", _qgemm, Case(
        "int8",
        (_drawn(2, 8), *_IN, _drawn(5, 8), np.float32(0.02), np.int8(0),
         np.arange(-2, 3, dtype=np.int32) * 99, np.float32(0.3), np.int8(7)),
        {"transB": 1}, tuple(range(1, 9)),
    )),
    _ms("QLinearAdd", _qlinear_binary(torch.add), _BINARY_CASE),
    _ms("QLinearMul", _qlinear_binary(torch.mul), _BINARY_CASE),
    _ms("QLinearConcat", _qlinear_concat, Case(
        "int8", (*_OUT, _drawn(*_IMAGE), *_IN, _drawn(1, 2, 6, 8), *_OUT), {"axis": 1}, (0, 1, 3, 4, 5, 6, 7)
    )),
    _ms("QLinearSigmoid", _qlinear_unary(lambda call, x: torch.sigmoid(x)), _unary_case(_SHARES)),
    _ms(
        "QLinearLeakyRelu",
        _qlinear_unary(lambda call, x: F.leaky_relu(x, float(call.attr("alpha", 0.01)))),
        _unary_case(alpha=0.1),
    ),
    _ms("QLinearSoftmax", _qlinear_unary(_softmax), _unary_case(_SHARES, axis=-1, opset=13)),
    _ms(
        "QLinearAveragePool",
        _qlinear_unary(_first_channels(average)),
        _unary_case(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 1]),
    ),
    _ms(
        "QLinearGlobalAveragePool",
        _qlinear_unary(_first_channels(lambda call, x: global_average(x))),
        _unary_case(channels_last=0),
    ),
    _ms("QLinearReduceMean", _qlinear_unary(_reduce_mean)),  # onnxruntime defines it, and has no kernel
    OnnxOp(
        "Gelu", 1, lambda call: F.gelu(call.tensor(0)), domain=MICROSOFT, cases=(Case("float", (_IMAGE,)),)
    ),
    OnnxOp(
        "FastGelu", 1, _fast_gelu, domain=MICROSOFT,
        cases=(Case("bias", (_IMAGE, (8,)), {}, (1,)),),
    ),
)  # fmt: skip
