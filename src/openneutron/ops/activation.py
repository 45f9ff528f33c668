"""Functions of one variable: activations and other unary elementwise operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Quant, Tensor
from openneutron.ops.common import (
    activation_of,
    apply,
    as_layer,
    island,
    nxp_limit,
    on_ranks,
    unary,
)
from openneutron.ops.spec import Call, Case, FixedOutput, Lowering, Observed, OpSpec

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
) -> OpSpec:
    """A unary function of torch with observed input and output."""
    names = (f"aten.{name}.default", *((f"aten.{name}_.default",) if in_place else ()), *also)

    def of(torch: Any) -> Any:
        return getattr(torch.nn.functional, function, None) or getattr(torch, function)

    return OpSpec(names, Observed(), lower, cases=on_ranks(1, 5, of, positive=positive), open_only=open_only)


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


def _lower_clamp(at: Lowering, call: Call) -> Tensor:
    lo, hi = clamp_bounds(call)
    kind = (
        Builtin.RELU_0_TO_1
        if (lo, hi) == (0.0, 1.0)
        else _RELU_KIND.get(activation_of(lo, hi) or Activation.NONE)
    )
    if kind is not None:
        return unary(kind)(at, call)

    def body(b: Builder, x: Tensor, _: Call) -> Tensor:
        # torch applies the lower bound first, so that the upper one wins where they cross.
        x = x if lo is None else apply(b, Builtin.MAXIMUM, x, lo)
        return x if hi is None else apply(b, Builtin.MINIMUM, x, hi)

    return island(body)(at, call)


_PUBLISHED_BOUNDS = {(-1.0, 1.0), (0.0, 1.0), (0.0, 6.0), (0.0, None)}
_BOUNDS = nxp_limit(
    "Clamp bounds must be (-1, 1), (0, 1), (0, 6) or (0, None)",
    lambda c: clamp_bounds(c) in _PUBLISHED_BOUNDS,
    clamp_bounds,
    Case("odd bounds", lambda torch: lambda x: torch.clamp(x, -0.5, 2.0), ((2, 8),)),
)


def _clamp_case(lo: float | None, hi: float | None) -> Case:
    return Case(
        f"({lo}, {hi})", lambda torch: lambda x: torch.clamp(x, lo, hi), ((2, 3, 4, 4),), channels_last=True
    )


RELU = OpSpec(
    ("aten.relu.default", "aten.relu_.default"),
    Observed(),
    unary(Builtin.RELU),
    cases=on_ranks(1, 5, as_layer("ReLU"))
    + (Case("in place", lambda torch: lambda x: torch.relu_(x * 1.5), ((2, 3, 4),)),),
)
RELU6 = OpSpec(
    ("aten.relu6.default", "aten.relu6_.default"),
    Observed(),
    unary(Builtin.RELU6),
    cases=on_ranks(1, 5, as_layer("ReLU6")),
)
HARDTANH = OpSpec(
    ("aten.hardtanh.default", "aten.hardtanh_.default"),
    Observed(),
    _lower_clamp,
    requires=(
        nxp_limit(
            _BOUNDS.sentence,
            _BOUNDS.holds,
            _BOUNDS.got,
            Case("odd bounds", as_layer("Hardtanh", -2.0, 2.0), ((2, 8),)),
        ),
    ),
    cases=on_ranks(1, 5, as_layer("Hardtanh"))
    + tuple(
        Case(f"{b}", as_layer("Hardtanh", *b), ((2, 3, 4, 4),)) for b in ((0.0, 1.0), (0.0, 6.0), (-2.0, 0.5))
    ),
)
CLAMP = OpSpec(
    ("aten.clamp.default", "aten.clamp_.default"),
    Observed(),
    _lower_clamp,
    requires=(_BOUNDS,),
    cases=tuple(
        _clamp_case(*b)
        for b in ((-1.0, 1.0), (0.0, 1.0), (0.0, 6.0), (0.0, None), (-0.3, 0.7), (None, 0.5), (-0.5, None))
    ),
)
CLAMP_MIN = OpSpec(
    ("aten.clamp_min.default", "aten.clamp_min_.default"),
    Observed(),
    _lower_clamp,
    open_only=True,
    cases=on_ranks(2, 4, lambda torch: lambda x: torch.clamp_min(x, -0.25)),
)
CLAMP_MAX = OpSpec(
    ("aten.clamp_max.default", "aten.clamp_max_.default"),
    Observed(),
    _lower_clamp,
    open_only=True,
    cases=on_ranks(2, 4, lambda torch: lambda x: torch.clamp_max(x, 0.25)),
)

# --------------------------------------------------------------------------------------------------
# Functions LiteRT has as int8 operators

SIGMOID = OpSpec(
    ("aten.sigmoid.default", "aten.sigmoid_.default"),
    FixedOutput(1 / 256, -128),
    unary(Builtin.LOGISTIC),
    cases=on_ranks(1, 5, as_layer("Sigmoid")),
)
TANH = OpSpec(
    ("aten.tanh.default", "aten.tanh_.default"),
    FixedOutput(1 / 128, 0),
    unary(Builtin.TANH),
    cases=on_ranks(1, 5, as_layer("Tanh")),
)


def _lower_leaky_relu(at: Lowering, call: Call) -> Tensor:
    return unary(Builtin.LEAKY_RELU, alpha=float(call["negative_slope"]))(at, call)


def _lower_gelu(at: Lowering, call: Call) -> Tensor:
    return unary(Builtin.GELU, approximate=call.get("approximate", "none") == "tanh")(at, call)


def _lower_neg(at: Lowering, call: Call) -> Tensor:
    """0 - x: LiteRT's int8 NEG negates the integers and ignores the zero points."""
    zero = at.build.const(np.zeros(1, np.int8), Quant.per_tensor(1.0))
    return at.build.op(
        Builtin.SUB,
        [zero, at(call.input)],
        call.out.shape,
        call.out.quant,
        options={"fusedActivationFunction": Activation.NONE},
    )


LEAKY_RELU = OpSpec(
    ("aten.leaky_relu.default", "aten.leaky_relu_.default"),
    Observed(),
    _lower_leaky_relu,
    cases=on_ranks(1, 5, as_layer("LeakyReLU", 0.1)),
)
GELU = OpSpec(
    ("aten.gelu.default",),
    Observed(),
    _lower_gelu,
    open_only=True,
    cases=on_ranks(1, 5, as_layer("GELU")) + (Case("tanh", as_layer("GELU", "tanh"), ((2, 8),)),),
)
ABS = _entry("abs", unary(Builtin.ABS), "abs")
EXP = _entry("exp", unary(Builtin.EXP), "exp")
LOG = _entry("log", unary(Builtin.LOG), "log", positive=True)
RSQRT = _entry("rsqrt", unary(Builtin.RSQRT), "rsqrt", positive=True)
NEG = _entry("neg", _lower_neg, "neg")
HARDSWISH = _entry("hardswish", unary(Builtin.HARD_SWISH), "hardswish")

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


def _lower_pow(at: Lowering, call: Call) -> Tensor:
    """x*x in int8 where the exponent is 2, otherwise an island."""
    exponent = float(call["exponent"])
    if exponent == 2.0:
        x = at(call.input)
        return at.build.op(
            Builtin.MUL,
            [x, x],
            call.out.shape,
            call.out.quant,
            options={"fusedActivationFunction": Activation.NONE},
        )
    return island(lambda b, x, _: apply(b, Builtin.POW, x, exponent))(at, call)


SILU = _entry("silu", island(_silu), "silu", open_only=True)
HARDSIGMOID = _entry("hardsigmoid", island(_hardsigmoid), "hardsigmoid", open_only=True)
MISH = _entry("mish", island(_mish), "mish", open_only=True)
SOFTPLUS = _entry("softplus", island(_softplus), "softplus", open_only=True, in_place=False)
ELU = _entry("elu", island(_elu), "elu", open_only=True)
SELU = _entry("selu", island(_selu), "selu", open_only=True)
SQRT = _entry(
    "sqrt", island(lambda b, x, _: apply(b, Builtin.SQRT, x)), "sqrt", open_only=True, positive=True
)
RECIPROCAL = _entry(
    "reciprocal",
    island(lambda b, x, _: apply(b, Builtin.DIV, 1.0, x)),
    "reciprocal",
    open_only=True,
    positive=True,
)
SIN = _entry("sin", island(lambda b, x, _: apply(b, Builtin.SIN, x)), "sin", open_only=True)
COS = _entry("cos", island(lambda b, x, _: apply(b, Builtin.COS, x)), "cos", open_only=True)
SQUARE = OpSpec(
    ("aten.pow.Tensor_Scalar", "aten.pow_.Scalar"),
    Observed(),
    _lower_pow,
    open_only=True,
    cases=on_ranks(1, 5, lambda torch: lambda x: x.pow(2))
    + (Case("exponent 1.5", lambda torch: lambda x: x.pow(1.5), ((2, 8),), positive=True),),
)

ENTRIES = (
    RELU,
    RELU6,
    HARDTANH,
    CLAMP,
    CLAMP_MIN,
    CLAMP_MAX,
    SIGMOID,
    TANH,
    LEAKY_RELU,
    GELU,
    ABS,
    EXP,
    LOG,
    RSQRT,
    NEG,
    HARDSWISH,
    SILU,
    HARDSIGMOID,
    MISH,
    SOFTPLUS,
    ELU,
    SELU,
    SQRT,
    RECIPROCAL,
    SIN,
    COS,
    SQUARE,
)
