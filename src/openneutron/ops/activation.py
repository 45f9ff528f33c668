"""Functions of one variable: activations and other unary elementwise operators."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Quant, Tensor
from openneutron.ops.common import (
    FOR_EIQ,
    Island,
    activation_of,
    apply,
    as_layer,
    ceil,
    floor,
    in_float,
    is_out_of_reach,
    logarithm,
    nxp_limit,
    of_one,
    on_ranks,
    trunc,
    unary,
)
from openneutron.ops.spec import (
    Call,
    Case,
    Constraint,
    FixedOutput,
    Intent,
    Lowering,
    Observed,
    OpSpec,
    Reach,
    Real,
    Shared,
    Values,
)

_RELU_KIND = {
    Activation.RELU: Builtin.RELU,
    Activation.RELU6: Builtin.RELU6,
    Activation.RELU_N1_TO_1: Builtin.RELU_N1_TO_1,
}


def _entry(
    name: str,
    lower: Any,
    function: str,
    *,
    open_only: bool = False,
    in_place: bool = True,
    also: tuple[str, ...] = (),
    positive: bool = False,
    real: Real | None = None,
) -> OpSpec:
    """A unary function of torch with observed input and output."""
    names = (f"aten.{name}.default", *((f"aten.{name}_.default",) if in_place else ()), *also)

    def of(torch: Any) -> Any:
        return getattr(torch.nn.functional, function, None) or getattr(torch, function)

    cases = on_ranks(0, 5, of, positive=positive)
    return OpSpec(names, Observed(), lower, cases=cases, open_only=open_only, real=real)


def _computed(
    name: str, body: Island, function: str = "", *, reach: Reach = Reach.NARROW, **flags: Any
) -> OpSpec:
    """A function that is composed of LiteRT's float operators, alone and inside an island."""
    exact, unbounded = flags.pop("exact", False), flags.pop("unbounded", False)
    real = Real(of_one(body), reach, not exact, flags.pop("monotone", True), unbounded)
    return _entry(name, in_float(real), function or name, open_only=True, real=real, **flags)


def _direct(kind: Builtin, reach: Reach = Reach.AS_OPERANDS, **flags: bool) -> Real:
    """LiteRT's own float operator."""
    return Real(of_one(lambda b, x, _: apply(b, kind, x)), reach, **flags)


# --------------------------------------------------------------------------------------------------
# Clamps


def clamp_bounds(call: Call) -> tuple[float | None, float | None]:
    """The bounds of any clamp-like operator."""
    if call.op.startswith("aten.relu6"):
        return 0.0, 6.0
    if call.op.startswith("aten.relu"):
        return 0.0, None
    if call.op.startswith("aten.hardtanh"):
        return float(call["min_val"]), float(call["max_val"])
    lo, hi = call.get("min"), call.get("max")
    return None if lo is None else float(lo), None if hi is None else float(hi)


def _clamped(b: Builder, x: Tensor, call: Call) -> Tensor:
    lo, hi = clamp_bounds(call)
    # torch applies the lower bound first, so that the upper one wins where they cross.
    x = x if lo is None else apply(b, Builtin.MAXIMUM, x, lo)
    return x if hi is None else apply(b, Builtin.MINIMUM, x, hi)


CLAMPED = Real(of_one(_clamped))


def _lower_clamp(at: Lowering, call: Call) -> Tensor:
    lo, hi = clamp_bounds(call)
    kind = (
        Builtin.RELU_0_TO_1
        if (lo, hi) == (0.0, 1.0)
        else _RELU_KIND.get(activation_of(lo, hi) or Activation.NONE)
    )
    if kind not in (None, Builtin.RELU) and is_out_of_reach(hi or 0.0, call):
        kind = Builtin.RELU if lo == 0.0 else None
    if kind is not None:
        return unary(kind)(at, call)
    if call.input.quant == call.out.quant:
        return _clamp_steps(at, call)
    return in_float(CLAMPED)(at, call)


def _clamp_steps(at: Lowering, call: Call) -> Tensor:
    """In steps of the one scale that input and output have: rounding is monotonous, so it may come first."""
    quant, x = call.out.quant, at(call.input)
    assert quant is not None
    for kind, bound in zip((Builtin.MAXIMUM, Builtin.MINIMUM), clamp_bounds(call), strict=True):
        if bound is not None and math.isfinite(bound):
            step = round(bound / float(quant.scale[0])) + int(quant.zero_point[0])
            limit = at.build.const(np.full((1,) * x.rank, min(max(step, -128), 127), np.int8), quant)
            x = at.build.op(kind, [x, limit], call.out.shape, quant)
    return x


_RELU_BOUNDS = {(-1.0, 1.0), (0.0, 1.0), (0.0, 6.0), (0.0, None)}
_BOUNDS = nxp_limit(
    "Clamp bounds must be (-1, 1), (0, 1), (0, 6) or (0, None), or input and output share parameters",
    lambda c: clamp_bounds(c) in _RELU_BOUNDS or c.input.quant == c.out.quant,
    clamp_bounds,
    Case("odd bounds", lambda torch: lambda x: torch.clamp(x, -0.5, 2.0), ((2, 8),)),
    hint=FOR_EIQ,
)


def _clamped_for_eiq(args: Mapping[str, Any]) -> Intent | None:
    """Bounds that are no ReLU's: NXP's converter takes them where nothing is rounded again."""
    bounds = (args.get("min_val", args.get("min")), args.get("max_val", args.get("max")))
    finite = tuple(b if b is None or math.isfinite(b) else None for b in bounds)
    return None if finite in _RELU_BOUNDS else Shared(Values.CHOSEN)


def _clamp_case(lo: float | None, hi: float | None) -> Case:
    return Case(
        f"({lo}, {hi})", lambda torch: lambda x: torch.clamp(x, lo, hi), ((2, 3, 4, 4),), channels_last=True
    )


RELU = OpSpec(
    ("aten.relu.default", "aten.relu_.default"),
    Observed(),
    unary(Builtin.RELU),
    real=CLAMPED,
    cases=on_ranks(0, 5, as_layer("ReLU"))
    + (Case("in place", lambda torch: lambda x: torch.relu_(x * 1.5), ((2, 3, 4),)),),
)
RELU6 = OpSpec(
    ("aten.relu6.default", "aten.relu6_.default"),
    Observed(),
    _lower_clamp,
    real=CLAMPED,
    cases=on_ranks(0, 5, lambda torch: torch.nn.functional.relu6),  # the layer is a hardtanh
)
HARDTANH = OpSpec(
    ("aten.hardtanh.default", "aten.hardtanh_.default"),
    Observed(),
    _lower_clamp,
    real=CLAMPED,
    requires=(_BOUNDS,),
    quantize_eiq=_clamped_for_eiq,
    cases=on_ranks(0, 5, as_layer("Hardtanh"))
    + tuple(
        Case(f"{b}", as_layer("Hardtanh", *b), ((2, 3, 4, 4),)) for b in ((0.0, 1.0), (0.0, 6.0), (-2.0, 0.5))
    ),
)
CLAMP = OpSpec(
    ("aten.clamp.default", "aten.clamp_.default"),
    Observed(),
    _lower_clamp,
    real=CLAMPED,
    requires=(_BOUNDS,),
    quantize_eiq=_clamped_for_eiq,
    cases=tuple(
        _clamp_case(*b)
        for b in ((-1.0, 1.0), (0.0, 1.0), (0.0, 6.0), (0.0, None), (-0.3, 0.7), (None, 0.5), (-0.5, None))
    ),
)
CLAMP_MIN = OpSpec(
    ("aten.clamp_min.default", "aten.clamp_min_.default"),
    Observed(),
    _lower_clamp,
    real=CLAMPED,
    open_only=True,
    cases=on_ranks(2, 4, lambda torch: lambda x: torch.clamp_min(x, -0.25)),
)
CLAMP_MAX = OpSpec(
    ("aten.clamp_max.default", "aten.clamp_max_.default"),
    Observed(),
    _lower_clamp,
    real=CLAMPED,
    open_only=True,
    cases=on_ranks(2, 4, lambda torch: lambda x: torch.clamp_max(x, 0.25)),
)

# --------------------------------------------------------------------------------------------------
# Functions LiteRT has as int8 operators

SIGMOID = OpSpec(
    ("aten.sigmoid.default", "aten.sigmoid_.default"),
    FixedOutput(1 / 256, -128),
    unary(Builtin.LOGISTIC),
    real=_direct(Builtin.LOGISTIC, Reach.NARROW, function=True),
    cases=on_ranks(0, 5, as_layer("Sigmoid")),
)
TANH = OpSpec(
    ("aten.tanh.default", "aten.tanh_.default"),
    FixedOutput(1 / 128, 0),
    unary(Builtin.TANH),
    real=_direct(Builtin.TANH, Reach.NARROW, function=True),
    cases=on_ranks(0, 5, as_layer("Tanh")),
)


def _lower_leaky_relu(at: Lowering, call: Call) -> Tensor:
    return unary(Builtin.LEAKY_RELU, alpha=float(call["negative_slope"]))(at, call)


def _lower_gelu(at: Lowering, call: Call) -> Tensor:
    return unary(Builtin.GELU, approximate=call.get("approximate", "none") == "tanh")(at, call)


def _lower_neg(at: Lowering, call: Call) -> Tensor:
    """0 - x: LiteRT's int8 NEG negates the integers and ignores the zero points."""
    zero = at.build.number(0, call.out.rank, Quant.per_tensor(1.0))
    return at.build.op(
        Builtin.SUB,
        [zero, at(call.input)],
        call.out.shape,
        call.out.quant,
        options={"fusedActivationFunction": Activation.NONE},
    )


def _function(
    kind: Builtin, options: Callable[[Call], dict[str, Any]] = lambda call: {}, monotone: bool = False
) -> Real:
    """LiteRT's own float operator, which no instruction of an island computes."""
    return Real(of_one(lambda b, x, call: apply(b, kind, x, **options(call))), Reach.NARROW, True, monotone)


LEAKY_RELU = OpSpec(
    ("aten.leaky_relu.default", "aten.leaky_relu_.default"),
    Observed(),
    _lower_leaky_relu,
    real=_function(Builtin.LEAKY_RELU, lambda call: {"alpha": float(call["negative_slope"])}, monotone=True),
    cases=on_ranks(0, 5, as_layer("LeakyReLU", 0.1)),
)
GELU = OpSpec(
    ("aten.gelu.default",),
    Observed(),
    _lower_gelu,
    open_only=True,
    real=_function(Builtin.GELU, lambda call: {"approximate": call.get("approximate", "none") == "tanh"}),
    cases=on_ranks(0, 5, as_layer("GELU")) + (Case("tanh", as_layer("GELU", "tanh"), ((2, 8),)),),
)
ABS = _entry("abs", unary(Builtin.ABS), "abs", real=_direct(Builtin.ABS))
EXP = _entry(
    "exp", unary(Builtin.EXP), "exp", real=_direct(Builtin.EXP, Reach.WIDE, function=True, unbounded=True)
)


_LOGARITHM = Real(of_one(lambda b, x, _: logarithm(b, x)), Reach.NARROW, function=True)
LOG = _entry("log", unary(Builtin.LOG), "log", positive=True, real=_LOGARITHM)
RSQRT = _entry(
    "rsqrt", unary(Builtin.RSQRT), "rsqrt", positive=True,
    real=_direct(Builtin.RSQRT, Reach.WIDE, unbounded=True),
)  # fmt: skip
NEG = _entry("neg", _lower_neg, "neg", real=_direct(Builtin.NEG))
HARDSWISH = _entry("hardswish", unary(Builtin.HARD_SWISH), "hardswish", real=_function(Builtin.HARD_SWISH))

# --------------------------------------------------------------------------------------------------
# Functions composed of LiteRT's float operators


def _silu(b: Builder, x: Tensor, _: Call) -> Tensor:
    return apply(b, Builtin.MUL, x, apply(b, Builtin.LOGISTIC, x))


def _hardsigmoid(b: Builder, x: Tensor, _: Call) -> Tensor:
    return apply(b, Builtin.MUL, apply(b, Builtin.RELU6, apply(b, Builtin.ADD, x, 3.0)), 1 / 6)


def _softplus(b: Builder, x: Tensor, call: Call) -> Tensor:
    beta = float(call.get("beta", 1.0))
    return (
        _log_exp_plus_one(b, x)
        if beta == 1.0
        else apply(b, Builtin.MUL, _log_exp_plus_one(b, apply(b, Builtin.MUL, x, beta)), 1 / beta)
    )


def _log_exp_plus_one(b: Builder, x: Tensor) -> Tensor:
    # max(x, 0) + log(1 + exp(-|x|)) does not overflow.
    small = apply(b, Builtin.EXP, apply(b, Builtin.MUL, apply(b, Builtin.ABS, x), -1.0))
    return apply(
        b, Builtin.ADD, apply(b, Builtin.RELU, x), apply(b, Builtin.LOG, apply(b, Builtin.ADD, small, 1.0))
    )


def _mish(b: Builder, x: Tensor, _: Call) -> Tensor:
    return apply(b, Builtin.MUL, x, apply(b, Builtin.TANH, _log_exp_plus_one(b, x)))


def _expm1_below_zero(b: Builder, x: Tensor, slope: float) -> Tensor:
    return apply(
        b,
        Builtin.SUB,
        apply(b, Builtin.EXP, apply(b, Builtin.MUL, apply(b, Builtin.MINIMUM, x, 0.0), slope)),
        1.0,
    )


def _elu(b: Builder, x: Tensor, call: Call) -> Tensor:
    """scale * max(x, 0) + scale * alpha * (exp(input_scale * min(x, 0)) - 1)."""
    scale, alpha = float(call.get("scale", 1.0)), float(call.get("alpha", 1.0))
    negative = apply(
        b, Builtin.MUL, _expm1_below_zero(b, x, float(call.get("input_scale", 1.0))), scale * alpha
    )
    return apply(b, Builtin.ADD, apply(b, Builtin.MUL, apply(b, Builtin.RELU, x), scale), negative)


def _selu(b: Builder, x: Tensor, _: Call) -> Tensor:
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    negative = apply(b, Builtin.MUL, _expm1_below_zero(b, x, 1.0), scale * alpha)
    return apply(b, Builtin.ADD, apply(b, Builtin.MUL, apply(b, Builtin.RELU, x), scale), negative)


_EXACT_POWERS = (0.5, 1.0, 2.0, 3.0, 4.0)  # and the same below zero, which divide


def _pow(b: Builder, x: Tensor, call: Call) -> Tensor:
    """x^p; small whole and half powers by operations that IEEE 754 defines."""
    exponent = float(call["exponent"])
    whole = abs(exponent)
    if whole == 0.5:
        return apply(b, Builtin.SQRT if exponent > 0 else Builtin.RSQRT, x)
    if whole not in _EXACT_POWERS:
        return apply(b, Builtin.POW, x, exponent)
    result = x
    if whole > 1:
        result = apply(b, Builtin.MUL, x, x)
    if whole > 2:
        result = apply(b, Builtin.MUL, result, x if whole == 3 else result)
    return result if exponent > 0 else apply(b, Builtin.DIV, 1.0, result)


_POWER = Real(of_one(_pow), Reach.WIDE, unbounded=True)
_OTHER_POWER = Real(of_one(_pow), Reach.WIDE, function=True, unbounded=True)


def _power_by(args: Any) -> Real:
    return _POWER if abs(float(args["exponent"])) in _EXACT_POWERS else _OTHER_POWER


def _lower_pow(at: Lowering, call: Call) -> Tensor:
    """x*x in int8 where the exponent is 2, otherwise an island."""
    if float(call["exponent"]) == 2.0:
        x = at(call.input)
        return at.build.op(
            Builtin.MUL,
            [x, x],
            call.out.shape,
            call.out.quant,
            options={"fusedActivationFunction": Activation.NONE},
        )
    return in_float(_POWER)(at, call)


def _whole(b: Builder, x: Tensor, _: Call) -> Tensor:
    """The nearest whole number, halves to the even one: LiteRT's reference kernels have no ROUND."""
    below = floor(b, x)
    rest = apply(b, Builtin.SUB, x, below)
    above = apply(b, Builtin.ADD, below, 1.0)
    even = apply(b, Builtin.MUL, floor(b, apply(b, Builtin.MUL, above, 0.5)), 2.0)
    half = apply(b, Builtin.EQUAL, rest, 0.5, result="bool")
    more = apply(b, Builtin.GREATER, rest, 0.5, result="bool")
    return apply(b, Builtin.SELECT_V2, half, even, apply(b, Builtin.SELECT_V2, more, above, below))


def _log1p(b: Builder, x: Tensor, _: Call) -> Tensor:
    return logarithm(b, apply(b, Builtin.ADD, x, 1.0))


def _log_to(base: float) -> Island:
    return lambda b, x, _: apply(b, Builtin.MUL, logarithm(b, x), 1 / math.log(base))


def _log_sigmoid(b: Builder, x: Tensor, _: Call) -> Tensor:
    return apply(b, Builtin.NEG, _log_exp_plus_one(b, apply(b, Builtin.NEG, x)))


def _of_exponentials(sign: float) -> Island:
    """(e^x + sign * e^-x) / 2."""

    def body(b: Builder, x: Tensor, _: Call) -> Tensor:
        up, down = apply(b, Builtin.EXP, x), apply(b, Builtin.EXP, apply(b, Builtin.NEG, x))
        return apply(b, Builtin.MUL, apply(b, Builtin.ADD, up, apply(b, Builtin.MUL, down, sign)), 0.5)

    return body


def _erf(b: Builder, x: Tensor, _: Call) -> Tensor:
    """2 * gelu(z) / z - 1 with z = sqrt(2) * x: LiteRT has no error function but inside GELU."""
    z = apply(b, Builtin.MUL, x, math.sqrt(2))
    zero = apply(b, Builtin.EQUAL, z, 0.0, result="bool")
    inside = apply(b, Builtin.GELU, z, approximate=False)
    ratio = apply(b, Builtin.DIV, inside, apply(b, Builtin.SELECT_V2, zero, 1.0, z))
    value = apply(b, Builtin.SUB, apply(b, Builtin.MUL, ratio, 2.0), 1.0)
    return apply(b, Builtin.SELECT_V2, zero, 0.0, value)


def _threshold(b: Builder, x: Tensor, call: Call) -> Tensor:
    above = apply(b, Builtin.GREATER, x, float(call["threshold"]), result="bool")
    return apply(b, Builtin.SELECT_V2, above, x, float(call["value"]))


def _celu(b: Builder, x: Tensor, call: Call) -> Tensor:
    alpha = float(call["alpha"])
    negative = apply(b, Builtin.MUL, _expm1_below_zero(b, x, 1 / alpha), alpha)
    return apply(b, Builtin.ADD, apply(b, Builtin.RELU, x), negative)


def _logit(b: Builder, x: Tensor, call: Call) -> Tensor:
    eps = call.get("eps")
    if eps is not None:
        x = apply(b, Builtin.MINIMUM, apply(b, Builtin.MAXIMUM, x, float(eps)), 1 - float(eps))
    return logarithm(b, apply(b, Builtin.DIV, x, apply(b, Builtin.SUB, 1.0, x)))


def _layers(**makers: Any) -> tuple[Case, ...]:
    return tuple(Case(name, make, ((2, 3, 4),)) for name, make in makers.items())


def _round_cases(torch: Any) -> Any:
    return lambda x: torch.round(x, decimals=1)


FLOOR = _computed("floor", lambda b, x, _: floor(b, x), exact=True)
CEIL = _computed("ceil", lambda b, x, _: ceil(b, x), exact=True)
TRUNC = _computed("trunc", lambda b, x, _: trunc(b, x), exact=True)
SIGN = _computed("sign", lambda b, x, _: apply(b, Builtin.SIGN, x), exact=True)
ROUND = dataclasses.replace(
    _computed("round", _whole, exact=True),
    names=("aten.round.default", "aten.round_.default"),
    cases=on_ranks(0, 4, lambda torch: torch.round) + (Case("decimals", _round_cases, ((2, 8),)),),
)
LOG2 = _computed("log2", _log_to(2), positive=True)
LOG10 = _computed("log10", _log_to(10), positive=True)
LOG1P = _computed("log1p", _log1p, positive=True)
EXPM1 = _computed(
    "expm1", lambda b, x, _: apply(b, Builtin.SUB, apply(b, Builtin.EXP, x), 1.0), reach=Reach.WIDE
)
ERF = _computed("erf", _erf, monotone=False)  # not to the last bit
_THRESHOLD = Real(of_one(_threshold))
THRESHOLD = OpSpec(
    ("aten.threshold.default", "aten.threshold_.default"),
    Observed(),
    in_float(_THRESHOLD),
    real=_THRESHOLD,
    cases=_layers(threshold=as_layer("Threshold", 0.25, -2.0)),
    open_only=True,
)
_CELU = Real(of_one(_celu), Reach.NARROW, function=True, monotone=False)
CELU = OpSpec(
    ("aten.celu.default", "aten.celu_.default"),
    Observed(),
    in_float(_CELU),
    real=_CELU,
    cases=_layers(celu=as_layer("CELU"), other=as_layer("CELU", 0.5)),
    open_only=True,
)
_LOGIT = Real(of_one(_logit), Reach.NARROW, function=True, monotone=False)
LOGIT = OpSpec(
    ("aten.logit.default", "aten.logit_.default"),
    Observed(),
    in_float(_LOGIT),
    real=_LOGIT,
    cases=_layers(logit=lambda torch: lambda x: torch.logit(torch.sigmoid(x), 0.01)),
    open_only=True,
)
SINH = _computed("sinh", _of_exponentials(-1.0), reach=Reach.WIDE)
COSH = _computed("cosh", _of_exponentials(1.0), reach=Reach.WIDE, monotone=False)
LOG_SIGMOID = _computed("log_sigmoid", _log_sigmoid, "logsigmoid", in_place=False)
SILU = _computed("silu", _silu, monotone=False)
HARDSIGMOID = _computed("hardsigmoid", _hardsigmoid, exact=True)
MISH = _computed("mish", _mish, monotone=False)
SOFTPLUS = _computed("softplus", _softplus, in_place=False, monotone=False)  # beta may be negative
ELU = _computed("elu", _elu, monotone=False)  # and so may alpha
SELU = _computed("selu", _selu, monotone=False)
SQRT = _computed("sqrt", lambda b, x, _: apply(b, Builtin.SQRT, x), exact=True, positive=True)
RECIPROCAL = _computed(
    "reciprocal", lambda b, x, _: apply(b, Builtin.DIV, 1.0, x), exact=True, unbounded=True,
    reach=Reach.WIDE, positive=True,
)  # fmt: skip
SIN = _computed("sin", lambda b, x, _: apply(b, Builtin.SIN, x), monotone=False)
COS = _computed("cos", lambda b, x, _: apply(b, Builtin.COS, x), monotone=False)


def _power_of(exponent: float) -> Any:
    return lambda torch: lambda x: (x + 0.5).pow(exponent)


SQUARE = OpSpec(
    ("aten.pow.Tensor_Scalar", "aten.pow_.Scalar"),
    Observed(),
    _lower_pow,
    open_only=True,
    real=_POWER,
    real_by=_power_by,
    cases=on_ranks(0, 5, lambda torch: lambda x: x.pow(2))
    + tuple(
        Case(f"exponent {p}", _power_of(p), ((2, 8),), positive=True)
        for p in (1.5, 3, -1, 0.5, -0.5, 4, 2.2, -1.7, 0.3)
    ),
)


def _exponential(b: Builder, x: Tensor, call: Call) -> Tensor:
    """A number to the power of x."""
    return apply(b, Builtin.POW, float(call["self"]), x)


def _powers_of(base: float) -> Any:
    return lambda torch: lambda x: torch.pow(base, x)


_EXPONENTIAL = Real(of_one(_exponential), Reach.WIDE, function=True, unbounded=True)
POWER_OF_NUMBER = OpSpec(
    ("aten.pow.Scalar",),
    Observed(),
    in_float(_EXPONENTIAL),
    (
        Constraint(
            "The base must be positive",
            lambda c: float(c["self"]) > 0,
            lambda c: c["self"],
            hint="A power of a negative number is one of whole numbers only.",
        ),
    ),
    tuple(Case(f"of {base}", _powers_of(base), ((2, 8),)) for base in (2, 0.5, 10.0, 1.0)),
    open_only=True,
    real=_EXPONENTIAL,
)
