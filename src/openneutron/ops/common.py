"""What the operator families share: small lowering combinators, test-case makers and common constraints."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Quant, Tensor
from openneutron.ops.spec import (
    EIQ,
    Call,
    Case,
    Constraint,
    FloatBody,
    FloatLowering,
    Lower,
    Lowering,
    Real,
)
from openneutron.targets.chip import ConverterLimits

# --------------------------------------------------------------------------------------------------
# Lowering


def unary(kind: Builtin, **options: Any) -> Lower:
    """One LiteRT op on the first operand, same shape."""

    def lower(at: Lowering, call: Call) -> Tensor:
        return at.build.op(kind, [at(call.input)], call.out.shape, call.out.quant, options=options)

    return lower


def in_float(real: Real) -> Lower:
    """An operator as an island of its own: dequantized, computed in float, quantized."""

    def lower(at: Lowering, call: Call) -> Tensor:
        return quantized(at.build, real.body(FloatLowering(at), call), quant_of(call), real.unbounded)

    return lower


def quantized(b: Builder, x: Tensor, quant: Quant, clamped: bool) -> Tensor:
    """A float result as int8; clamped first if it may be infinite, which LiteRT's QUANTIZE does not take."""
    if clamped:
        low, high = (quant.scale[0] * (bound - quant.zero_point[0]) for bound in (-128, 127))
        x = apply(b, Builtin.MINIMUM, apply(b, Builtin.MAXIMUM, x, low), high)
    return b.quantize(x, quant)


def elementwise(kind: Builtin, *arguments: str) -> FloatBody:
    """The body of an operator that LiteRT has in float: its operands are the named arguments."""

    def body(at: FloatLowering, call: Call) -> Tensor:
        return apply(at.build, kind, *(at.number(call[name]) for name in arguments))

    return body


Island = Callable[[Builder, Tensor, Call], Tensor]


def of_one(body: Island) -> FloatBody:
    """The body of a function of one tensor."""
    return lambda at, call: body(at.build, at.tensor(call.input), call)


def apply(
    b: Builder, kind: Builtin, *operands: Tensor | float, result: str = "float32", **options: Any
) -> Tensor:
    """A float elementwise op inside an island; numbers become constants."""
    rank = max(o.rank for o in operands if isinstance(o, Tensor))
    tensors = [o if isinstance(o, Tensor) else b.number(o, rank) for o in operands]
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    return b.op(kind, list(tensors), shape, None, dtype=result, options=options)


def logarithm(b: Builder, x: Tensor) -> Tensor:
    """The logarithm, of no less than the smallest number: below it there is none."""
    return apply(b, Builtin.LOG, apply(b, Builtin.MAXIMUM, x, _SMALLEST))


_SMALLEST = 1.1754944e-38


def floor(b: Builder, x: Tensor) -> Tensor:
    """The next whole number below."""
    return apply(b, Builtin.FLOOR, x)


def ceil(b: Builder, x: Tensor) -> Tensor:
    """The next whole number above: LiteRT's reference kernels have no CEIL."""
    return apply(b, Builtin.NEG, floor(b, apply(b, Builtin.NEG, x)))


def trunc(b: Builder, x: Tensor) -> Tensor:
    """The next whole number towards zero."""
    negative = apply(b, Builtin.LESS, x, 0.0, result="bool")
    return apply(b, Builtin.SELECT_V2, negative, ceil(b, x), floor(b, x))


def per_axis(value: Any, count: int) -> list[Any]:
    """An argument of a window, which may be one number for all axes, as one for each."""
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


def quant_of(call: Call) -> Quant:
    """The parameters of the result."""
    assert call.out.quant is not None, f"{call.name} has no quantized result"
    return call.out.quant


def fused(call: Call) -> dict[str, Any]:
    """The option that carries the fused activation, less a bound that is out of reach."""
    activation = call.activation
    if activation is Activation.RELU6 and is_out_of_reach(6.0, call):
        activation = Activation.RELU
    elif activation is Activation.RELU_N1_TO_1 and is_out_of_reach(1.0, call):
        activation = Activation.NONE
    return {"fusedActivationFunction": activation}


def is_out_of_reach(bound: float, call: Call) -> bool:
    """Whether a bound is so many steps of the result away that LiteRT's 32 bits do not hold it.

    No int8 value is anywhere near it: results are the same without it.
    """
    return call.out.quant is not None and bound / call.out.quant.scale[0] >= 2.0**30


def normalize(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim + rank if dim < 0 else dim


def dims_of(call: Call, name: str = "dim") -> list[int]:
    """The reduced dimensions, from the front, in order; all of them if none is named."""
    rank = call.input.rank
    dims = call.get(name, ())
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    return sorted({normalize(d, rank) for d in dims}) if dims else list(range(rank))


def activation_of(lo: float | None, hi: float | None) -> Activation | None:
    """The LiteRT activation that clamps to these bounds, if there is one."""
    bounds = (None if lo is None else float(lo), None if hi is None or hi == float("inf") else float(hi))
    activations: dict[tuple[float | None, float | None], Activation] = {
        (0.0, None): Activation.RELU,
        (0.0, 6.0): Activation.RELU6,
        (-1.0, 1.0): Activation.RELU_N1_TO_1,
    }
    return activations.get(bounds)


# --------------------------------------------------------------------------------------------------
# Test cases


def on_ranks(
    lo: int, hi: int, function: Callable[[Any], Callable[..., Any]], *, inputs: int = 1, **flags: Any
) -> tuple[Case, ...]:
    """The function on inputs of every rank from `lo` to `hi`; `function(torch)` gives the callable."""
    full = (2, 3, 4, 5, 3)
    return tuple(
        Case(f"{rank}d", function, (full[:rank],) * inputs, channels_last=rank == 4, **flags)
        for rank in range(lo, hi + 1)
    )


def as_layer(name: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """A maker of `torch.nn.<name>(*args, **kwargs)`."""
    return lambda torch: getattr(torch.nn, name)(*args, **kwargs)


# --------------------------------------------------------------------------------------------------
# Constraints that several families share


# The limits of `eiq` are those of its code; docs/upstream.md says where NXP's published list differs.
FOR_EIQ = "Quantize with NeutronQuantizer(NeutronTargetSpec(converter='eiq'))."
NXP_BACKEND = "the NXP backend of ExecuTorch 1.5.1"


def nxp_limit(
    sentence: str,
    holds: Callable[[Call], bool],
    got: Callable[[Call], Any] | None = None,
    violated_by: Case | None = None,
    hint: str = f"So {NXP_BACKEND} decides; the open converter has no such limit.",
) -> Constraint:
    """A limit of NXP's converter and silicon, as ExecuTorch's NXP backend checks it."""
    return Constraint(sentence, holds, got, (EIQ,), hint, violated_by, NXP_BACKEND)


SHARED_PARAMETERS = nxp_limit(
    "Inputs and output must share quantization parameters",
    lambda c: all(t.quant == c.out.quant for t in c.tensors),
    lambda c: [str(t.quant) for t in (*c.tensors, c.out)],
    hint=FOR_EIQ,
)
BROADCAST = nxp_limit(
    "One operand must have as many elements as the result",
    lambda c: any(math.prod(t.shape) == math.prod(c.out.shape) for t in c.tensors),
    lambda c: [list(t.shape) for t in c.tensors],
)


def at_most(
    limit: str,
    what: str,
    values: Callable[[Call], list[int]],
    violated_by: Case,
    got: Callable[[Call], Any] | None = None,
) -> Constraint:
    """A published upper bound on some sizes, a limit of the target; the sentence has the default."""
    sentence = f"{what} must be at most {getattr(ConverterLimits(), limit)}"
    holds = lambda c: max(values(c)) <= getattr(c.target.limits, limit)  # noqa: E731
    return nxp_limit(sentence, holds, got or values, violated_by)
