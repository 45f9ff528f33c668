"""Random calls of every operator of runtime/cpu_kernels: types, ranks, orders, values on borders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
