"""What flows between the nodes of an ONNX graph: tensors, and integers with their quantization.

A quantized tensor is kept as int8 whatever the file says: uint8 is int8 with the zero point moved by 128,
which is exact. Reading it as real numbers writes a dequantize step in front of the reader, so that each
reader has one of its own, as partitioning wants it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torchao.quantization.pt2e  # noqa: F401  registers the quantized_decomposed operators
from torch._subclasses.fake_tensor import unset_fake_temporarily

from openneutron.onnx.narrow import opened

Tensor = torch.Tensor
_RANGES = {torch.int8: (-128, 127), torch.int32: (-(2**31), 2**31 - 1)}
UNSIGNED_SHIFT = 128


@dataclass(frozen=True, eq=False)
class Quantized:
    """Integers and what they stand for: real = scale * (ints - zero_point), per tensor or along an axis."""

    ints: Tensor  # int8, or int32 for a bias
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None  # None: per tensor
    unsigned: bool = False  # the file has uint8
    channels: tuple[Tensor, Tensor] | None = None  # scales and zero points along the axis, as constants

    @property
    def shape(self) -> torch.Size:
        return self.ints.shape

    def real(self) -> Tensor:
        """The real numbers, by a dequantize step."""
        ops = torch.ops.quantized_decomposed
        low, high = _RANGES[self.ints.dtype]
        dtype = self.ints.dtype
        if self.axis is None:
            return ops.dequantize_per_tensor(self.ints, self.scale[0], self.zero_point[0], low, high, dtype)
        assert self.channels is not None
        return ops.dequantize_per_channel(self.ints, *self.channels, self.axis, low, high, dtype)

    def like(self, real: Tensor) -> Quantized:
        """Other real numbers, quantized with the same parameters."""
        return quantize(real, replace(self, ints=real))

    def means(self, other: Quantized) -> bool:
        """Whether the integers of both stand for the same real numbers, all with one scale."""
        own, theirs = ((q.scale, q.zero_point, q.axis, q.unsigned) for q in (self, other))
        return own == theirs and self.axis is None and self.ints.dtype == torch.int8

    def raw(self) -> Tensor:
        """The integers as the file has them."""
        return unshifted(self.ints) if self.unsigned else self.ints


@dataclass(frozen=True, eq=False)
class Dequantized:
    """The real numbers of a quantized tensor, not yet written down: each reader does that for itself."""

    source: Quantized
    constant: bool = False

    @property
    def shape(self) -> torch.Size:
        return self.source.ints.shape

    def real(self) -> Tensor:
        """The real numbers, by a dequantize step."""
        return self.source.real()

    def transposed(self) -> Dequantized:
        """The last two dimensions exchanged; the axis follows."""
        rank = self.source.ints.dim()
        axis = self.source.axis
        if axis is not None:
            axis = {rank - 1: rank - 2, rank - 2: rank - 1}.get(axis, axis)
        return replace(self, source=replace(self.source, ints=self.source.ints.transpose(-1, -2), axis=axis))


_HALF = (torch.float16, torch.bfloat16)


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """float32 in place of half precision, in which nothing here computes; other types as they are."""
    return torch.float32 if dtype in _HALF else dtype


def widened(tensor: Tensor) -> Tensor:
    """A constant in half precision as float32; others as they are."""
    return tensor.float() if tensor.dtype in _HALF else tensor


Value = Tensor | Quantized | Dequantized


def shifted(ints: Tensor) -> Tensor:
    """uint8 as int8, 128 less."""
    return (ints.to(torch.int16) - UNSIGNED_SHIFT).to(torch.int8)


def unshifted(ints: Tensor) -> Tensor:
    """int8 as uint8, 128 more."""
    return (ints.to(torch.int16) + UNSIGNED_SHIFT).to(torch.uint8)


def quantize(real: Tensor, like: Quantized) -> Quantized:
    """Real numbers to int8 by a quantize step with these parameters."""
    ops = torch.ops.quantized_decomposed
    if like.axis is None:
        ints = ops.quantize_per_tensor(real, like.scale[0], like.zero_point[0], -128, 127, torch.int8)
    else:
        assert like.channels is not None
        ints = ops.quantize_per_channel(real, *like.channels, like.axis, -128, 127, torch.int8)
    return replace(like, ints=ints)


def as_tensor(value: Any) -> Tensor:
    """A value as an ordinary tensor: quantized integers as the file has them."""
    if isinstance(value, Quantized):
        return value.raw()
    return value.real() if isinstance(value, Dequantized) else value


def as_array(constant: Tensor) -> np.ndarray:
    """The values of a constant without a copy, where NumPy has the type."""
    with unset_fake_temporarily():
        plain = opened(constant)
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).detach().numpy()
