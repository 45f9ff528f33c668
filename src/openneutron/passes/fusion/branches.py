"""Sums and products in the form that costs the fewest roundings, in float, before anything is quantized.

Parallel layers that are added up are one layer, x + x * g is one product, and what adds zero or multiplies by
one is nothing. Every rule keeps the float function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, is_float, op_name, same_shape, tensor_of
from openneutron.passes.fusion.affine import ADD, DIV, MUL, SUB, Layer, affine_of, layer_of, renew
from openneutron.passes.graph import add_constant, change_call, constant, insert
from openneutron.passes.patterns import only_user, reads_alone

aten = torch.ops.aten


def remove_neutral_constants(model: GraphModule) -> bool:
    """Drop sums with zeros and products with ones, whatever the shape of the constant."""
    changed = False
    for node in list(model.graph.nodes):
        name = op_name(node)
        if name not in (ADD, SUB, MUL, DIV) or not is_float(node):
            continue
        args = bind_args(node)
        pairs = [(args["self"], args["other"])]
        pairs += [(args["other"], args["self"])] if name in (ADD, MUL) else []
        neutral = 0 if name in (ADD, SUB) else 1
        for source, other in pairs:
            value = constant(model, other)
            if value is not None and _has_shape_of(source, node) and bool((value == neutral).all()):
                node.replace_all_uses_with(source)
                changed = True
                break
    return changed


def _has_shape_of(source: Any, node: Node) -> bool:
    before, result = tensor_of(source) if isinstance(source, Node) else None, tensor_of(node)
    if before is None or result is None:
        return False
    return before.dtype == result.dtype and same_shape(before, result)


def _is_trained(value: torch.Tensor) -> bool:
    return isinstance(value, torch.nn.Parameter) and value.requires_grad


def factor_out(model: GraphModule) -> bool:
    """Write x + x * g as x * (g + 1), which is rounded once where g is the result of a function."""
    changed = False
    for node in list(model.graph.nodes):
        if op_name(node) != ADD or bind_args(node)["alpha"] != 1:
            continue
        a, b = node.args[:2]
        for source, product in ((a, b), (b, a)):
            if not isinstance(product, Node) or op_name(product) != MUL or not reads_alone(node, product):
                continue
            factors = list(product.args[:2])
            if source not in factors or factors[0] is factors[1] or not _has_shape_of(source, node):
                continue
            gate = factors[1] if factors[0] is source else factors[0]
            value = constant(model, gate)
            if value is not None:
                more = torch.nn.Parameter(value.detach() + 1) if _is_trained(value) else value + 1
                factor = add_constant(model, node, more, "factor")
            else:
                one = add_constant(model, node, torch.ones(1), "one")
                factor = insert(node, aten.add.Tensor, (gate, one), like=product)
            change_call(node, aten.mul.Tensor, (source, factor))
            changed = True
            break
    return changed


def merge_branches(model: GraphModule) -> bool:
    """Make one layer of two that read one tensor and are added up (RepVGG, MobileOne, LCNetV3).

    A tensor that is scaled by channel is a layer too, beside a real one that reads the same tensor.
    """
    changed = False
    for node in list(model.graph.nodes):
        if op_name(node) != ADD or bind_args(node)["alpha"] != 1 or node.args[0] is node.args[1]:
            continue
        pair = _branches(model, node)
        kernel = None if pair is None else _within(*pair)
        if pair is None or kernel is None:
            continue
        biases = [layer.bias for layer in pair if layer.bias is not None]
        renew(model, pair[0], pair[0].weight + kernel, sum(biases[1:], biases[0]) if biases else None)
        node.replace_all_uses_with(pair[0].node)
        model.graph.erase_node(node)  # so that the layer has one reader again, for the next branch
        changed = True
    return changed


def _branches(model: GraphModule, node: Node) -> tuple[Layer, Layer] | None:
    """The two layers whose sum a node is, the larger kernel first."""
    operands = [
        n for n in node.args[:2] if isinstance(n, Node) and only_user(n) is node and _has_shape_of(n, node)
    ]
    if len(operands) != 2:
        return None
    layers = [layer_of(model, operand) for operand in operands]
    first, second = layers
    if first is not None and second is not None:
        return (first, second) if first.weight[0].numel() >= second.weight[0].numel() else (second, first)
    for layer, other in ((first, operands[1]), (second, operands[0])):
        step = None if layer is None else affine_of(model, other, layer.axis)
        if (
            layer is not None
            and step is not None
            and step.scale is not None
            and _has_shape_of(step.source, node)
        ):
            return layer, _scaling(layer, step.source, step.scale, step.shift)
    return None


def _scaling(beside: Layer, source: Node, scale: Tensor, shift: Tensor | None) -> Layer:
    """A layer of kernel 1 that scales channels, with the groups of another."""
    channels, width, rank = beside.channels, beside.weight.shape[1], beside.weight.ndim - 2
    weight = torch.zeros(channels, width, dtype=torch.float64)
    places = torch.arange(channels)
    weight[places, places % width] = scale.expand(channels)
    bias = None if shift is None else shift.expand(channels)
    one, zero = (1,) * rank, (0,) * rank
    return Layer(
        beside.node, source, weight.reshape(channels, width, *one), bias, beside.groups, False, one, zero, one
    )


def _within(first: Layer, second: Layer) -> Tensor | None:
    """The weights of the second layer in the kernel of the first; None if they have no place there."""
    same = first.source is second.source and first.stride == second.stride and first.groups == second.groups
    if not same or first.weight.shape[:2] != second.weight.shape[:2] or first.transposed or second.transposed:
        return None
    if first.padding is None or second.padding is None:
        return None
    kernel, places = torch.zeros_like(first.weight), [slice(None), slice(None)]
    for axis, (p, q) in enumerate(zip(first.padding, second.padding, strict=True)):
        size, own = first.weight.shape[2 + axis], second.weight.shape[2 + axis]
        dilation = first.dilation[axis]
        if own > 1 and second.dilation[axis] != dilation:
            return None
        start, rest = divmod(p - q, dilation)
        if rest or start < 0 or start + own > size:
            return None
        places.append(slice(start, start + own))
    kernel[tuple(places)] = second.weight
    return kernel
