"""Attention, in terms of matrix products and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor

# What a forbidden position adds to its score. Minus infinity cannot be quantized, and a very large value
# would take all 256 steps for itself; e^-20 is far below 1/256, the smallest probability int8 can hold.
MASKED = -20.0


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        key, value = (_repeat_heads(t, query.shape[-3] // t.shape[-3]) for t in (key, value))
    # Scaling the query costs the least: it is smaller than the scores.
    query = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = torch.matmul(query, key.transpose(-2, -1))
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores + _additive(allowed)
    if attn_mask is not None:
        scores = scores + (
            _additive(attn_mask) if attn_mask.dtype == torch.bool else attn_mask.clamp(min=MASKED)
        )
    weights = torch.softmax(scores, -1)
    if dropout_p:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    return torch.matmul(weights, value)


def _additive(allowed: Tensor) -> Tensor:
    return (1.0 - allowed.to(torch.float32)) * MASKED


def _repeat_heads(x: Tensor, count: int) -> Tensor:
    heads = [x.select(-3, i).unsqueeze(-3) for i in range(x.shape[-3])]
    return torch.cat([head for head in heads for _ in range(count)], -3)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {"aten.scaled_dot_product_attention.default": _attention}
