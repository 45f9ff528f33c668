"""Attention, in terms of matrix products and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

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
    # Scaling the query costs the least: it is smaller than the scores.
    query = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    heads, groups = query.shape[-3:-1], key.shape[-3]
    # Queries that share a key are rows of one product: no key is repeated.
    joined = enable_gqa and query.shape[-3] != groups
    if joined:
        query = query.unflatten(-3, (groups, -1)).flatten(-3, -2)
    scores = torch.matmul(query, key.transpose(-2, -1))
    if joined:
        scores = scores.unflatten(-2, (-1, heads[1])).flatten(-4, -3)
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
    if not joined:
        return torch.matmul(weights, value)
    mixed = torch.matmul(weights.unflatten(-3, (groups, -1)).flatten(-3, -2), value)
    return mixed.unflatten(-2, (-1, heads[1])).flatten(-4, -3)


def _additive(allowed: Tensor) -> Tensor:
    return (1.0 - allowed.to(torch.float32)) * MASKED


_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")
_ROWS = ("aten.index.Tensor", "aten.permute.default")
_VIEWS = ("aten.view.default", "aten.reshape.default", "aten.unsqueeze.default", "aten.squeeze.dim")
PASSING = (*_VIEWS, *_ROWS, "aten.expand.default", "aten.clamp.default")


def bound_masks(model: GraphModule) -> bool:
    """Let the constants that forbid places of a softmax be finite, and no larger than need be."""
    changed = False
    masked = {scores: None for node in model.graph.nodes if (scores := masked_scores(node)) is not None}
    for scores in masked:
        for mask in scores.all_input_nodes:
            path = [mask]  # to a constant: a row of a table is one, too
            while op_name(path[-1]) in PASSING:
                path.append(path[-1].all_input_nodes[0])
            chooses = path[-1] is not scores and op_name(path[-1]) == "aten.where.self"
            inner = path if chooses else path[:-1]
            if any(user not in masked and user not in path for n in inner for user in n.users):
                continue  # somebody else reads it
            reader = path[-1] if chooses else scores if len(path) == 1 else path[-2]
            for source in path[-1].all_input_nodes[1:] if chooses else path[-1:]:
                value = constant(model, source)
                if value is None or not value.is_floating_point() or not bool((value < MASKED).any()):
                    continue
                name = f"{source.target}_bounded"
                bounded = add_constant(model, reader, value.detach().clamp(min=MASKED), name)
                reader.replace_input_with(source, bounded)
                changed = True
    return changed


def masked_scores(node: Node) -> Node | None:
    """What masks the scores that a softmax reads."""
    if op_name(node) not in _SOFTMAX:
        return None
    scores = node.all_input_nodes[0]
    while op_name(scores) in _VIEWS and only_user(scores) is not None:
        scores = scores.all_input_nodes[0]
    if only_user(scores) is None or op_name(scores) not in ("aten.add.Tensor", "aten.where.self"):
        return None
    return scores


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {"aten.scaled_dot_product_attention.default": _attention}
