"""Normalizations that compute their statistics at run time, in terms of mean, product and rsqrt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


def _normalize(x: Tensor, dims: list[int], eps: float) -> Tensor:
    centered = x - x.mean(dims, True)
    variance = (centered * centered).mean(dims, True)
    return centered * torch.rsqrt(variance + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _layer_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float,
    cudnn_enable: bool,
) -> Tensor:  # fmt: skip
    dims = list(range(-len(normalized_shape), 0))
    return _affine(_normalize(input, dims, eps), weight, bias)


def _rms_norm(input: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return _affine(input * torch.rsqrt((input * input).mean(dims, True) + eps), weight, None)


def _per_channel(value: Tensor | None, rank: int) -> Tensor | None:
    return None if value is None else value.reshape(1, -1, *[1] * (rank - 2))


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    # Weights and bias too are taken by group: nothing but reshapes stands outside of the arithmetic.
    grouped = input.reshape(input.shape[0], num_groups, input.shape[1] // num_groups, -1)
    per_group = [None if t is None else t.reshape(1, num_groups, -1, 1) for t in (weight, bias)]
    return _affine(_normalize(grouped, [2, 3], eps), *per_group).reshape(input.shape)


def _instance_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    if use_input_stats:
        x = _normalize(input, list(range(2, input.dim())), eps)
        return _affine(x, _per_channel(weight, x.dim()), _per_channel(bias, x.dim()))
    return torch.batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps, False)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.group_norm.default": _group_norm,
    "aten.instance_norm.default": _instance_norm,
}
