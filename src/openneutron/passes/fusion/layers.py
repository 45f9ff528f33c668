"""Layers split, joined and reordered so that each runs as one delegated operator."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron import ops
from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.passes.graph import (
    add_constant,
    change_call,
    constant,
    constants_only,
    copy_provenance,
    infer,
    insert,
)
from openneutron.passes.patterns import is_fusible_activation, only_user

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
        change_call(node, aten.linear.default, (node.args[0], weight))
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
# Layers in a form of their own

_SPATIAL: dict[Any, int] = {
    aten.conv1d.default: 1,
    aten.conv1d.padding: 1,
    aten.conv2d.default: 2,
    aten.conv2d.padding: 2,
    aten.conv3d.default: 3,
    aten.conv3d.padding: 3,
    aten.conv_transpose1d.default: 1,
    aten.conv_transpose2d.input: 2,
    aten.conv_transpose3d.input: 3,
}


def add_batch_dimension(model: GraphModule) -> bool:
    """Give a convolution of one image without a batch dimension a batch of one."""
    changed = False
    for node in list(model.graph.nodes):
        dims = _SPATIAL.get(node.target)
        source = tensor_of(node.args[0]) if dims is not None else None
        if dims is None or source is None or source.dim() != dims + 1:
            continue
        batch = insert(node, aten.unsqueeze.default, (node.args[0], 0), like=node)
        node.update_arg(0, batch)
        infer(node)
        last = node
        # An activation is computed in the convolution if nothing stands between them.
        if (activation := only_user(node)) is not None and is_fusible_activation(activation):
            last = activation
            infer(last)
        with model.graph.inserting_after(last):
            squeezed = model.graph.call_function(aten.squeeze.dim, (last, 0))
        copy_provenance(node, squeezed)
        last.replace_all_uses_with(squeezed, delete_user_cb=lambda user, own=squeezed: user is not own)
        infer(squeezed)
        changed = True
    return changed


def separate_other_biases(model: GraphModule) -> bool:
    """Add what is no constant per channel after the layer: an activation, or one that is broadcast."""
    constants = constants_only(model.graph.nodes)
    changed = False
    for node in list(model.graph.nodes):
        if node.target in (aten.addmm.default, aten.addmm_.default):
            changed |= _separate_addmm(model, node, constants)
            continue
        dims = 0 if node.target == aten.linear.default else _SPATIAL.get(node.target)
        bias = bind_args(node).get("bias") if dims is not None else None
        if dims is None or not isinstance(bias, Node) or _is_per_channel(node, bias, constants, -1 - dims):
            continue
        if dims:
            bias = insert(node, aten.reshape.default, (bias, [-1] + [1] * dims), like=node)
        node.args, node.kwargs = tuple({**bind_args(node), "bias": None}.values()), {}
        _add_after(node, bias)
        changed = True
    return changed


def _separate_addmm(model: GraphModule, node: Node, constants: set[Node]) -> bool:
    args = bind_args(node)
    bias, plain = args["self"], args["alpha"] == 1 and args["beta"] == 1
    if plain and args["mat2"] in constants and _is_per_channel(node, bias, constants, -1):
        return False
    change_call(node, aten.mm.default, (args["mat1"], args["mat2"]))
    result = node
    if args["alpha"] != 1:
        with model.graph.inserting_after(node):
            result = model.graph.call_function(aten.mul.Tensor, (node, args["alpha"]))
        copy_provenance(node, result)
        infer(result)
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)
    if args["beta"] == 0:
        return True
    if args["beta"] != 1:
        bias = insert(node, aten.mul.Tensor, (bias, args["beta"]), like=node)
    _add_after(result, bias)
    return True


def _is_per_channel(node: Node, bias: Any, constants: set[Node], axis: int) -> bool:
    value, result = tensor_of(bias), tensor_of(node)
    if value is None or result is None or bias not in constants:
        return False
    return value.dim() > 0 and value.shape[-1] == value.numel() == result.shape[axis]


def _add_after(node: Node, bias: Any) -> None:
    with node.graph.inserting_after(node):
        total = node.graph.call_function(aten.add.Tensor, (node, bias))
    copy_provenance(node, total)
    infer(total)
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)


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
