"""Reductions: mean, sum, maximum, minimum over any dimensions; softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from openneutron.litert.ir import Activation, Builtin, Quant, Tensor
from openneutron.ops.common import (
    SHARED_PARAMETERS,
    apply,
    dims_of,
    in_float,
    logarithm,
    normalize,
    nxp_limit,
    quant_of,
)
from openneutron.ops.spec import (
    Call,
    Case,
    Constraint,
    FixedOutput,
    FloatLowering,
    Lower,
    Lowering,
    Observed,
    OpSpec,
    Reach,
    Real,
    Shared,
    Values,
)


def _reduce(at: Lowering, call: Call, kind: Builtin, quant: Quant) -> Tensor:
    """Reduce with unit dimensions kept (the layout stage can then choose either order of dimensions)."""
    b, x, dims = at.build, call.input, dims_of(call)
    kept = tuple(1 if i in dims else d for i, d in enumerate(x.shape))
    return b.op(kind, [at(x), b.const(np.array(dims, np.int32))], kept, quant, options={"keepDims": True})


def over_dims(at: FloatLowering, x: Tensor, dims: Sequence[int], kind: Builtin) -> Tensor:
    """A float reduction with unit dimensions kept."""
    kept = tuple(1 if i in dims else d for i, d in enumerate(x.shape))
    axes = at.build.const(np.array(dims, np.int32))
    return at.build.op(kind, [x, axes], kept, dtype="float32", options={"keepDims": True})


def _real(kind: Builtin, reach: Reach = Reach.AS_OPERANDS) -> Real:
    def body(at: FloatLowering, call: Call) -> Tensor:
        y = over_dims(at, at.tensor(call.input), dims_of(call), kind)
        return at.build.reshape(y, call.out.shape)

    return Real(body, reach, reduces=True)


def _lower_mean(at: Lowering, call: Call) -> Tensor:
    return at.build.reshape(_reduce(at, call, Builtin.MEAN, quant_of(call)), call.out.shape)


def _lower_sum(at: Lowering, call: Call) -> Tensor:
    """n * mean, without a second rounding: LiteRT's own int8 SUM is not to be trusted.

    The mean is taken in units of the result's scale / n, and a product with the constant n (as 127 * n/127)
    then changes the unit and no bit.
    """
    b, q = at.build, quant_of(call)
    count = math.prod(call.input.shape[d] for d in dims_of(call))
    mean = _reduce(at, call, Builtin.MEAN, Quant.per_tensor(q.scale[0] / count, q.zero_point[0]))
    n = b.number(127, mean.rank, Quant.per_tensor(count / 127))
    total = b.op(Builtin.MUL, [mean, n], mean.shape, q, options={"fusedActivationFunction": Activation.NONE})
    return b.reshape(total, call.out.shape)


def _extremum(kind: Builtin) -> Lower:
    def lower(at: Lowering, call: Call) -> Tensor:
        b = at.build
        y = _reduce(at, call, kind, at(call.input).quant)  # type: ignore[arg-type]
        return b.requantize(b.reshape(y, call.out.shape), quant_of(call))

    return lower


def _cases(name: str, **flags: Any) -> tuple[Case, ...]:
    def over(dim: Any, keepdim: bool) -> Any:
        return lambda torch: lambda x: getattr(torch, name)(x, dim=dim, keepdim=keepdim)

    return tuple(
        Case(
            f"{len(shape)}d over {dim}{' kept' if keep else ''}",
            over(dim, keep),
            (shape,),
            channels_last=len(shape) == 4,
            **flags,
        )
        for shape, dim, keep in (
            ((2, 3, 4, 5), (2, 3), False),
            ((2, 3, 4, 5), (2, 3), True),
            ((2, 3, 4, 5), (1,), False),
            ((2, 3, 4, 5), (-1, 0), True),
            ((3, 6), (1,), True),
            ((2, 3, 8), (1, 2), False),
            ((7,), (0,), True),
            ((2, 3, 4, 3, 2), (2, 4), False),
            ((2, 3, 4, 5), (0, 1, 2, 3), True),
        )
    )


MEAN = OpSpec(
    ("aten.mean.dim", "aten.mean.default"),
    Observed(),
    _lower_mean,
    (SHARED_PARAMETERS,),
    _cases("mean") + (Case("all", lambda torch: lambda x: x.mean(), ((2, 3, 4),)),),
    real=_real(Builtin.MEAN),
    quantize_eiq=lambda args: Shared(Values.ROUNDED),
)
SUM = OpSpec(
    ("aten.sum.dim_IntList", "aten.sum.default"),
    Observed(),
    _lower_sum,
    (SHARED_PARAMETERS,),
    real=_real(Builtin.SUM),
    quantize_eiq=lambda args: Shared(Values.ROUNDED),
    cases=_cases("sum"),
    note="computed as n * mean",
)
AMAX = OpSpec(
    ("aten.amax.default",),
    Shared(Values.CHOSEN),
    _extremum(Builtin.REDUCE_MAX),
    real=_real(Builtin.REDUCE_MAX),
    cases=_cases("amax", tolerance=0),
)
AMIN = OpSpec(
    ("aten.amin.default",),
    Shared(Values.CHOSEN),
    _extremum(Builtin.REDUCE_MIN),
    real=_real(Builtin.REDUCE_MIN),
    cases=_cases("amin", tolerance=0),
)


# --------------------------------------------------------------------------------------------------
# Norms


def _norm(at: FloatLowering, call: Call) -> Tensor:
    """(sum of |x|^p)^(1/p), its limits for p = 0 and infinite p."""
    b, x, p, dims = at.build, at.tensor(call.input), float(call.get("ord", 2.0)), dims_of(call)
    if p == 0:
        nonzero = apply(b, Builtin.NOT_EQUAL, x, 0.0, result="bool")
        y = over_dims(at, apply(b, Builtin.SELECT_V2, nonzero, 1.0, 0.0), dims, Builtin.SUM)
    elif math.isinf(p):
        kind = Builtin.REDUCE_MAX if p > 0 else Builtin.REDUCE_MIN
        y = over_dims(at, apply(b, Builtin.ABS, x), dims, kind)
    elif p == 1:
        y = over_dims(at, apply(b, Builtin.ABS, x), dims, Builtin.SUM)
    elif p == 2:
        y = apply(b, Builtin.SQRT, over_dims(at, apply(b, Builtin.MUL, x, x), dims, Builtin.SUM))
    else:
        powers = apply(b, Builtin.POW, apply(b, Builtin.ABS, x), p)
        # In its shape first: a power is the last of its island.
        total = b.reshape(over_dims(at, powers, dims, Builtin.SUM), call.out.shape)
        return apply(b, Builtin.POW, apply(b, Builtin.MAXIMUM, total, 1e-30), 1 / p)
    return b.reshape(y, call.out.shape)


def _norm_case(p: float, dim: Any, keepdim: bool, shape: tuple[int, ...]) -> Case:
    def make(torch: Any) -> Any:
        return lambda x: torch.linalg.vector_norm(x, p, dim, keepdim)

    return Case(f"ord {p:g} {len(shape)}d over {dim}", make, (shape,), channels_last=len(shape) == 4)


_NORM = Real(_norm, Reach.WIDE, reduces=True)
VECTOR_NORM = OpSpec(
    ("aten.linalg_vector_norm.default",),
    Observed(),
    in_float(_NORM),
    (
        Constraint(
            "The order of a norm must be positive, 0 or infinite",
            lambda c: float(c.get("ord", 2.0)) >= 0 or math.isinf(float(c.get("ord", 2.0))),
            lambda c: c.get("ord", 2.0),
            hint="Compute it with pow and sum.",
        ),
    ),
    may_be_infinite=("ord",),
    real=_NORM,
    open_only=True,
    cases=(
        _norm_case(2, (1, 2), True, (2, 5, 4, 3)),
        _norm_case(2, -1, False, (3, 10)),
        _norm_case(1, 1, True, (2, 5, 4)),
        _norm_case(float("inf"), None, False, (2, 5, 4)),
        _norm_case(3, (2, 3), False, (2, 3, 4, 5)),
        _norm_case(0, 1, False, (2, 8)),
    ),
)


def last_axis(kind: Builtin, **options: Any) -> Lower:
    """An op LiteRT computes along the last dimension only; another dimension is brought there and back."""

    def lower(at: Lowering, call: Call) -> Tensor:
        b, x = at.build, call.input
        dim = normalize(call["dim"], x.rank)
        others = [d for d in range(x.rank) if d != dim]
        there = [*others, dim]
        back = [there.index(d) for d in range(x.rank)]
        moved = b.transpose(at(x), there)
        return b.transpose(b.op(kind, [moved], moved.shape, quant_of(call), options=options), back)

    return lower


def _channels(call: Call) -> int:
    return call.input.shape[normalize(call["dim"], call.input.rank)]


def _rows(call: Call) -> int:
    return math.prod(call.input.shape) // max(_channels(call), 1)


def _softmax_case(dim: int, shape: tuple[int, ...]) -> Case:
    return Case(
        f"{len(shape)}d dim {dim}",
        lambda torch: torch.nn.Softmax(dim),
        (shape,),
        channels_last=len(shape) == 4,
    )


SOFTMAX = OpSpec(
    ("aten._softmax.default", "aten.softmax.int"),
    FixedOutput(1 / 256, -128),
    last_axis(Builtin.SOFTMAX, beta=1.0),
    (
        nxp_limit(
            "The dimension must be that of the channels",
            lambda c: normalize(c["dim"], c.input.rank) in (c.input.rank - 1, 1 if c.input.rank == 4 else -1),
            lambda c: c["dim"],
            Case("rows", lambda torch: torch.nn.Softmax(0), ((3, 10),)),
        ),
        nxp_limit(
            "Channels must be at most 2040",
            lambda c: _channels(c) <= c.target.limits.softmax_channels,
            _channels,
            Case("2041 channels", lambda torch: torch.nn.Softmax(-1), ((1, 2041),)),
        ),
        nxp_limit(
            "Rows must be at most 4096",
            lambda c: _rows(c) <= c.target.limits.softmax_rows,
            _rows,
            Case("4097 rows", lambda torch: torch.nn.Softmax(-1), ((4097, 2),)),
        ),
        nxp_limit(
            "Elements must be at most 524288",
            lambda c: math.prod(c.input.shape) <= c.target.limits.softmax_elements,
            lambda c: math.prod(c.input.shape),
            Case("many", lambda torch: torch.nn.Softmax(-1), ((4096, 129),)),
        ),
    ),
    tuple(
        _softmax_case(*a)
        for a in ((-1, (3, 10)), (1, (2, 5, 4, 4)), (0, (6,)), (2, (2, 3, 7)), (-1, (2, 3, 4, 5)))
    ),
)


_DEEPEST = 80.0  # a float holds e^-80 with all its digits


def _lower_log_softmax(at: Lowering, call: Call) -> Tensor:
    """log(e^x / sum of e^x): the exponentials are a table, the logarithm is the last step.

    No e^x overflows: the largest x that int8 holds is taken from all first, which changes nothing. Where x
    reaches so far that an e^x would vanish, x less the largest of its row is exact in int8, and the logarithm
    of the sum is taken from that; its own steps are then small beside those of the result.
    """
    b, x, out = at.build, at(call.input), quant_of(call)
    assert x.quant is not None
    dims, step, zero = [normalize(call["dim"], x.rank)], x.quant.scale[0], x.quant.zero_point[0]
    size = x.shape[dims[0]] if x.rank else 1
    inside = FloatLowering(at)
    if 255 * step + math.log(size) < _DEEPEST:
        shifted = apply(b, Builtin.SUB, b.dequantize(x), step * (127 - zero))
        powers = apply(b, Builtin.EXP, shifted)
        share = apply(b, Builtin.DIV, powers, over_dims(inside, powers, dims, Builtin.SUM))
        return b.quantize(logarithm(b, share), out)
    axes, kept = b.ints(dims), tuple(1 if a in dims else d for a, d in enumerate(x.shape))
    largest = b.op(Builtin.REDUCE_MAX, [x, axes], kept, x.quant, options={"keepDims": True})
    plain = {"fusedActivationFunction": Activation.NONE}
    below = b.op(Builtin.SUB, [x, largest], x.shape, Quant.per_tensor(step, 127), options=plain)
    total = over_dims(inside, apply(b, Builtin.EXP, b.dequantize(below)), dims, Builtin.SUM)
    log_total = b.quantize(logarithm(b, total), Quant.per_tensor(max(math.log(size), 1e-3) / 255, -128))
    return b.op(Builtin.SUB, [below, log_total], x.shape, out, options=plain)


def _log_softmax_case(dim: int, shape: tuple[int, ...], factor: float = 1.0) -> Case:
    def make(torch: Any) -> Any:
        return lambda x: torch.nn.functional.log_softmax(x * factor, dim)

    return Case(f"{shape} over {dim} x {factor:g}", make, (shape,), channels_last=len(shape) == 4)


LOG_SOFTMAX = OpSpec(
    ("aten._log_softmax.default", "aten.log_softmax.int"),
    Observed(),
    _lower_log_softmax,
    cases=(
        _log_softmax_case(-1, (3, 10)),
        _log_softmax_case(1, (2, 5, 4, 4)),
        _log_softmax_case(2, (2, 3, 7), 0.01),
        _log_softmax_case(-1, (4, 12), 60.0),
        _log_softmax_case(1, (2, 100, 3), 30.0),
    ),
    open_only=True,
)


def _arg(kind: Builtin) -> Lower:
    """The index of the first extremum, as torch and LiteRT have it; of all values if there is no dim."""

    def lower(at: Lowering, call: Call) -> Tensor:
        b, x, dim = at.build, at(call.input), call.get("dim")
        if dim is None:
            x, dim = b.reshape(x, (x.elements,)), 0
        axis = normalize(dim, x.rank)
        shape = tuple(d for a, d in enumerate(x.shape) if a != axis)
        operands = [x, b.const(np.array(axis, np.int32))]
        y = b.op(kind, operands, shape, dtype="int64", options={"outputType": _INT64})
        return b.reshape(y, call.out.shape)

    return lower


_INT64 = 4  # TensorType of LiteRT's schema


def _arg_cases(name: str) -> tuple[Case, ...]:
    def over(dim: int | None, keep: bool) -> Any:
        return lambda torch: lambda x: getattr(torch, name)(x, dim, keep)

    return tuple(
        Case(f"{len(shape)}d over {dim}{' kept' if keep else ''}", over(dim, keep), (shape,), tolerance=0)
        for shape, dim, keep in (
            ((2, 5, 3, 4), 1, False),
            ((2, 5, 3), -1, True),
            ((2, 3, 4), None, False),
            ((7,), 0, True),
        )
    )


ARGMAX = OpSpec(
    ("aten.argmax.default",),
    Observed(),
    _arg(Builtin.ARG_MAX),
    cases=_arg_cases("argmax"),
    integer_result=True,
    open_only=True,
)
ARGMIN = OpSpec(
    ("aten.argmin.default",),
    Observed(),
    _arg(Builtin.ARG_MIN),
    cases=_arg_cases("argmin"),
    integer_result=True,
    open_only=True,
)
