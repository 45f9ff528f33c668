"""Layers split, joined and reordered so that each runs as one delegated operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron import ops
from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.passes.graph import add_constant, constant, constants_only, insert
from openneutron.passes.patterns import batch_norm_after, is_fusible_activation, only_user

aten = torch.ops.aten
_PRODUCTS = (aten.matmul.default, aten.mm.default)


def rewrite_constant_matmul(model: GraphModule) -> bool:
    """Turn a product with a constant matrix into a linear layer, whose weights are quantized as weights."""
    constants = constants_only(model.graph.nodes)
    changed = False
    for node in list(model.graph.nodes):
        if node.target not in _PRODUCTS or node in constants or node.args[1] not in constants:
            continue
        matrix = tensor_of(node.args[1])
        if matrix is None or matrix.dim() != 2:
            continue
        weight = insert(node, aten.t.default, (node.args[1],), like=node)
        node.target, node.args = aten.linear.default, (node.args[0], weight)
        changed = True
    return changed


def fuse_linear_add(model: GraphModule) -> bool:
    """Make a constant that is added to a linear layer its bias."""
    changed = False
    for node in list(model.graph.nodes):
        add = only_user(node) if node.target == aten.linear.default else None
        if add is None or add.target != aten.add.Tensor or bind_args(node)["bias"] is not None:
            continue
        args = bind_args(add)
        bias = args["other"] if args["self"] is node else args["self"]
        value, result = constant(model, bias), tensor_of(node)
        if value is None or result is None or args["alpha"] != 1:
            continue
        if (
            value.numel() != result.shape[-1]
            or value.shape[-1] != value.numel()
            or value.dim() > result.dim()
        ):
            continue
        flat = value if value.dim() == 1 else value.detach().reshape(-1)
        if isinstance(value, torch.nn.Parameter) and flat is not value:
            flat = torch.nn.Parameter(flat, value.requires_grad)
        # The bias may be read after the layer in the graph; a read of its own comes before it.
        node.args = (node.args[0], node.args[1], add_constant(model, node, flat, f"{bias.target}_bias"))
        add.replace_all_uses_with(node)
        changed = True
    return changed


# ----------------------------------------------------------------------------------------------------
# Group convolutions

_GROUPED = (aten.conv1d.default, aten.conv2d.default, aten.conv1d.padding, aten.conv2d.padding)


def split_group_convolutions(model: GraphModule) -> bool:
    """Turn a convolution with several groups, unless depthwise, into one per group."""
    changed = False
    for node in list(model.graph.nodes):
        if node.target not in _GROUPED:
            continue
        args = bind_args(node)
        source = tensor_of(args["input"])
        assert source is not None
        channels = source.shape[1] if source.dim() == len(args["stride"]) + 2 else source.shape[0]
        weight = constant(model, args["weight"])
        if args["groups"] in (1, channels) or weight is None or source.dim() != weight.dim():
            continue
        _split_convolution(model, node, args, channels // args["groups"])
        changed = True
    return changed


def _split_convolution(model: GraphModule, node: Node, args: dict[str, Any], width: int) -> None:
    groups = args["groups"]
    norm = batch_norm_after(node)  # there is one only in training; it is split with the convolution
    last = norm or node
    parts = []
    for i in range(groups):
        source = insert(last, aten.slice.Tensor, (args["input"], 1, i * width, (i + 1) * width), like=node)
        own = {k: _chunk_of(model, last, args[k], groups, i) for k in ("weight", "bias")}
        part = insert(
            last, node.target, tuple({**args, "input": source, **own, "groups": 1}.values()), like=node
        )
        if norm is not None:
            stats = bind_args(norm)
            names = ("weight", "bias", "running_mean", "running_var")
            chunks = {k: _chunk_of(model, last, stats[k], groups, i) for k in names}
            part = insert(last, norm.target, tuple({**stats, "input": part, **chunks}.values()), like=norm)
        parts.append(part)
    last.replace_all_uses_with(insert(last, aten.cat.default, (parts, 1), like=last))


def _chunk_of(model: GraphModule, before: Node, node: Node | None, groups: int, index: int) -> Node | None:
    if node is None:
        return None
    value = constant(model, node)
    assert value is not None, f"{node} is not a constant"
    chunk = value.detach().chunk(groups)[index].clone()
    if isinstance(value, torch.nn.Parameter):
        chunk = torch.nn.Parameter(chunk, value.requires_grad)
    return add_constant(model, before, chunk, f"{node.target}_group")


# ----------------------------------------------------------------------------------------------------
# Order


def move_activation_before_cat(model: GraphModule) -> bool:
    """Apply an activation before a concatenation if it can be computed inside what makes each input."""
    changed = False
    for cat in list(model.graph.nodes):
        activation = only_user(cat) if cat.target == aten.cat.default else None
        if activation is None or not is_fusible_activation(activation):
            continue
        inputs = cat.args[0]
        if len(set(inputs)) != len(inputs) or not all(_can_fuse(n, cat) for n in inputs):
            continue
        moved = [insert(cat, activation.target, (n, *activation.args[1:]), like=activation) for n in inputs]
        cat.update_arg(0, moved)
        activation.replace_all_uses_with(cat)
        changed = True
    return changed


def _can_fuse(node: Node, user: Node) -> bool:
    spec = ops.find(op_name(node))
    return spec is not None and spec.fuses_activation and only_user(node) is user
