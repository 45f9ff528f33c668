"""Operators that act element by element, and comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F

from openneutron.onnx.spec import Call, Case, OnnxOp, Run, Unsupported, normalized
from openneutron.onnx.values import Tensor

# --------------------------------------------------------------------------------------------------
# One operand


# torch moves these types but does not compute in them; int64 does, for all but the upper half of uint64.
_NO_ARITHMETIC = (torch.uint16, torch.uint32, torch.uint64)


def _wide(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """The function, computed in int64 where torch has no arithmetic for the type."""
    dtype = operands[0].dtype
    if dtype not in _NO_ARITHMETIC:
        return function(*operands)
    result = function(*(o.to(torch.int64) if o.dtype in _NO_ARITHMETIC else o for o in operands))
    return result.to(dtype) if result.dtype == torch.int64 else result


def _unary(function: Callable[[Tensor], Tensor]) -> Run:
    return lambda call: _wide(function, call.tensor())


def _in_float(function: Callable[[Tensor], Tensor]) -> Run:
    """Half precision has no kernel for some functions on the CPU."""

    def run(call: Call) -> Tensor:
        x = call.tensor()
        return function(x.float()).to(x.dtype) if x.dtype in (torch.float16, torch.bfloat16) else function(x)

    return run


def _clip(call: Call) -> Tensor:
    x = call.tensor()
    if call.version < 11:
        low, high = call.attr("min", -math.inf), call.attr("max", math.inf)
        return _clamped(x, None if low <= -3.4e38 else low, None if high >= 3.4e38 else high)
    if all(not call.has(i) or call.is_static(i) for i in (1, 2)):
        low, high = (call.number(i) if call.has(i) else None for i in (1, 2))
        return _clamped(x, low, high)
    for index, function in ((1, torch.maximum), (2, torch.minimum)):
        if call.has(index):
            x = function(x, call.tensor(index))
    return x


def _clamped(x: Tensor, low: Any, high: Any) -> Tensor:
    if low == 0 and high is None:
        return torch.relu(x)
    if low == 0 and high == 6 and x.is_floating_point():
        return F.relu6(x)
    if low is None and high is None:
        return x
    if low is not None and high is not None and low > high:
        return torch.full_like(x, high)
    return torch.clamp(x, low, high)


def _leaky_relu(call: Call) -> Tensor:
    return F.leaky_relu(call.tensor(), float(call.attr("alpha", 0.01)))


def _prelu(call: Call) -> Tensor:
    x, slope = call.tensor(0), call.tensor(1)
    if slope.numel() == 1:
        return (
            torch.prelu(x, slope.reshape(1)) if x.is_floating_point() else torch.where(x >= 0, x, x * slope)
        )
    per_channel = x.dim() > 1 and list(slope.shape) == [x.shape[1]] + [1] * (x.dim() - 2)
    if per_channel and x.is_floating_point():
        return torch.prelu(x, slope.reshape(-1))
    return torch.where(x >= 0, x, x * slope)


def _elu(call: Call) -> Tensor:
    return F.elu(call.tensor(), float(call.attr("alpha", 1.0)))


def _celu(call: Call) -> Tensor:
    return F.celu(call.tensor(), float(call.attr("alpha", 1.0)))


def _selu(call: Call) -> Tensor:
    alpha, gamma = call.attr("alpha", 1.6732632423543772), call.attr("gamma", 1.0507009873554805)
    return F.elu(call.tensor(), float(alpha)) * float(gamma)


def _gelu(call: Call) -> Tensor:
    return F.gelu(call.tensor(), approximate=call.choice("approximate", ("none", "tanh"), "none"))


def _hard_sigmoid(call: Call) -> Tensor:
    alpha, beta = call.attr("alpha", 0.2), call.attr("beta", 0.5)
    x = call.tensor()
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    return torch.clamp(x * float(alpha) + float(beta), 0.0, 1.0)


def _swish(call: Call) -> Tensor:
    x, alpha = call.tensor(), float(call.attr("alpha", 1.0))
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(x * alpha)


def _thresholded_relu(call: Call) -> Tensor:
    return F.threshold(call.tensor(), float(call.attr("alpha", 1.0)), 0.0)


def _shrink(call: Call) -> Tensor:
    x, bias, lambd = call.tensor(), call.attr("bias", 0.0), call.attr("lambd", 0.5)
    zero = torch.zeros_like(x)
    moved = torch.where(x > lambd, (x - bias).to(x.dtype), zero)
    return torch.where(x < -lambd, (x + bias).to(x.dtype), moved)


def _softplus(call: Call) -> Tensor:
    return F.softplus(call.tensor())


def _is_inf(call: Call) -> Tensor:
    x = call.tensor()
    positive, negative = bool(call.attr("detect_positive", 1)), bool(call.attr("detect_negative", 1))
    if positive and negative:
        return torch.isinf(x)
    return (
        x == math.inf if positive else x == -math.inf if negative else torch.zeros_like(x, dtype=torch.bool)
    )


def _softmax(function: Callable[..., Tensor]) -> Run:
    def run(call: Call) -> Tensor:
        x = call.tensor()
        if call.version >= 13:
            return function(x, dim=call.axis(-1, x.dim()))
        axis = call.axis(1, x.dim())  # before opset 13: over all dimensions from the axis on, as one
        if axis == x.dim() - 1:
            return function(x, dim=axis)
        return function(x.flatten(axis), dim=axis).reshape(x.shape)

    return run


def _hardmax_of(x: Tensor, dim: int) -> Tensor:
    return F.one_hot(x.argmax(dim), x.shape[dim]).movedim(-1, dim).to(x.dtype)


def _identity(call: Call) -> Any:
    return call.value(0)


def _dropout(call: Call) -> Any:
    training = call.has(2) and bool(call.number(2, "training_mode"))
    if training and not (call.has(1) and call.number(1, "ratio") == 0):
        raise Unsupported("it is in training mode", "Export the model in evaluation mode.")
    x = call.value(0)
    return (x, torch.ones(call.shape(), dtype=torch.bool))[: max(1, len(call.node.outputs))]


# --------------------------------------------------------------------------------------------------
# Two and more operands


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Run:
    return lambda call: _wide(function, call.tensor(0), call.tensor(1))


def _div(call: Call) -> Tensor:
    x, y = call.tensor(0), call.tensor(1)
    if x.is_floating_point():
        return x / y
    return _wide(lambda a, b: torch.div(a, b, rounding_mode="trunc"), x, y)


def _pow(call: Call) -> Tensor:
    x = call.tensor(0)
    if call.is_static(1) and call.statics[1] is not None and call.statics[1].size == 1:
        exponent = call.number(1)
        whole = isinstance(exponent, int) or float(exponent).is_integer()
        if whole or x.is_floating_point():
            return torch.pow(x, int(exponent) if whole else exponent)
    y = call.tensor(1)
    return (
        torch.pow(x, y).to(x.dtype) if x.is_floating_point() or not y.is_floating_point() else _pow_real(x, y)
    )


def _pow_real(x: Tensor, y: Tensor) -> Tensor:
    return torch.pow(x.to(y.dtype), y).to(x.dtype)


def _mod(call: Call) -> Tensor:
    return _wide(torch.fmod if call.attr("fmod", 0) else torch.remainder, call.tensor(0), call.tensor(1))


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Run:
    return lambda call: reduce(lambda x, y: _wide(function, x, y), call.tensors())


def _mean(call: Call) -> Tensor:
    tensors = call.tensors()
    return reduce(torch.add, tensors) / len(tensors)


def _where(call: Call) -> Tensor:
    return torch.where(call.tensor(0), call.tensor(1), call.tensor(2))


def _bit_shift(call: Call) -> Tensor:
    x, y = call.tensor(0), call.tensor(1)
    wide = x.to(torch.int64), y.to(torch.int64)  # not every unsigned type has a shift
    direction = call.choice("direction", ("LEFT", "RIGHT"), None)
    return (wide[0] << wide[1] if direction == "LEFT" else wide[0] >> wide[1]).to(x.dtype)


def _cum(function: Callable[..., Tensor], empty: float) -> Run:
    def run(call: Call) -> Tensor:
        x = call.tensor(0)
        axis = normalized(int(call.number(1, "axis")), x.dim())
        reverse, exclusive = call.attr("reverse", 0), call.attr("exclusive", 0)
        y = function(x.flip(axis) if reverse else x, axis).to(x.dtype)
        if exclusive:
            shape = [1 if i == axis else d for i, d in enumerate(x.shape)]
            first = torch.full(shape, empty, dtype=x.dtype)
            y = torch.cat([first, y.narrow(axis, 0, x.shape[axis] - 1)], axis)
        return y.flip(axis) if reverse else y

    return run


def _ops(newest: int, names: dict[str, Run], oldest: int = 1, **kwargs: Any) -> list[OnnxOp]:
    return [OnnxOp(name, newest, run, oldest=oldest, **kwargs) for name, run in names.items()]


_SHAPE = ((2, 3, 4, 5),)
OPERATORS: tuple[OnnxOp, ...] = (
    *_ops(13, {
        "Abs": _unary(torch.abs), "Ceil": _unary(torch.ceil), "Erf": _in_float(torch.erf),
        "Exp": _unary(torch.exp), "Floor": _unary(torch.floor), "Log": _unary(torch.log),
        "Neg": _unary(torch.neg), "Sigmoid": _unary(torch.sigmoid), "Sign": _unary(torch.sign),
        "Sqrt": _unary(torch.sqrt), "Tanh": _unary(torch.tanh), "Reciprocal": _unary(torch.reciprocal),
    }),
    *_ops(22, {
        "Acos": _unary(torch.acos), "Acosh": _unary(torch.acosh), "Asin": _unary(torch.asin),
        "Asinh": _unary(torch.asinh), "Atan": _unary(torch.atan), "Atanh": _unary(torch.atanh),
        "Cos": _unary(torch.cos), "Cosh": _unary(torch.cosh), "Sin": _unary(torch.sin),
        "Sinh": _unary(torch.sinh), "Tan": _unary(torch.tan), "Round": _unary(torch.round),
        "Elu": _elu, "Selu": _selu, "HardSigmoid": _hard_sigmoid,
        "HardSwish": _unary(F.hardswish), "Mish": _unary(F.mish),
        "Softplus": _softplus, "Softsign": _unary(F.softsign), "ThresholdedRelu": _thresholded_relu,
    }),
    OnnxOp("Celu", 12, _celu),
    OnnxOp("Relu", 14, _unary(torch.relu)),
    OnnxOp("LeakyRelu", 16, _leaky_relu),
    OnnxOp("PRelu", 16, _prelu, cases=(
        Case("per channel", ((2, 3, 4, 5), (3, 1, 1)), constants=(1,)),
        Case("one", ((2, 3, 4, 5), (1,)), constants=(1,)),
    )),
    OnnxOp("Gelu", 20, _gelu),
    OnnxOp("Swish", 24, _swish),
    OnnxOp("Shrink", 9, _shrink),
    OnnxOp("Clip", 13, _clip, cases=(
        Case("attributes", _SHAPE, {"min": -0.5, "max": 0.25}, opset=10),
        Case("relu6", ((2, 3), 0.0, 6.0), constants=(1, 2)),
    )),
    OnnxOp("Softmax", 13, _softmax(torch.softmax), cases=(Case("opset 11", _SHAPE, {"axis": 2}, opset=11),)),
    OnnxOp("LogSoftmax", 13, _softmax(torch.log_softmax)),
    OnnxOp("Hardmax", 13, _softmax(_hardmax_of)),
    OnnxOp("Identity", 25, _identity),
    OnnxOp("Dropout", 22, _dropout),
    OnnxOp("IsInf", 20, _is_inf),
    OnnxOp("IsNaN", 20, _unary(torch.isnan)),
    OnnxOp("Not", 1, _unary(torch.logical_not)),
    OnnxOp("BitwiseNot", 18, _unary(torch.bitwise_not)),
    *_ops(14, {"Add": _binary(torch.add), "Sub": _binary(torch.sub), "Mul": _binary(torch.mul), "Div": _div}),
    OnnxOp("Pow", 15, _pow),
    OnnxOp("Mod", 13, _mod),
    *_ops(13, {
        "Max": _variadic(torch.maximum), "Min": _variadic(torch.minimum), "Sum": _variadic(torch.add),
        "Mean": _mean,
        "Greater": _binary(torch.gt), "Less": _binary(torch.lt),
    }),
    OnnxOp("Equal", 19, _binary(torch.eq)),
    OnnxOp("GreaterOrEqual", 16, _binary(torch.ge)),
    OnnxOp("LessOrEqual", 16, _binary(torch.le)),
    *_ops(7, {
        "And": _binary(torch.logical_and), "Or": _binary(torch.logical_or), "Xor": _binary(torch.logical_xor),
    }),
    *_ops(18, {
        "BitwiseAnd": _binary(torch.bitwise_and), "BitwiseOr": _binary(torch.bitwise_or),
        "BitwiseXor": _binary(torch.bitwise_xor),
    }),
    OnnxOp("BitShift", 11, _bit_shift),
    OnnxOp("Where", 16, _where),
    OnnxOp("CumSum", 14, _cum(torch.cumsum, 0.0)),
    OnnxOp("CumProd", 26, _cum(torch.cumprod, 1.0)),
)  # fmt: skip
