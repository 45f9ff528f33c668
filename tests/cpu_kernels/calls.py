"""Random calls of every operator of runtime/cpu_kernels: types, ranks, orders, values on borders."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tests.cpu_kernels.compare import TYPES, Call, Tensor, out

Generator = np.random.Generator
CALLS: dict[str, Callable[[Generator], Call]] = {}

SPECIAL = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38, 0.5, 1.5, 2.5, -0.5,
     -1.5, 127.5, -128.5, 2.0**22, 2.0**22 - 0.5, -(2.0**22), 2.0**23 + 1, 2.0**31, -(2.0**31), 2.0**62,
     2.0**63, -(2.0**63), 2.0**64, 3.4028235e38, -3.4028235e38, 1.0, -1.0, 88.72284, 88.8, -103.9, -104.5],
    "float32",
)  # fmt: skip
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def case(*operators: str) -> Callable[[Callable[[Generator, str], Call]], Callable[[Generator, str], Call]]:
    """A function that makes random calls of these operators."""

    def register(make: Callable[[Generator, str], Call]) -> Callable[[Generator, str], Call]:
        for operator in operators:
            CALLS[operator] = lambda rng, operator=operator: make(rng, operator)  # type: ignore[misc]
        return make

    return register


def shape(rng: Generator, low: int = 0, high: int = 6, most: int = 600) -> tuple[int, ...]:
    """A shape of few elements; every tenth has a size of zero."""
    rank = int(rng.integers(low, high + 1))
    while True:
        sizes = tuple(int(s) for s in rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 33], rank))
        if prod(sizes) <= most:
            break
    if rank and rng.random() < 0.1:
        at = int(rng.integers(rank))
        sizes = (*sizes[:at], 0, *sizes[at + 1 :])
    return sizes


def floats(rng: Generator, sizes: Sequence[int]) -> np.ndarray:
    """Values of many magnitudes, most of them ordinary, some of them special."""
    values = (rng.standard_normal(tuple(sizes)) * 10.0 ** rng.integers(-3, 4)).astype("float32")
    kind = rng.random()
    if kind < 0.5:
        chosen = rng.random(values.shape) < 0.1
        values = np.where(chosen, rng.choice(SPECIAL, values.shape), values)
    elif kind < 0.6:
        bits = rng.integers(0, 2**32, values.shape, dtype=np.uint32)
        values = bits.view("float32")
    return np.asarray(values, "float32")


def order(rng: Generator, rank: int) -> tuple[int, ...] | None:
    """The plain order of dimensions, or channels last where there are four or five."""
    return (0, *range(2, rank), 1) if rank in (4, 5) and rng.random() < 0.4 else None


def integers(rng: Generator, sizes: Sequence[int], dtype: str) -> np.ndarray:
    """Values all over a type's range."""
    low, high = RANGES.get(dtype, (-1000, 1000))
    return rng.integers(low, high + 1, tuple(sizes)).astype(dtype)


def bounds(rng: Generator, dtype: str) -> tuple[int, int]:
    """Mostly the type's own."""
    low, high = RANGES[dtype]
    if rng.random() < 0.7:
        return low, high
    a, b = sorted(int(v) for v in rng.integers(low, high + 1, 2))
    return a, b


def scale(rng: Generator) -> float:
    """From tiny to large; half of them make many values fall on a border between two integers."""
    if rng.random() < 0.5:
        return float(2.0 ** rng.integers(-8, 3))
    return float(10.0 ** rng.uniform(-40, 3)) if rng.random() < 0.1 else float(10.0 ** rng.uniform(-4, 1))


def zero(rng: Generator, dtype: str) -> int:
    """Of the type's range, at times far out of it."""
    low, high = RANGES[dtype]
    if rng.random() < 0.05:
        return int(rng.choice([2**21, -(2**21), 2**21 + 1, 2**24 + 1, 2**31 - 1]))
    return int(rng.integers(low, high + 1))


Q = "quantized_decomposed::"


@case(Q + "quantize_per_tensor.out", Q + "quantize_per_tensor.Tensor_out")
def _quantize(rng: Generator, operator: str) -> Call:
    dtype = str(rng.choice(list(RANGES)))
    sizes = shape(rng)
    at = order(rng, len(sizes))
    step, offset = scale(rng), zero(rng, dtype)
    values = floats(rng, sizes)
    if rng.random() < 0.3:  # on the borders
        values = ((rng.integers(-300, 300, sizes) + 0.5) * step).astype("float32")
    given: tuple[object, ...] = (step, offset)
    if "Tensor" in operator:
        given = (np.array([step]), np.array([offset]))
    low, high = bounds(rng, dtype)
    return Call(operator, (Tensor(values, order=at), *given, low, high, TYPES[dtype], out(sizes, dtype, at)))


@case(Q + "dequantize_per_tensor.out", Q + "dequantize_per_tensor.Tensor_out")
def _dequantize(rng: Generator, operator: str) -> Call:
    dtype = str(rng.choice(list(RANGES)))
    sizes = shape(rng)
    at = order(rng, len(sizes))
    given: tuple[object, ...] = (scale(rng), zero(rng, dtype))
    if "Tensor" in operator:
        given = (np.array([given[0]]), np.array([given[1]]))
    low, high = bounds(rng, dtype)
    wanted = TYPES["float32"] if rng.random() < 0.5 else None
    values = Tensor(integers(rng, sizes, dtype), order=at)
    return Call(operator, (values, *given, low, high, TYPES[dtype], wanted, out(sizes, "float32", at)))


@case(Q + "quantize_per_channel.out", Q + "dequantize_per_channel.out")
def _per_channel(rng: Generator, operator: str) -> Call:
    dtype = str(rng.choice(list(RANGES)))
    sizes = shape(rng, 1)
    axis = int(rng.integers(len(sizes)))
    low, high = RANGES[dtype]
    steps = np.array([scale(rng) for _ in range(sizes[axis])], "float64")
    zeros = rng.integers(low, high + 1, sizes[axis])
    axis -= len(sizes) if rng.random() < 0.3 else 0
    if operator.startswith(Q + "quantize"):
        given = (floats(rng, sizes), steps, zeros, axis, low, high, TYPES[dtype], out(sizes, dtype))
        return Call(operator, given)
    if rng.random() < 0.5:
        steps = steps.astype("float32")
    offsets = None if rng.random() < 0.3 else zeros
    values = integers(rng, sizes, dtype)
    given = (values, steps, offsets, axis, low, high, TYPES[dtype], None, out(sizes))
    return Call(operator, given)


def broadcast(rng: Generator, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to another."""
    kept = tuple(1 if rng.random() < 0.4 else s for s in sizes)
    return kept[int(rng.integers(len(kept) + 1)) :] if rng.random() < 0.5 else kept


def number(rng: Generator) -> float | int:
    """A number as a program may give it."""
    if rng.random() < 0.3:
        return int(rng.integers(-5, 6))
    return float(rng.choice([1.0, 0.0, -0.0, 2.5, -3.0, 1e-40, np.nan, np.inf, 1e30, 1 / 3]))


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@case("aten::add.out", "aten::sub.out", "aten::mul.out", "aten::div.out", "aten::minimum.out",
      "aten::maximum.out", *(f"aten::{name}.Tensor_out" for name in COMPARISONS))  # fmt: skip
def _binary(rng: Generator, operator: str) -> Call:
    sizes = shape(rng)
    a, b = sizes, sizes
    if rng.random() < 0.6:
        a, b = (sizes, broadcast(rng, sizes))[:: int(rng.choice([1, -1]))]
        if rng.random() < 0.2 and len(b) == len(sizes):
            a = broadcast(rng, sizes)
        sizes = tuple(np.broadcast_shapes(a, b))
    last = order(rng, len(sizes)) if len(a) == len(b) == len(sizes) else None
    more = () if operator[6:9] not in ("add", "sub") else (1 if rng.random() < 0.7 else number(rng),)
    first, second = Tensor(floats(rng, a), order=last), Tensor(floats(rng, b), order=last)
    if "Tensor" in operator:
        first = replace(first, values=np.where(rng.random(a) < 0.3, np.float32(1), first.values))
        second = replace(second, values=np.where(rng.random(b) < 0.3, np.float32(1), second.values))
    made = out(sizes, "bool" if "Tensor" in operator else "float32", last)
    return Call(operator, (first, second, *more, made))


@case("aten::where.self_out")
def _where(rng: Generator, operator: str) -> Call:
    sizes = shape(rng)
    shapes = [sizes, sizes, sizes]
    if rng.random() < 0.6:
        shapes[int(rng.integers(3))] = broadcast(rng, sizes)
        shapes[int(rng.integers(3))] = broadcast(rng, sizes)
        sizes = tuple(np.broadcast_shapes(*shapes))
    last = order(rng, len(sizes)) if all(len(s) == len(sizes) for s in shapes) else None
    condition = Tensor(rng.random(shapes[0]) < 0.5, order=last)
    values = [Tensor(floats(rng, s), order=last) for s in shapes[1:]]
    return Call(operator, (condition, *values, out(sizes, order=last)))


@case("aten::add.Scalar_out", "aten::sub.Scalar_out", "aten::mul.Scalar_out", "aten::div.Scalar_out",
      *(f"aten::{name}.Scalar_out" for name in COMPARISONS))  # fmt: skip
def _with_number(rng: Generator, operator: str) -> Call:
    sizes = shape(rng)
    last = order(rng, len(sizes))
    more = (number(rng),) if operator[6:9] in ("add", "sub") else ()
    made = out(sizes, "bool" if operator[6:8] in COMPARISONS else "float32", last)
    return Call(operator, (Tensor(floats(rng, sizes), order=last), number(rng), *more, made))


UNARY = ("relu", "abs", "neg", "sqrt", "rsqrt", "reciprocal", "exp", "tanh", "sigmoid")


@case(*(f"aten::{name}.out" for name in UNARY))
def _unary(rng: Generator, operator: str) -> Call:
    sizes = shape(rng)
    last = order(rng, len(sizes))
    return Call(operator, (Tensor(floats(rng, sizes), order=last), out(sizes, order=last)))


@case("aten::gelu.out")
def _gelu(rng: Generator, operator: str) -> Call:
    sizes = shape(rng)
    last = order(rng, len(sizes))
    approximate = "none" if rng.random() < 0.9 else "tanh"
    return Call(operator, (Tensor(floats(rng, sizes), order=last), approximate, out(sizes, order=last)))


@case("aten::clamp.out", "aten::hardtanh.out")
def _clamp(rng: Generator, operator: str) -> Call:
    sizes = shape(rng)
    last = order(rng, len(sizes))
    low, high = number(rng), number(rng)
    if operator == "aten::clamp.out" and rng.random() < 0.4:
        low, high = (None, high) if rng.random() < 0.5 else (low, None)
    return Call(operator, (Tensor(floats(rng, sizes), order=last), low, high, out(sizes, order=last)))


def anything(rng: Generator, sizes: Sequence[int]) -> np.ndarray:
    """Values of a random type."""
    dtype = str(rng.choice(["float32", "int8", "int16", "int64", "bool", "uint8"]))
    if dtype == "float32":
        return floats(rng, sizes)
    return rng.integers(0, 2, tuple(sizes)).astype(bool) if dtype == "bool" else integers(rng, sizes, dtype)


@case("aten::permute_copy.out")
def _permute(rng: Generator, operator: str) -> Call:
    values = anything(rng, shape(rng))
    dims = [int(d) for d in rng.permutation(values.ndim)]
    given = [d - values.ndim if rng.random() < 0.2 else d for d in dims]
    return Call(operator, (values, given, out([values.shape[d] for d in dims], str(values.dtype))))


@case("aten::transpose_copy.int_out")
def _transpose(rng: Generator, operator: str) -> Call:
    values = anything(rng, shape(rng, 1))
    a, b = (int(d) for d in rng.integers(-values.ndim, values.ndim, 2))
    sizes = list(values.shape)
    sizes[a], sizes[b] = sizes[b], sizes[a]
    return Call(operator, (values, a, b, out(sizes, str(values.dtype))))


@case("aten::flip.out")
def _flip(rng: Generator, operator: str) -> Call:
    values = anything(rng, shape(rng, 1))
    dims = [int(d) for d in rng.permutation(values.ndim)[: int(rng.integers(0, values.ndim + 1))]]
    given = [d - values.ndim if rng.random() < 0.3 else d for d in dims]
    return Call(operator, (values, given, out(values.shape, str(values.dtype))))


@case("aten::expand_copy.out")
def _expand(rng: Generator, operator: str) -> Call:
    sizes = shape(rng, 1, 5)
    own = broadcast(rng, sizes)
    values = anything(rng, own)
    wanted = list(sizes)
    for i, size in enumerate(own):
        at = i + len(sizes) - len(own)
        wanted[at] = -1 if size == sizes[at] and rng.random() < 0.3 else sizes[at]
    return Call(operator, (values, wanted, False, out(sizes, str(values.dtype))))


@case("dim_order_ops::_to_dim_order_copy.out", "dim_order_ops::_clone_dim_order.out")
def _dim_order(rng: Generator, operator: str) -> Call:
    values = anything(rng, shape(rng, 0 if rng.random() < 0.3 else 4, 5))
    given = order(rng, values.ndim)
    wanted = order(rng, values.ndim) or tuple(range(values.ndim))
    named: list[int] | None = list(wanted)
    if rng.random() < 0.2:
        wanted, named = given or tuple(range(values.ndim)), None
    return Call(
        operator, (Tensor(values, order=given), False, named, out(values.shape, str(values.dtype), wanted))
    )


@case("aten::sum.IntList_out", "aten::mean.out")
def _reduce(rng: Generator, operator: str) -> Call:
    sizes = shape(rng, 1)
    dims = [int(d) for d in rng.permutation(len(sizes))[: int(rng.integers(0, len(sizes) + 1))]]
    if rng.random() < 0.3:
        dims = [len(sizes) - 1]
    keep = bool(rng.random() < 0.5)
    summed = dims or list(range(len(sizes)))
    kept = [1 if d in summed else s for d, s in enumerate(sizes) if keep or d not in summed]
    named = (
        None
        if not dims and rng.random() < 0.5
        else [d - len(sizes) if rng.random() < 0.3 else d for d in dims]
    )
    return Call(operator, (floats(rng, sizes), named, keep, None, out(kept)))


@case("aten::_softmax.out", "aten::_log_softmax.out")
def _softmax(rng: Generator, operator: str) -> Call:
    sizes = shape(rng, 1)
    dim = int(rng.integers(-len(sizes), len(sizes)))
    return Call(operator, (floats(rng, sizes), dim, False, out(sizes)))


@case("aten::native_layer_norm.out")
def _layer_norm(rng: Generator, operator: str) -> Call:
    sizes = shape(rng, 1, 5)
    inner = int(rng.integers(1, len(sizes) + 1))
    shapes = sizes[len(sizes) - inner :]
    weight = floats(rng, shapes) if rng.random() < 0.6 else None
    bias = floats(rng, shapes) if rng.random() < 0.6 else None
    kept = (*sizes[: len(sizes) - inner], *(1 for _ in shapes))
    return Call(
        operator, (floats(rng, sizes), list(shapes), weight, bias, 1e-5, out(sizes), out(kept), out(kept))
    )


def _sizes(rng: Generator, count: int) -> list[int]:
    return [int(s) for s in rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 12], count)]


@case("aten::mm.out", "aten::bmm.out", "aten::addmm.out")
def _product(rng: Generator, operator: str) -> Call:
    m, n, p = _sizes(rng, 3)
    n = 0 if rng.random() < 0.05 else n
    if operator == "aten::bmm.out":
        batch = int(rng.integers(0, 4))
        return Call(operator, (floats(rng, (batch, m, n)), floats(rng, (batch, n, p)), out((batch, m, p))))
    pair = (floats(rng, (m, n)), floats(rng, (n, p)))
    if operator == "aten::mm.out":
        return Call(operator, (*pair, out((m, p))))
    shapes: list[tuple[int, ...]] = [(p,), (m, p), (1, p), (m, 1), (1,)]
    added = floats(rng, shapes[int(rng.integers(len(shapes)))])
    beta, alpha = (1, 1) if rng.random() < 0.6 else (number(rng), number(rng))
    return Call(operator, (added, *pair, beta, alpha, out((m, p))))


@case("aten::convolution.out")
def _convolution(rng: Generator, operator: str) -> Call:
    rank = int(rng.choice([1, 2, 2, 2]))
    transposed = bool(rng.random() < 0.4)
    groups = int(rng.choice([1, 1, 2, 3]))
    each_in, each_out = (int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 4, 5, 6, 8])))
    kernel = [int(k) for k in rng.integers(1, 4, rank)]
    stride, dilation = ([int(s) for s in rng.integers(1, 4, rank)] for _ in range(2))
    if rng.random() < 0.3:
        kernel, stride = [1] * rank, [1] * rank
    if transposed and rng.random() < 0.9:  # a dilated one is the portable kernel's
        dilation = [1] * rank
    padding = [int(k) for k in rng.integers(0, 4, rank)] if rng.random() < 0.7 else [0] * rank
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = [max(int(rng.integers(1, 11)), span - 2 * pad) for span, pad in zip(spans, padding, strict=True)]
    more = [int(rng.integers(0, s)) for s in stride] if transposed else [0] * rank
    result = [(s + 2 * p - span) // t + 1 for s, p, span, t in zip(size, padding, spans, stride, strict=True)]
    if transposed:
        padding = [min(p, k // 2) for p, k in zip(padding, kernel, strict=True)]
        parts = zip(size, padding, spans, stride, more, strict=True)
        result = [(s - 1) * t - 2 * p + span + o for s, p, span, t, o in parts]
    last = order(rng, 4) if rank == 2 else None
    channels = (groups * each_in, each_out) if transposed else (groups * each_out, each_in)
    weight = Tensor(floats(rng, (*channels, *kernel)), order=order(rng, 4) if rank == 2 else None)
    bias = floats(rng, (groups * each_out,)) if rng.random() < 0.6 else None
    values = Tensor(floats(rng, (int(rng.integers(1, 3)), groups * each_in, *size)), order=last)
    made = out((values.values.shape[0], groups * each_out, *result), order=last)
    given = (stride, padding, dilation, transposed, more, groups)
    return Call(operator, (values, weight, bias, *given, made))


@case("aten::avg_pool2d.out", "aten::max_pool2d_with_indices.out")
def _pool(rng: Generator, operator: str) -> Call:
    largest = "max" in operator
    kernel = [int(k) for k in rng.integers(1, 5, 2)]
    stride = [int(s) for s in rng.integers(1, 5, 2)]
    padding = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    dilation = [int(d) for d in rng.integers(1, 3, 2)] if largest else [1, 1]
    ceil = bool(rng.random() < 0.5)
    named, steps = list(kernel), list(stride)
    if rng.random() < 0.3:
        stride, steps = list(kernel), []
    if rng.random() < 0.2:
        kernel, padding, named = [kernel[0]] * 2, [padding[0]] * 2, [kernel[0]]
        stride = kernel if not steps else stride
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    size = [max(int(rng.integers(1, 12)), span - 2 * pad) for span, pad in zip(spans, padding, strict=True)]
    result = []
    for s, p, span, t in zip(size, padding, spans, stride, strict=True):
        count = (s + 2 * p - span + (t - 1 if ceil else 0)) // t + 1
        result.append(count - 1 if ceil and (count - 1) * t >= s + p else count)
    front = [int(n) for n in rng.integers(1, 4, int(rng.integers(1, 3)))]
    last = order(rng, 4) if largest and len(front) == 2 else None
    values = Tensor(floats(rng, (*front, *size)), order=last)
    made = out((*front, *result), order=last)
    if largest:
        index = out((*front, *result), "int64", last)
        return Call(operator, (values, named, steps, padding, dilation, ceil, made, index))
    divisor = int(rng.choice([1, 3, -2])) if rng.random() < 0.3 else None
    return Call(operator, (values, named, steps, padding, ceil, bool(rng.random() < 0.5), divisor, made))


@case("aten::upsample_nearest2d.vec_out", "aten::upsample_bilinear2d.vec_out")
def _upsample(rng: Generator, operator: str) -> Call:
    front, size = ([int(n) for n in rng.integers(1, most, 2)] for most in (5, 9))
    last = order(rng, 4)
    if rng.random() < 0.5:
        named, factors = [int(n) for n in rng.integers(1, 14, 2)], None
        made = named
    else:
        factors = [float(rng.choice([1.0, 2.0, 0.5, 3.0, rng.uniform(0.2, 3.0)])) for _ in range(2)]
        made = [int(n * f) for n, f in zip(size, factors, strict=True)]
        named = None
    corners = (bool(rng.random() < 0.5),) if "bilinear" in operator else ()
    values = Tensor(floats(rng, (*front, *size)), order=last)
    return Call(operator, (values, named, *corners, factors, out((*front, *made), order=last)))


@case("aten::slice_copy.Tensor_out")
def _slice(rng: Generator, operator: str) -> Call:
    values = anything(rng, shape(rng, 1))
    dim = int(rng.integers(-values.ndim, values.ndim))
    size = values.shape[dim]
    start = None if rng.random() < 0.3 else int(rng.integers(-size - 2, size + 3))
    end = None if rng.random() < 0.3 else int(rng.choice([*rng.integers(-size - 2, size + 3, 2), 2**63 - 1]))
    step = int(rng.integers(1, 4))
    sizes = list(values.shape)
    sizes[dim] = len(range(*slice(start, end, step).indices(size)))
    return Call(operator, (values, dim, start, end, step, out(sizes, str(values.dtype))))


@case("aten::select_copy.int_out")
def _select(rng: Generator, operator: str) -> Call:
    values = anything(rng, shape(rng, 1))
    dim = int(rng.integers(-values.ndim, values.ndim))
    size = max(values.shape[dim], 1)
    sizes = [s for d, s in enumerate(values.shape) if d != dim % values.ndim]
    return Call(operator, (values, dim, int(rng.integers(-size, size)), out(sizes, str(values.dtype))))


@case("aten::cat.out")
def _cat(rng: Generator, operator: str) -> Call:
    first = anything(rng, shape(rng, 1, most=200))
    dim = int(rng.integers(-first.ndim, first.ndim))
    parts = [first]
    for _ in range(int(rng.integers(0, 4))):
        sizes = list(first.shape)
        sizes[dim] = int(rng.integers(0, 6))
        dtype = str(first.dtype) if rng.random() < 0.9 else "float32"
        given = floats(rng, sizes) if dtype == "float32" else rng.integers(0, 2, sizes).astype(dtype)
        parts.append(given)
    sizes = list(first.shape)
    sizes[dim] = sum(p.shape[dim] for p in parts)
    made = "float32" if any(p.dtype == np.float32 for p in parts) else str(first.dtype)
    return Call(operator, (parts, dim, out(sizes, made)))


M = "cortex_m::"


def fraction(rng: Generator) -> int:
    """A multiplier as quantizers make it, at times an odd one."""
    return int(rng.integers(1, 2**31)) if rng.random() < 0.05 else int(rng.integers(2**30, 2**31))


def pair(rng: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Two int8 tensors and the result's; one of them may be a single pixel, the channels last."""
    sizes = shape(rng, 0, 4, most=3000) if rng.random() < 0.3 else (int(rng.integers(256, 2000)),)
    if rng.random() < 0.3:
        channels = int(rng.integers(1, 9))
        sizes = (1, channels, int(rng.integers(4, 20)), int(rng.integers(4, 20)))
        one, last = (1, channels, 1, 1), (0, 2, 3, 1)
        both = [
            Tensor(integers(rng, s, "int8"), order=last)
            for s in ((sizes, one), (one, sizes))[rng.integers(2)]
        ]
        return both[0], both[1], out(sizes, "int8", last)
    at = order(rng, len(sizes))
    both = [Tensor(integers(rng, sizes, "int8"), order=at) for _ in range(2)]
    return both[0], both[1], out(sizes, "int8", at)


def int8_zero(rng: Generator) -> int:
    """A zero point."""
    return int(rng.choice([-128, 0, 127, rng.integers(-128, 128)]))


@case(M + "quantized_add.out", M + "quantized_mul.out")
def _int8(rng: Generator, operator: str) -> Call:
    a, b, made = pair(rng)
    zero, multiplier = int8_zero(rng), fraction(rng)
    if "mul" in operator:
        shift = -int(rng.integers(0, 14))
        return Call(operator, (a, int8_zero(rng), b, int8_zero(rng), zero, multiplier, shift, made))
    shifts = [-int(rng.choice([0, 0, 1, 2, 5, 31])) for _ in range(2)]
    low, high = bounds(rng, "int8") if rng.random() < 0.5 else (-128, 127)
    first, second = ((int8_zero(rng), fraction(rng), shift) for shift in shifts)
    shift = -int(rng.integers(16, 22)) if rng.random() < 0.95 else int(rng.integers(-31, 1))
    return Call(operator, (a, *first, b, *second, zero, multiplier, shift, low, high, made))


@case(M + "softmax.out")
def _int8_softmax(rng: Generator, operator: str) -> Call:
    sizes = shape(rng, 1, 4, most=2000)
    sizes = tuple(max(s, 1) for s in sizes) if rng.random() < 0.5 else (2, int(rng.integers(1, 600)))
    sizes = tuple(max(s, 1) for s in sizes)
    values = integers(rng, sizes, "int8")
    if rng.random() < 0.2:
        values = np.full(sizes, rng.integers(-128, 128), "int8")
    elif rng.random() < 0.3:
        values = (values // 16).astype("int8")
    dim = -1 if rng.random() < 0.5 else len(sizes) - 1
    least = -int(rng.choice([0, 10, 127, 255, 1000, rng.integers(0, 300)]))
    given = (dim, int8_zero(rng), -128, fraction(rng), int(rng.integers(15, 27)), least)
    return Call(operator, (values, *given, out(sizes, "int8")))


@case(M + "quantize_per_tensor.out", M + "dequantize_per_tensor.out")
def _int8_border(rng: Generator, operator: str) -> Call:
    dtype = str(rng.choice(["int8", "int16"]))
    sizes = shape(rng)
    at, step, (low, high) = order(rng, len(sizes)), scale(rng), bounds(rng, dtype)
    offset = int(rng.integers(low, high + 1))
    if "dequantize" in operator:
        values, made = integers(rng, sizes, dtype), "float32"
    else:
        values, made = floats(rng, sizes), dtype
        if rng.random() < 0.3:  # on the borders
            values = ((rng.integers(-300, 300, sizes) + 0.5) * step).astype("float32")
    given = (step, offset, low, high, TYPES[dtype])
    return Call(operator, (Tensor(values, order=at), *given, out(sizes, made, at)))


# What may be written where an input of the same sizes lies.
IN_PLACE = re.compile(
    rf"aten::({'|'.join(UNARY)}|add|sub|mul|div|minimum|maximum|where|gelu|clamp|hardtanh|_softmax"
    r"|_log_softmax|native_layer_norm)\.|cortex_m::(quantized_add|quantized_mul|softmax)"
)
OTHERS = ("float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool", "float32")

# Numbers of these may be of any type; elsewhere they are sizes and the like.
SCALARS = tuple(f"aten::{name}.Scalar_out" for name in ("add", "sub", "mul", "div", *COMPARISONS)) + (
    "aten::add.out", "aten::sub.out", "aten::clamp.out", "aten::hardtanh.out")  # fmt: skip


def as_tensor(argument: object) -> Tensor:
    """An argument that is a tensor, of the plain order if it is an array."""
    return argument if isinstance(argument, Tensor) else Tensor(np.asarray(argument))


def in_place(rng: Generator, call: Call) -> Call:
    """The call with its result where one of its inputs lies; the same call where none can.

    Not a broadcast with the channels last: the portable kernels write it in another order than they read it.
    """
    made = next(a for a in call.arguments if isinstance(a, Tensor) and a.written)

    def fits(argument: object) -> bool:
        given = as_tensor(argument)
        same = given.values.shape == made.values.shape and given.values.dtype == made.values.dtype
        return same and not given.written and given.order == made.order

    tensors = [i for i, a in enumerate(call.arguments) if isinstance(a, Tensor | np.ndarray) and fits(a)]
    all_tensors = sum(isinstance(a, Tensor | np.ndarray) for a in call.arguments) - 1
    scattered = made.order is not None and len(tensors) < all_tensors
    if not tensors or scattered or not IN_PLACE.match(call.operator):
        return call
    shared = replace(made, beside=int(rng.choice(tensors)))
    return replace(call, arguments=tuple(shared if a is made else a for a in call.arguments))


def of_other_types(rng: Generator, call: Call) -> Call:
    """The call with tensors of any types there are, mixed or all the same, and in any order of dimensions."""
    types = [
        t for t in OTHERS if t != "bool" or "convolution" not in call.operator
    ]  # a bias of bools crashes
    common = str(rng.choice(types)) if rng.random() < 0.6 else None
    orders = rng.random() < 0.3

    def turned(tensor: Tensor) -> Tensor:
        dtype, order = common or str(rng.choice(types)), tensor.order
        if orders and rng.random() < 0.5:
            order = tuple(int(d) for d in rng.permutation(tensor.values.ndim))
        held = "uint16" if dtype == "bfloat16" else dtype
        if held == str(tensor.values.dtype):
            values = tensor.values
        elif dtype == "bfloat16":
            values = (np.nan_to_num(tensor.values).astype("float32").view("uint32") >> 16).astype("uint16")
        elif held.startswith("float"):
            with np.errstate(over="ignore"):
                values = tensor.values.astype(held)
        else:
            whole = np.clip(np.nan_to_num(tensor.values.astype("float64")), -100, 100).astype("int64")
            values = whole.astype(held) if held != "bool" else whole % 2 == 1
        return replace(tensor, values=np.asarray(values), order=order, dtype=dtype)

    def each(argument: object) -> object:
        if isinstance(argument, list) and argument and isinstance(argument[0], np.ndarray):
            return [turned(Tensor(a)) for a in argument]
        if isinstance(argument, np.ndarray | Tensor):
            return turned(as_tensor(argument))
        if isinstance(argument, float | int) and not isinstance(argument, bool) and rng.random() < 0.1:
            return bool(argument) if call.operator in SCALARS else argument
        return argument

    if "quantize_per" in call.operator:  # the values or the result, and with them the type that is named
        at = -1 if "::quantize" in call.operator else 0
        changed = turned(call.arguments[at] if at else as_tensor(call.arguments[0]))
        named = 6 if "per_channel" in call.operator else 5
        code = TYPES[changed.dtype or "float32"]
        made = [code if i == named else a for i, a in enumerate(call.arguments)]
        made[at] = changed
        return replace(call, arguments=tuple(made))
    return replace(call, arguments=tuple(each(a) for a in call.arguments))
