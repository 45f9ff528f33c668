"""Batch norms in quantization-aware training, brought into the one form that torchao folds correctly.

After training, torchao folds `conv -> batch_norm` into the convolution. What it takes for granted is made
true here: the layer is a convolution with explicit padding and a bias, and epsilon is 1e-5. (Without training
there is nothing to do: torchao folds every convolution and linear layer before this.)
"""

from __future__ import annotations

import math

import torch
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.ops.common import per_axis
from openneutron.passes.graph import add_constant, constant, insert
from openneutron.passes.patterns import batch_norm_after, fusible_activation_after, only_user

aten = torch.ops.aten
TORCHAO_EPS = 1e-5
_EXPLICIT = {aten.conv1d.padding: aten.conv1d.default, aten.conv2d.padding: aten.conv2d.default}


def _norm_of(node: Node) -> Node | None:
    """The batch norm that is the only user of a node, whatever the node is."""
    user = only_user(node)
    is_norm = user is not None and user.target == aten.batch_norm.default and user.args[0] is node
    return user if is_norm else None


def rewrite_padding_before_norm(model: GraphModule) -> bool:
    """Give the padding of a convolution that says "same" or "valid" in numbers."""
    changed = False
    for node in list(model.graph.nodes):
        if node.target not in _EXPLICIT or _norm_of(node) is None:
            continue
        args = bind_args(node)
        weight = tensor_of(args["weight"])
        assert weight is not None
        kernel = weight.shape[2:]
        dilation = per_axis(args["dilation"], len(kernel))
        total = [0] * len(kernel) if args["padding"] == "valid" else [
            d * (k - 1) for d, k in zip(dilation, kernel, strict=True)
        ]  # fmt: skip
        source = args["input"]
        if any(t % 2 for t in total):  # one more on the right: no convolution says that, so pad first
            sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
            source, total = insert(node, aten.pad.default, (source, sides), like=node), [0] * len(kernel)
        node.target = _EXPLICIT[node.target]
        padding = [t // 2 for t in total]
        stride = per_axis(args["stride"], len(kernel))
        node.args = (source, args["weight"], args["bias"], stride, padding, dilation, args["groups"])
        node.kwargs = {}
        changed = True
    return changed


def rewrite_linear_before_norm(model: GraphModule) -> bool:
    """Turn `linear -> batch_norm` into a convolution with kernel 1 and the same batch norm.

    That is the same product, and torchao knows how to train and to fold it; for a linear layer it does not.
    """
    changed = False
    for node in list(model.graph.nodes):
        norm = _norm_of(node) if node.target == aten.linear.default else None
        if norm is None or (value := tensor_of(node)) is None or value.dim() != 2:
            continue
        args = bind_args(node)
        weight = constant(model, args["weight"])
        if weight is None:
            continue
        kernel = add_constant(
            model, node, _like(weight, weight.detach().unsqueeze(-1)), str(args["weight"].target)
        )
        source = insert(node, aten.unsqueeze.default, (args["input"], 2), like=node)
        conv = insert(node, aten.conv1d.default, (source, kernel, args["bias"]), like=node)
        last, result = norm, insert(norm, norm.target, (conv, *norm.args[1:]), like=norm)
        if (activation := fusible_activation_after(norm)) is not None:  # keep it where it can be fused
            last, result = (
                activation,
                insert(activation, activation.target, (result, *activation.args[1:]), activation),
            )
        last.replace_all_uses_with(insert(last, aten.squeeze.dim, (result, 2), like=last))
        changed = True
    return changed


def _like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """A tensor that is trained if the one it replaces was."""
    return torch.nn.Parameter(new.clone(), old.requires_grad) if isinstance(old, torch.nn.Parameter) else new


def add_bias_before_norm(model: GraphModule) -> bool:
    """Give a convolution without bias one of zeros: folding makes a bias, to be quantized like any other."""
    changed = False
    for node in list(model.graph.nodes):
        norm = batch_norm_after(node)
        if norm is None or bind_args(node)["bias"] is not None:
            continue
        value = tensor_of(node)
        assert value is not None
        bias = torch.nn.Parameter(torch.zeros(value.shape[1]), requires_grad=True)
        args = bind_args(node)
        args["bias"] = add_constant(model, node, bias, f"{args['weight'].target}_bias")
        node.args, node.kwargs = tuple(args.values()), {}
        changed = True
    return changed


def normalize_epsilon(model: GraphModule) -> bool:
    """Make epsilon 1e-5, the only value torchao's fusion and its switch to training have.

    Scaling what a batch norm reads by k scales its variance by k^2, so with k = sqrt(1e-5 / epsilon) the new
    epsilon is exactly as large, relative to the variance, as the original one was: no result changes, during
    training or after it. Where there is no layer to scale, the difference is added to the variance once.
    """
    changed = False
    for norm in list(model.graph.nodes):
        if norm.target != aten.batch_norm.default:
            continue
        stats = bind_args(norm)
        mean, variance = constant(model, stats["running_mean"]), constant(model, stats["running_var"])
        if stats["eps"] == TORCHAO_EPS or mean is None or variance is None:
            continue
        if (layer := _scalable_layer(model, norm)) is not None:
            k = math.sqrt(TORCHAO_EPS / stats["eps"])
            args = bind_args(layer)
            for name in ("weight", "bias"):
                if (value := constant(model, args[name])) is not None:
                    args[name] = _renewed(model, layer, args[name], value.detach() * k)
            layer.args, layer.kwargs = tuple(args.values()), {}
            stats["running_mean"] = _renewed(model, norm, stats["running_mean"], mean * k)
            stats["running_var"] = _renewed(model, norm, stats["running_var"], variance * k * k)
        else:
            shifted = variance + stats["eps"] - TORCHAO_EPS
            stats["running_var"] = _renewed(model, norm, stats["running_var"], shifted)
        stats["eps"] = TORCHAO_EPS
        norm.args, norm.kwargs = tuple(stats.values()), {}
        changed = True
    return changed


def _renewed(model: GraphModule, user: Node, old: Node, value: torch.Tensor) -> Node:
    """A constant with other values; the old one belongs to the user's float model too, and stays as it is."""
    current = constant(model, old)
    assert current is not None
    return add_constant(model, user, _like(current, value), str(old.target))


def _scalable_layer(model: GraphModule, norm: Node) -> Node | None:
    """The convolution a batch norm follows, if its weight and bias are constants."""
    source = norm.args[0]
    if not isinstance(source, Node) or batch_norm_after(source) is not norm:
        return None
    args = bind_args(source)
    parts = [part for part in (args["weight"], args["bias"]) if part is not None]
    return source if all(constant(model, part) is not None for part in parts) else None


def separate_normed_convolutions(model: GraphModule) -> bool:
    """Give a batch norm a convolution of its own if others read that convolution, or its weights, too.

    Its weights are parameters then, also where they were buffers or computed from parameters.
    Before post-training quantization torchao folds every batch norm into the convolution before it, without
    asking who else reads it. To be run before `prepare_pt2e`; it comes too late in a quantizer.
    """
    changed = False
    for norm in list(model.graph.nodes):
        conv = norm.args[0] if norm.target == aten.batch_norm.default else None
        if not isinstance(conv, Node) or not op_name(conv).startswith(("aten.conv", "aten.linear")):
            continue
        args = bind_args(conv)
        parts = {k: args[k] for k in ("weight", "bias") if isinstance(args[k], Node)}
        shared = any(_readers(model, part) > 1 for part in parts.values())
        # torchao puts a parameter in the place of a weight, which must be one for that.
        plain = all(isinstance(constant(model, part), torch.nn.Parameter) for part in parts.values())
        if (only_user(conv) is norm and not shared and plain) or any(
            constant(model, n) is None for n in parts.values()
        ):
            continue
        for name, part in parts.items():
            value = constant(model, part)
            assert value is not None
            renewed = torch.nn.Parameter(value.detach().clone(), requires_grad=False)
            args[name] = add_constant(model, norm, renewed, str(part.target))
        norm.update_arg(0, insert(norm, conv.target, tuple(args.values()), like=conv))
        changed = True
    return changed


def _readers(model: GraphModule, part: Node) -> int:
    """How many nodes read a constant, through whichever node."""
    return sum(len(n.users) for n in model.graph.nodes if n.op == "get_attr" and n.target == part.target)
