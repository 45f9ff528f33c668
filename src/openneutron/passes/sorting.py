"""Operators that order elements, in terms of extrema, running steps and `topk`.

ExecuTorch has a kernel for `topk`, none for a sort, a median or a k-th value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
    found = torch.topk(self, self.shape[dim], dim, largest=descending)
    return found[0], found[1]


def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if self.dim() == 0:
        return self, torch.zeros_like(self, dtype=torch.int64)
    found = torch.topk(self, k, dim, largest=False)
    values, places = (part.narrow(dim, k - 1, 1) for part in (found[0], found[1]))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _kthvalue(self, (self.shape[dim] + 1) // 2 if self.dim() else 1, dim, keepdim)


def _median_of_all(self: Tensor) -> Tensor:
    flat = self.reshape(-1)
    return _median(flat, 0)[0]


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
    found = (self - largest).exp().sum(dims, True).log() + largest
    return found if keepdim else found.squeeze(dims)


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
