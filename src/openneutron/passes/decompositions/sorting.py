"""Operators that order elements, in terms of extrema, running steps and `topk`.

ExecuTorch has a kernel for `topk`, none for a sort, a median or a k-th value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from openneutron.fx import bind_args, tensor_of


def _extremum(values: str, places: str) -> Callable[..., Any]:
    return lambda self, dim, keepdim=False: (
        getattr(torch, values)(self, dim, keepdim),
        getattr(torch, places)(self, dim, keepdim),
    )


def _aminmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = list(range(self.dim())) if dim is None else [dim]
    return self.amin(dims, keepdim), self.amax(dims, keepdim)


def _sort(self: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    if self.dim() == 0:
        return self, torch.zeros_like(self, dtype=torch.int64)
    top = torch.topk(self, self.shape[dim], dim, largest=descending)
    return top[0], top[1]


def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if self.dim() == 0:
        return self, torch.zeros_like(self, dtype=torch.int64)
    top = torch.topk(self, k, dim, largest=False)
    values, places = (part.narrow(dim, k - 1, 1) for part in (top[0], top[1]))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _kthvalue(self, (self.shape[dim] + 1) // 2 if self.dim() else 1, dim, keepdim)


def _median_of_all(self: Tensor) -> Tensor:
    flat = self.reshape(-1)
    return _median(flat, 0)[0]


# Cycles of `topk` on the CPU for each element, and of a stage of `top_values` on the NPU, by the cost model:
# a sort of few elements, or of many in a row, is not worth its stages.
_CPU_ELEMENT, _STAGE, _STAGE_ELEMENT = 300, 3400, 12


def pays(topk: Node) -> bool:
    """Whether the sorting network that `top_values` makes of a call takes less time than the CPU."""
    arguments, tensor = bind_args(topk), tensor_of(topk.all_input_nodes[0])
    if tensor is None or not tensor.dim() or arguments["k"] < 1:
        return False
    width, size = (arguments["k"] - 1).bit_length(), tensor.shape[arguments["dim"]]
    blocks = -(-size >> width)
    stages = width * (width + 1) // 2 + (blocks - 1).bit_length() * (width + 1)
    padded = tensor.numel() // max(size, 1) * (blocks << width)
    return stages * (_STAGE + _STAGE_ELEMENT * padded) < _CPU_ELEMENT * tensor.numel()


def top_values(
    self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, None]:
    """The k largest or smallest by a bitonic sorting network: blocks are sorted, then merged two by two.

    Nothing but maxima and minima, of as many pairs at once as there are: every value is one of the input's.
    """
    first, second = (torch.maximum, torch.minimum) if largest else (torch.minimum, torch.maximum)
    size, width = self.shape[dim], 1 << (k - 1).bit_length()
    rows = self.transpose(dim, -1)
    lead = rows.shape[:-1]
    x = rows.reshape(-1, size)
    blocks = -(-size // width)
    if blocks * width > size:  # by what is in the input and comes last
        last = x.amin(1, True) if largest else x.amax(1, True)
        x = torch.cat([x, last.expand(-1, blocks * width - size)], 1)

    def halves(x: Tensor, length: int) -> tuple[Tensor, Tensor]:
        pairs = x.reshape(x.shape[0], -1, 2, length)
        return pairs.select(2, 0), pairs.select(2, 1)

    def joined(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a.unsqueeze(2), b.unsqueeze(2)], 2).reshape(a.shape[0], -1)

    def merge(x: Tensor, length: int) -> Tensor:
        """Sort blocks of twice the length that rise and then fall, or the other way round."""
        while length:
            a, b = halves(x, length)
            x = joined(first(a, b), second(a, b))
            length //= 2
        return x

    length = 1
    while length < width:
        a, b = halves(x, length)
        b = b.flip(-1) if length > 1 else b
        x = merge(joined(first(a, b), second(a, b)), length // 2)
        length *= 2
    while blocks > 1:
        whole = blocks // 2 * 2 * width
        rest = x.narrow(1, whole, x.shape[1] - whole) if whole < x.shape[1] else None
        a, b = halves(x.narrow(1, 0, whole) if rest is not None else x, width)
        b = b.flip(-1) if width > 1 else b
        x = merge(first(a, b).reshape(a.shape[0], -1), width // 2)
        blocks = -(-blocks // 2)
        x = torch.cat([x, rest], 1) if rest is not None else x
    return x.narrow(1, 0, k).reshape(*lead, k).transpose(dim, -1), None


def _running(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """Each element with those before it, two, four, eight at a time."""

    def decomposition(self: Tensor, dim: int) -> Tensor:
        size, step = self.shape[dim] if self.dim() else 1, 1
        while step < size:
            later = function(self.narrow(dim, step, size - step), self.narrow(dim, 0, size - step))
            self = torch.cat([self.narrow(dim, 0, step), later], dim)
            step *= 2
        return self

    return decomposition


def _values(decomposition: Callable[..., Tensor]) -> Callable[..., Any]:
    """For an operator that also gives indices, which nobody reads."""
    return lambda **arguments: (decomposition(**arguments), None)


def _cumprod(self: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return _running(torch.mul)(self, dim)


def _logsumexp(self: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    dims = dim or list(range(self.dim()))
    largest = self.amax(dims, True)
    total = (self - largest).exp().sum(dims, True).log() + largest
    return total if keepdim else total.squeeze(dims)


# These also give indices, as integers.
WITH_INDICES: dict[str, Callable[..., Any]] = {
    "aten.max.dim": _extremum("amax", "argmax"),
    "aten.min.dim": _extremum("amin", "argmin"),
    "aten.sort.default": _sort,
    "aten.kthvalue.default": _kthvalue,
    "aten.median.dim": _median,
    "aten.argsort.default": lambda **arguments: _sort(**arguments)[1],
}
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    **WITH_INDICES,
    "aten.msort.default": lambda self: _sort(self, 0)[0],
    "aten.median.default": _median_of_all,
    "aten.aminmax.default": _aminmax,
    "aten.cummax.default": _values(_running(torch.maximum)),
    "aten.cummin.default": _values(_running(torch.minimum)),
    "aten.cumprod.default": _cumprod,
    "aten.logsumexp.default": _logsumexp,
}
