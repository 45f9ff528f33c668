"""What the operator families share: small lowering combinators, test-case makers and common constraints."""

from __future__ import annotations

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


def island(body: Island) -> Lower:
    """A function of one variable, written in LiteRT's float ops between DEQUANTIZE and QUANTIZE.

    That is exactly what the quantized PyTorch graph means; the open converter turns the whole island into one
    256-entry table.
    """

    def lower(at: Lowering, call: Call) -> Tensor:
        b = at.build
        assert call.out.quant is not None
        return b.quantize(body(b, b.dequantize(at(call.input)), call), call.out.quant)

    return lower


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
    known: dict[tuple[float | None, float | None], Activation] = {
        (0.0, None): Activation.RELU,
        (0.0, 6.0): Activation.RELU6,
        (-1.0, 1.0): Activation.RELU_N1_TO_1,
    }
    return known.get(bounds)


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


def nxp_limit(
    sentence: str,
    holds: Callable[[Call], bool],
    got: Callable[[Call], Any] | None = None,
    violated_by: Case | None = None,
    hint: str = "The open converter has no such limit.",
) -> Constraint:
    """A limit NXP publishes for its own converter and silicon."""
    return Constraint(sentence, holds, got, (EIQ,), hint, violated_by)


def at_most(limit: int, what: str, values: Callable[[Call], list[int]], violated_by: Case) -> Constraint:
    """A published upper bound on every one of some sizes."""
    return nxp_limit(
        f"{what} must be at most {limit}", lambda c: max(values(c)) <= limit, values, violated_by
    )
