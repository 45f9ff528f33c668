"""Permutations of dimensions, and constants moved by them.

A permutation is read as LiteRT's TRANSPOSE (and NumPy's) reads it: dimension `i` of the result is dimension
`perm[i]` of the source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openneutron.litert.ir import Op, Quant, Tensor, constant

Perm = tuple[int, ...]


def identity(rank: int) -> Perm:
    """The permutation that moves nothing."""
    return tuple(range(rank))


def to_last(rank: int) -> Perm:
    """From channels first (N, C, ...) to channels last (N, ..., C); below rank 3 the two are the same."""
    return identity(rank) if rank < 3 else (0, *range(2, rank), 1)


def to_first(rank: int) -> Perm:
    """From channels last (N, ..., C) to channels first (N, C, ...)."""
    return identity(rank) if rank < 3 else (0, rank - 1, *range(1, rank - 1))


def permute(shape: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """The sequence in the order of the permutation."""
    return tuple(shape[p] for p in perm)


def compose(first: Perm, second: Perm) -> Perm:
    """One permutation that does what `first` and then `second` do."""
    return tuple(first[p] for p in second)


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes this one."""
    return tuple(perm.index(i) for i in range(len(perm)))


def moves_nothing(shape: Sequence[int], perm: Perm) -> bool:
    """Whether the elements keep their order in memory: only dimensions of size 1 change place."""
    real = [p for p in perm if shape[p] != 1]
    return real == sorted(real)


def permutation(op: Op) -> Perm:
    """The constant permutation of a TRANSPOSE."""
    return tuple(int(p) for p in op.operand(1).array)


def transposed_constant(source: Tensor, perm: Perm, name: str) -> Tensor:
    """The constant with its dimensions permuted; a per-axis quantization follows its axis."""
    quant = source.quant
    if quant is not None and not quant.is_per_tensor:
        quant = Quant(quant.scale, quant.zero_point, perm.index(quant.axis))
    return constant(name, np.transpose(source.array, perm), quant)


def reshaped_quant(quant: Quant | None, old: Sequence[int], new: Sequence[int]) -> Quant | None:
    """The quantization after a reshape; a per-axis one must keep its axis whole."""
    if quant is None or quant.is_per_tensor:
        return quant
    before, size = math.prod(old[: quant.axis]), old[quant.axis]
    for axis, dim in enumerate(new):
        if dim == size and math.prod(new[:axis]) == before:
            return Quant(quant.scale, quant.zero_point, axis)
    raise ValueError(f"a reshape from {tuple(old)} to {tuple(new)} breaks up quantized axis {quant.axis}")


def reshaped_constant(source: Tensor, shape: Sequence[int], name: str) -> Tensor:
    """The constant with another shape."""
    quant = reshaped_quant(source.quant, source.shape, shape)
    return constant(name, source.array.reshape(tuple(shape)), quant)
