"""Attention, in terms of matrix products and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from openneutron.fx import op_name
from openneutron.passes.graph import add_constant, constant
from openneutron.passes.patterns import only_user

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


_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")
_VIEWS = ("aten.view.default", "aten.reshape.default", "aten.unsqueeze.default", "aten.squeeze.dim")


def bound_masks(model: GraphModule) -> bool:
    """Let the constants that forbid places of a softmax be finite, and no larger than need be."""
    changed = False
    for node in list(model.graph.nodes):
        if op_name(node) not in _SOFTMAX:
            continue
        scores = node.all_input_nodes[0]
        while op_name(scores) in _VIEWS and only_user(scores) is not None:
            scores = scores.all_input_nodes[0]
        if only_user(scores) is None or op_name(scores) not in ("aten.add.Tensor", "aten.where.self"):
            continue
        for mask in scores.all_input_nodes:
            value = constant(model, mask)
            if value is None or not value.is_floating_point() or not bool((value < MASKED).any()):
                continue
            bounded = add_constant(model, scores, value.detach().clamp(min=MASKED), f"{mask.target}_bounded")
            scores.replace_input_with(mask, bounded)
            changed = True
    return changed


def _repeat_heads(x: Tensor, count: int) -> Tensor:
    heads = [x.select(-3, i).unsqueeze(-3) for i in range(x.shape[-3])]
    return torch.cat([head for head in heads for _ in range(count)], -3)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {"aten.scaled_dot_product_attention.default": _attention}
