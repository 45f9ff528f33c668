"""Operators of two tensors, element by element with broadcasting, and operators that act per channel."""

from __future__ import annotations

from typing import Any

import numpy as np

from openneutron.litert.ir import Builtin, Quant, Tensor
from openneutron.ops.common import (
    BROADCAST,
    SHARED_PARAMETERS,
    apply,
    elementwise,
    floor,
    fused,
    in_float,
    logarithm,
    nxp_limit,
    on_ranks,
    quant_of,
    trunc,
)
from openneutron.ops.spec import (
    Call,
    Case,
    Constraint,
    FloatBody,
    FloatLowering,
    Lower,
    Lowering,
    Observed,
    OpSpec,
    Reach,
    Real,
    Shared,
    Value,
    Values,
)


def binary(kind: Builtin) -> Lower:
    """One LiteRT op on `self` and `other`."""

    def lower(at: Lowering, call: Call) -> Tensor:
        operands = [at(call["self"]), at(call["other"])]
        options = {} if kind in (Builtin.MAXIMUM, Builtin.MINIMUM) else fused(call)
        return at.build.op(kind, operands, call.out.shape, call.out.quant, options=options)

    return lower


def _lower_extremum(kind: Builtin) -> Lower:
    """LiteRT compares integers, so both operands are first brought to the parameters of the result."""

    def lower(at: Lowering, call: Call) -> Tensor:
        q = quant_of(call)
        operands = [at.build.requantize(at(call[name]), q) for name in ("self", "other")]
        return at.build.op(kind, operands, call.out.shape, q)

    return lower


def _broadcast_cases(function: Any) -> tuple[Case, ...]:
    shapes = (
        ((2, 3, 4, 5), (1, 3, 1, 1)),
        ((2, 3, 4, 5), (5,)),
        ((2, 3, 4, 5), (1,)),
        ((4, 1, 5), (1, 3, 5)),
        ((1, 6), (4, 1)),
        ((3, 1, 1), (2, 3, 4, 4)),
    )
    return tuple(
        Case(f"{a}x{b}", lambda torch: function, (a, b), channels_last=len(a) == 4) for a, b in shapes
    )


_ALPHA = Constraint(
    "alpha must be 1",
    lambda c: c.get("alpha", 1) == 1,
    lambda c: c["alpha"],
    hint="Multiply the operand by alpha in the model, before the addition.",
)


def _with_relu(function: Any) -> Case:
    return Case(
        "relu", lambda torch: lambda x, y: torch.relu(function(x, y)), ((2, 3, 4, 4),) * 2, channels_last=True
    )


def _with_constant(function: Any) -> Case:
    def make(torch: Any) -> Any:
        class WithConstant(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.constant = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 3).reshape(3, 1, 1))

            def forward(self, x: Any) -> Any:
                return function(x, self.constant)

        return WithConstant()

    return Case("constant", make, ((2, 3, 4, 4),), channels_last=True)


def _arithmetic(
    name: str,
    kind: Builtin,
    function: Any,
    requires: tuple[Constraint, ...] = (),
    reach: Reach = Reach.AS_OPERANDS,
) -> OpSpec:
    return OpSpec(
        (f"aten.{name}.Tensor", f"aten.{name}_.Tensor"),
        Observed(),
        binary(kind),
        (*requires, BROADCAST),
        fuses_activation=True,
        real=Real(elementwise(kind, "self", "other"), reach),
        cases=on_ranks(0, 5, lambda torch: function, inputs=2)
        + _broadcast_cases(function)
        + (_with_relu(function), _with_constant(function)),
    )


ADD = _arithmetic("add", Builtin.ADD, lambda x, y: x + y, (_ALPHA,))
SUB = _arithmetic("sub", Builtin.SUB, lambda x, y: x - y, (_ALPHA,))
MUL = _arithmetic("mul", Builtin.MUL, lambda x, y: x * y, reach=Reach.NARROW)


def _by_constant(at: Lowering, call: Call, divisor: np.ndarray) -> Tensor:
    """Division by a constant is multiplication by its reciprocal, requantized symmetrically."""
    inverse = 1.0 / divisor
    scale = max(float(np.abs(inverse).max()) / 127, 1e-12)
    factor = at.build.const(np.rint(inverse / scale).astype(np.int8), Quant.per_tensor(scale))
    return at.build.op(
        Builtin.MUL, [at(call["self"]), factor], call.out.shape, call.out.quant, options=fused(call)
    )


_QUOTIENT = Real(elementwise(Builtin.DIV, "self", "other"), Reach.NARROW, unbounded=True)


def _lower_div(at: Lowering, call: Call) -> Tensor:
    other = call["other"]
    if isinstance(other, Value) and other.is_const and (divisor := np.asarray(other.real())).all():
        return _by_constant(at, call, divisor)
    return in_float(_QUOTIENT)(at, call)


_CONSTANT_DIVISOR = nxp_limit(
    "The divisor must be constant",
    lambda c: isinstance(c["other"], Value) and c["other"].is_const,
    hint="Compute the reciprocal in the model and multiply by it, or use the open converter.",
    violated_by=Case("two inputs", lambda torch: lambda x, y: x / y, ((2, 8), (2, 8)), positive=True),
)


def _quotients(function: Any) -> tuple[Case, ...]:
    shapes = (((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 3, 4, 4), (1, 3, 1, 1)), ((2, 6), (2, 1)), ((7,), (7,)))
    return tuple(
        Case(f"{a} by {b}", lambda torch: function(torch), (a, b), positive=True, channels_last=len(a) == 4)
        for a, b in shapes
    )


DIV = OpSpec(
    ("aten.div.Tensor", "aten.div_.Tensor"),
    Observed(),
    _lower_div,
    requires=(_CONSTANT_DIVISOR,),
    real=_QUOTIENT,
    note="by a constant it becomes a multiplication",
    cases=(Case("scalar", lambda torch: lambda x: x / 3.0, ((2, 3, 4, 4),), channels_last=True),)
    + _quotients(lambda torch: lambda x, y: x / y),
)


def _rounded(at: FloatLowering, call: Call) -> Tensor:
    """A quotient rounded down, or towards zero."""
    mode = "floor" if call.op.startswith("aten.floor_divide") else call.get("rounding_mode")
    quotient = _QUOTIENT.body(at, call)
    if mode is None:
        return quotient
    return (floor if mode == "floor" else trunc)(at.build, quotient)


_ROUNDED = Real(_rounded, Reach.NARROW, unbounded=True)
DIV_MODE = OpSpec(
    (
        "aten.div.Tensor_mode",
        "aten.div_.Tensor_mode",
        "aten.floor_divide.default",
        "aten.floor_divide_.Tensor",
    ),
    Observed(),
    in_float(_ROUNDED),
    real=_ROUNDED,
    open_only=True,
    note="floor and trunc",
    # What is rounded jumps: a quotient beside a whole number may fall on its other side.
    cases=_quotients(lambda torch: lambda x, y: torch.div(x, y + 1, rounding_mode="floor"))[:1]
    + _quotients(lambda torch: lambda x, y: torch.div(x, y + 1, rounding_mode="trunc"))[2:3]
    + _quotients(lambda torch: lambda x, y: torch.floor_divide(x, y + 1))[3:],
)


def _power(at: FloatLowering, call: Call) -> Tensor:
    """exp(y * log(x)): the logarithm is one of 256, and the exponential is the last step."""
    b, base, exponent = at.build, at.tensor(call["self"]), at.number(call["exponent"])
    # Beyond these bounds an exponential is infinite or nothing.
    product = apply(b, Builtin.MUL, logarithm(b, base), exponent)
    bounded = apply(b, Builtin.MINIMUM, apply(b, Builtin.MAXIMUM, product, -88.0), 88.0)
    return apply(b, Builtin.EXP, bounded)


POWER = OpSpec(
    ("aten.pow.Tensor_Tensor", "aten.pow_.Tensor"),
    Observed(),
    in_float(Real(_power, Reach.WIDE, function=True, unbounded=True)),
    (
        Constraint(
            "The base must not be negative",
            lambda c: c["self"].quant is not None and c["self"].quant.zero_point == (-128,),
            lambda c: f"values from {c['self'].quant.scale[0] * (-128 - c['self'].quant.zero_point[0]):.3g}",
            hint="A power of a negative number is one of whole numbers only: take the absolute value, or a "
            "constant exponent.",
        ),
    ),
    _quotients(lambda torch: torch.pow),
    open_only=True,
)


def _extremum(name: str, kind: Builtin) -> OpSpec:
    def make(torch: Any) -> Any:
        return getattr(torch, name)

    return OpSpec(
        (f"aten.{name}.default",),
        Shared(Values.CHOSEN),
        _lower_extremum(kind),
        (SHARED_PARAMETERS, BROADCAST),
        real=Real(elementwise(kind, "self", "other")),
        cases=on_ranks(0, 5, make, inputs=2, tolerance=0)
        + (Case("broadcast", make, ((2, 3, 4, 5), (1, 3, 1, 1)), channels_last=True, tolerance=0),),
    )


MAXIMUM = _extremum("maximum", Builtin.MAXIMUM)
MINIMUM = _extremum("minimum", Builtin.MINIMUM)

# --------------------------------------------------------------------------------------------------
# Comparisons, and what is chosen by them. A truth value has no int8 form: it stays inside an island.

_COMPARED = {
    "gt": Builtin.GREATER, "ge": Builtin.GREATER_EQUAL, "lt": Builtin.LESS, "le": Builtin.LESS_EQUAL,
    "eq": Builtin.EQUAL, "ne": Builtin.NOT_EQUAL,
}  # fmt: skip


_OF_TRUTHS = (Builtin.LOGICAL_AND, Builtin.LOGICAL_OR, Builtin.LOGICAL_NOT)


def _truth(kind: Builtin, *arguments: str) -> FloatBody:
    def body(at: FloatLowering, call: Call) -> Tensor:
        take = at if kind in _OF_TRUTHS else at.number
        return apply(at.build, kind, *(take(call[name]) for name in arguments), result="bool")

    return body


def _comparison(name: str) -> OpSpec:
    def chosen(torch: Any) -> Any:
        return lambda x, y: torch.where(getattr(torch, name)(x, y), x, y * 0.5)

    def by_number(torch: Any) -> Any:
        return lambda x: torch.where(getattr(torch, name)(x, 0.25), x, -x)

    real = Real(_truth(_COMPARED[name], "self", "other"))
    return OpSpec(
        (f"aten.{name}.Tensor", f"aten.{name}.Scalar"),
        Observed(),
        in_float(real),
        real=real,
        open_only=True,
        note="as the condition of `where`",
        cases=(Case("tensors", chosen, ((2, 3, 4, 4),) * 2, channels_last=True),)
        + (Case("a number", by_number, ((2, 8),)),),
    )


def _logical(name: str, kind: Builtin, *arguments: str) -> OpSpec:
    def make(torch: Any) -> Any:
        def function(x: Any, y: Any) -> Any:
            conditions = (x > 0, y > 0)[: len(arguments)]
            return torch.where(getattr(torch, name)(*conditions), x, y)

        return function

    real = Real(_truth(kind, *arguments))
    return OpSpec(
        (f"aten.{name}.default",),
        Observed(),
        in_float(real),
        real=real,
        open_only=True,
        note="as the condition of `where`",
        cases=(Case("two conditions", make, ((2, 3, 4), (2, 3, 4))),),
    )


def _where(at: FloatLowering, call: Call) -> Tensor:
    values = [at.number(call[name]) for name in ("self", "other")]
    return apply(at.build, Builtin.SELECT_V2, at(call["condition"]), *values)


_CHOICE = Real(_where)


def _masked(torch: Any) -> Any:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.eye(4, dtype=torch.bool))

        def forward(self, x: Any, y: Any) -> Any:
            return torch.where(self.mask, x, y)

    return Masked()


WHERE = OpSpec(
    ("aten.where.self",),
    Observed(inputs=("self", "other")),
    in_float(_CHOICE),
    real=_CHOICE,
    open_only=True,
    note="the condition is a comparison, a constant or an input",
    cases=(
        Case("mask", _masked, ((2, 4, 4), (2, 4, 4))),
        Case("broadcast", lambda torch: lambda x, y: torch.where(x > y, x, y), ((2, 3, 4, 4), (1, 3, 1, 1))),
    ),
)

# --------------------------------------------------------------------------------------------------
# Per channel


def _channel_constant(at: Lowering, value: Value, rank: int) -> Tensor:
    """A per-channel (dimension 1) or single-element constant, shaped to broadcast against NC..."""
    array = value.array().reshape(-1)
    shape = [1] * rank
    if len(array) > 1:
        shape[1] = len(array)
    return at.build.const(array.reshape(shape), value.quant)


def _lower_prelu(at: Lowering, call: Call) -> Tensor:
    slope = call["weight"]
    operands = [at(call["self"]), _channel_constant(at, slope, call.out.rank)]
    if slope.quant is None:
        raise AssertionError("the slope is not quantized")
    return at.build.op(Builtin.PRELU, operands, call.out.shape, call.out.quant)


PRELU = OpSpec(
    ("aten.prelu.default", "aten._prelu_kernel.default"),
    Observed(),
    _lower_prelu,
    requires=(Constraint("The slope must be constant", lambda c: c["weight"].is_const),),
    cases=tuple(
        Case(f"{r}d", lambda torch: torch.nn.PReLU(3, 0.3), ((2, 3, 4, 4)[:r],), channels_last=r == 4)
        for r in (2, 3, 4)
    )
    + (Case("one slope", lambda torch: torch.nn.PReLU(), ((2, 3, 4, 4),)),),
)


def _batch_norm_affine(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift per channel."""
    mean, variance = call["running_mean"].real(), call["running_var"].real()
    weight = call["weight"].real() if call.get("weight") is not None else np.ones_like(mean)
    bias = call["bias"].real() if call.get("bias") is not None else np.zeros_like(mean)
    scale = weight / np.sqrt(variance + float(call["eps"]))
    return scale, bias - mean * scale


def _lower_batch_norm(at: Lowering, call: Call) -> Tensor:
    """A 1x1 depthwise convolution: a weight, a bias and a scale of its own for each channel."""
    b, x = at.build, call.input
    assert x.quant is not None
    scale, shift = _batch_norm_affine(call)
    # A tiny weight would make the bias overflow int32 in units of input scale * weight scale.
    unit = np.maximum(np.abs(scale) / 127, np.abs(shift) / (x.quant.scale[0] * 2.0**30))
    unit = np.where(unit == 0, 1.0, unit).astype(np.float32)
    weights = np.rint(scale / unit).astype(np.int8).reshape(1, 1, 1, -1)
    steps = np.float64(np.float32(x.quant.scale[0])) * unit.astype(np.float64)
    bias = np.rint(shift / steps).astype(np.int32)
    # Any rank: N, C, rest -> N, C, 1, rest.
    n, c = x.shape[0], x.shape[1]
    flat = b.reshape(at(x), (n, c, 1, int(np.prod(x.shape[2:]))))
    y = b.op(
        Builtin.DEPTHWISE_CONV_2D,
        [
            b.to_channels_last(flat),
            b.const(weights, Quant.per_axis(unit, axis=3)),
            b.const(bias, Quant.per_axis(steps)),
        ],
        (n, 1, flat.shape[3], c),
        call.out.quant,
        options={
            "padding": 1,
            "strideW": 1,
            "strideH": 1,
            "depthMultiplier": 1,
            "dilationWFactor": 1,
            "dilationHFactor": 1,
            **fused(call),
        },
    )
    return b.reshape(b.to_channels_first(y), call.out.shape)


def _batch_norm_case(layer: str, shape: tuple[int, ...]) -> Case:
    def make(torch: Any) -> Any:
        norm = getattr(torch.nn, layer)(3)
        torch.nn.init.uniform_(norm.weight, -1.5, 1.5)
        torch.nn.init.uniform_(norm.bias, -1, 1)
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        return norm.eval()

    return Case(layer + str(len(shape)), make, (shape,))


BATCH_NORM = OpSpec(
    (
        "aten.batch_norm.default",
        "aten._native_batch_norm_legit_no_training.default",
    ),
    Observed(inputs=("input",)),
    _lower_batch_norm,
    fuses_activation=True,
    float_constants=("weight", "bias", "running_mean", "running_var"),
    requires=(
        Constraint(
            "Batch norm must use constant running statistics",
            lambda c: isinstance(c.get("running_mean"), Value) and c["running_mean"].is_const,
            hint="Call model.eval() before the export.",
        ),
    ),
    note="alone; after a convolution or linear layer it is folded into it",
    cases=(
        _batch_norm_case("BatchNorm2d", (2, 3, 4, 4)),
        _batch_norm_case("BatchNorm1d", (2, 3, 5)),
        _batch_norm_case("BatchNorm1d", (4, 3)),
    ),
)

COMPARISONS = tuple(_comparison(name) for name in _COMPARED)
LOGICAL = (
    _logical("logical_and", Builtin.LOGICAL_AND, "self", "other"),
    _logical("logical_or", Builtin.LOGICAL_OR, "self", "other"),
    _logical("logical_not", Builtin.LOGICAL_NOT, "self"),
)
