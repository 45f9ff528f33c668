"""How the user's tensors lie in memory: ExecuTorch takes two orders, users have any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's strides are those of a contiguous or a channels-last one, to the last of them.

    An expanded dimension has the stride 0, one of size 1 may have any: ExecuTorch would not know its order.
    """
    return any(tensor.stride() == _strides(tensor.shape, order) for order in _orders(tensor))


def plain(value: Any) -> Any:
    """A tensor that is contiguous or channels-last, as it was given or copied; other values as they are."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or is_plain(value):
        return value
    # Of two orders that are the same memory, as with one channel, the first will do.
    for order in _orders(value):
        wanted = _strides(value.shape, order)
        if all(a == b for a, b, size in zip(value.stride(), wanted, value.shape, strict=True) if size != 1):
            return in_order(value, order)
    return in_order(value, range(value.ndim))


def plain_inputs(values: Any) -> Any:
    """The same for all tensors of a tuple, a list or a dictionary of inputs."""
    return pytree.tree_map(plain, values)


def results(values: Any) -> list[Any]:
    """What a model returns, one after the other, as a program does; None is left out."""
    return [value for value in pytree.tree_leaves(values) if value is not None]


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """The tensor of an array in whatever order, backwards too, which PyTorch does not take."""
    return torch.from_numpy(array.copy() if any(s < 0 for s in array.strides) else array)


def in_order(tensor: torch.Tensor, dim_order: Sequence[int]) -> torch.Tensor:
    """The same tensor with its dimensions in that order in memory, from outermost inwards."""
    strides = _strides(tensor.shape, dim_order)
    if tensor.stride() == strides:
        return tensor
    return tensor.detach().new_empty_strided(tensor.shape, strides).copy_(tensor.detach())


def _orders(tensor: torch.Tensor) -> list[tuple[int, ...]]:
    contiguous = tuple(range(tensor.ndim))
    return [contiguous, (0, 2, 3, 1)] if tensor.ndim == 4 else [contiguous]


def _strides(shape: Sequence[int], dim_order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [1] * len(shape), 1
    for dim in reversed(dim_order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)
