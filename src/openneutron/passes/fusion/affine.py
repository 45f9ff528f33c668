"""Affine steps folded into the layers around them, in float, before anything is quantized.

`a * x + b` with numbers, or one number per channel, costs a rounding and a range of its own once it is int8.
A convolution or linear layer beside it computes it for nothing. Every rule keeps the float function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, is_float, op_name, same_shape, tensor_of
from openneutron.ops.common import per_axis
from openneutron.passes.graph import add_constant, change_call, constant
from openneutron.passes.patterns import only_user, reads_alone

aten = torch.ops.aten
_CONVOLUTIONS = tuple(f"aten.conv{n}d.{kind}" for n in (1, 2) for kind in ("default", "padding"))
_TRANSPOSED = ("aten.conv_transpose1d.default", "aten.conv_transpose2d.input")
LINEAR = "aten.linear.default"
ADD, SUB, MUL, DIV = (f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div"))
_NORM = "aten.batch_norm.default"


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution or linear layer with constant weights, in double precision."""

    node: Node
    source: Node
    weight: Tensor
    bias: Tensor | None
    groups: int = 1
    transposed: bool = False
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | None = ()  # None: not the same on both sides
    dilation: tuple[int, ...] = ()

    @property
    def axis(self) -> int:
        """Of its channels, in what it reads and what it gives."""
        return 1 if self.weight.ndim > 2 else -1

    @property
    def inputs(self) -> int:
        """How many channels it reads."""
        return self.weight.shape[0] if self.transposed else self.weight.shape[1] * self.groups

    @property
    def channels(self) -> int:
        """How many channels it gives."""
        return self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0]

    @property
    def has_border(self) -> bool:
        """Whether a constant added to all it reads is not another constant in all it gives."""
        return self.transposed or self.padding is None or any(self.padding)

    def scaled_outputs(self, scale: Tensor) -> Tensor:
        """The weights that give every output channel times a number."""
        spread, ones = scale.expand(self.channels), [1] * (self.weight.ndim - 2)
        if self.transposed:
            parts = self.weight.unflatten(0, (self.groups, -1))
            return (parts * spread.reshape(self.groups, 1, -1, *ones)).flatten(0, 1)
        return self.weight * spread.reshape(-1, 1, *ones)

    def scaled_inputs(self, scale: Tensor) -> Tensor:
        """The weights for input channels that come without a factor of theirs."""
        spread, ones = scale.expand(self.inputs), [1] * (self.weight.ndim - 2)
        if self.transposed:
            return self.weight * spread.reshape(-1, 1, *ones)
        parts = self.weight.unflatten(0, (self.groups, -1))
        return (parts * spread.reshape(self.groups, 1, -1, *ones)).flatten(0, 1)


def layer_of(model: GraphModule, node: Any) -> Layer | None:
    """A node as a layer with constant weights and bias; None if it is none."""
    name = op_name(node) if isinstance(node, Node) else ""
    if name not in (*_CONVOLUTIONS, *_TRANSPOSED, LINEAR):
        return None
    args = bind_args(node)
    weight, bias = constant(model, args["weight"]), constant(model, args["bias"])
    if weight is None or not weight.is_floating_point() or (bias is None) != (args["bias"] is None):
        return None
    wide = weight.detach().double()
    wide_bias = None if bias is None else bias.detach().double()
    if name == LINEAR:
        return Layer(node, args["input"], wide, wide_bias)
    rank = weight.ndim - 2
    stride, dilation = (tuple(per_axis(args[key], rank)) for key in ("stride", "dilation"))
    padding = _padding(args["padding"], tuple(weight.shape[2:]), dilation)
    return Layer(
        node, args["input"], wide, wide_bias, args["groups"], name in _TRANSPOSED, stride, padding, dilation
    )


def _padding(given: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...] | None:
    if given == "valid":
        return (0,) * len(kernel)
    if given != "same":
        return tuple(per_axis(given, len(kernel)))
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return None if any(t % 2 for t in total) else tuple(t // 2 for t in total)


def renew(model: GraphModule, layer: Layer, weight: Tensor, bias: Tensor | None, source: Any = None) -> None:
    """Give a layer other constants; the old ones may be the user's, and are left as they are."""
    args = bind_args(layer.node)
    name = str(args["weight"].target)
    args["weight"] = add_constant(model, layer.node, weight.float(), name)
    if bias is not None:
        args["bias"] = add_constant(model, layer.node, bias.float(), f"{name}_bias")
    if source is not None:
        args["input"] = source
    layer.node.args, layer.node.kwargs = tuple(args.values()), {}


# ----------------------------------------------------------------------------------------------------
# Affine steps


@dataclass(frozen=True, eq=False)
class Affine:
    """`node` is `scale * source + shift`, with one number or one per channel; None leaves it as it is."""

    node: Node
    source: Node
    scale: Tensor | None
    shift: Tensor | None

    def fits(self, channels: int) -> bool:
        """Whether there is one number, or one for each of so many channels."""
        return all(part is None or part.numel() in (1, channels) for part in (self.scale, self.shift))

    @property
    def is_uniform(self) -> bool:
        """Whether all channels have the same numbers."""
        return self.fits(1)


def affine_of(model: GraphModule, node: Any, axis: int) -> Affine | None:
    """What a call does to one tensor, if that is affine with numbers per channel of this axis."""
    name = op_name(node) if isinstance(node, Node) else ""
    if name == _NORM and axis == 1:
        return _norm(model, node)
    if name not in (ADD, SUB, MUL, DIV) or not is_float(node):
        return None
    args = bind_args(node)
    flipped = constant(model, args["self"]) is not None
    source, other = (args["other"], args["self"]) if flipped else (args["self"], args["other"])
    value, result = constant(model, other), tensor_of(node)
    before = tensor_of(source) if isinstance(source, Node) else None
    if value is None or result is None or before is None or args.get("alpha", 1) != 1:
        return None
    numbers = _per_channel(value, result, axis)
    if numbers is None or not same_shape(before, result) or before.dtype != torch.float32:
        return None
    if name == ADD:
        return Affine(node, source, None, numbers)
    if name == SUB:
        minus = torch.tensor([-1.0], dtype=torch.float64)
        return Affine(node, source, minus, numbers) if flipped else Affine(node, source, None, -numbers)
    if name == MUL:
        return Affine(node, source, numbers, None)
    return None if flipped or not bool(numbers.all()) else Affine(node, source, 1 / numbers, None)


def _per_channel(value: Tensor, result: Tensor, axis: int) -> Tensor | None:
    """A constant operand as one number, or one per channel; None if it is neither."""
    if not value.is_floating_point() or value.ndim > result.ndim or not bool(value.isfinite().all()):
        return None
    shape = [1] * (result.ndim - value.ndim) + list(value.shape)
    if any(size != 1 for place, size in enumerate(shape) if result.ndim == 0 or place != axis % result.ndim):
        return None
    return value.detach().double().reshape(-1)


def _norm(model: GraphModule, node: Node) -> Affine | None:
    args = bind_args(node)
    parts = [constant(model, args[name]) for name in ("running_mean", "running_var", "weight", "bias")]
    mean, variance, weight, bias = (None if p is None else p.detach().double() for p in parts)
    if args["training"] or mean is None or variance is None:
        return None
    scale = (variance + args["eps"]).rsqrt()
    scale = scale if weight is None else scale * weight
    return Affine(node, args["input"], scale, -mean * scale if bias is None else bias - mean * scale)


def fold_affine(model: GraphModule) -> bool:
    """Fold affine steps into the layers before them, else into all of those behind them."""
    changed = False
    for node in list(model.graph.nodes):
        changed |= bool(node.users) and any(_fold_back(model, node, axis) for axis in (1, -1))
    for node in reversed(list(model.graph.nodes)):
        changed |= bool(node.users) and any(_fold_on(model, node, axis) for axis in (1, -1))
    return changed


def _fold_back(model: GraphModule, node: Node, axis: int) -> bool:
    """Into the layer before, or all those whose sum is before."""
    step = affine_of(model, node, axis)
    layers = [] if step is None else _summed(model, step.source, node)
    if step is None or not layers or not all(_matches(step, layer.channels, layer, axis) for layer in layers):
        return False
    for layer in layers:
        weight = layer.weight if step.scale is None else layer.scaled_outputs(step.scale)
        bias = layer.bias if layer.bias is None or step.scale is None else layer.bias * step.scale
        if step.shift is not None and layer is layers[0]:
            bias = step.shift.expand(layer.channels) if bias is None else bias + step.shift
        renew(model, layer, weight, bias)
    node.replace_all_uses_with(step.source)
    model.graph.erase_node(node)
    return True


def _matches(step: Affine, channels: int, layer: Layer, axis: int) -> bool:
    """Whether a layer's channels are those that a step has numbers for."""
    result = tensor_of(step.node)
    assert result is not None
    return step.is_uniform or (step.fits(channels) and axis % result.ndim == layer.axis % result.ndim)


def _summed(model: GraphModule, node: Node, reader: Node) -> list[Layer]:
    """The layers whose sum a node is, if nobody else reads any of them; none if others are in it."""
    if only_user(node) is not reader:
        return []
    if (layer := layer_of(model, node)) is not None:
        return [layer]
    if op_name(node) != ADD or bind_args(node)["alpha"] != 1 or node.args[0] is node.args[1]:
        return []
    terms, result = [], tensor_of(node)
    for operand in node.args[:2]:
        value = tensor_of(operand) if isinstance(operand, Node) else None
        if not isinstance(operand, Node) or value is None or result is None or not same_shape(value, result):
            return []
        layers = _summed(model, operand, node)
        if not layers:
            return []
        terms += layers
    return terms


def _fold_on(model: GraphModule, node: Node, axis: int) -> bool:
    """Into every layer that reads it."""
    step = affine_of(model, node, axis)
    if step is None:
        return False
    layers = [layer_of(model, user) for user in node.users]
    shift = step.shift if step.shift is not None and bool(step.shift.any()) else None
    for layer in layers:
        if layer is None or layer.source is not node or not _matches(step, layer.inputs, layer, axis):
            return False
        if shift is not None and layer.has_border:
            return False
    for layer in layers:
        assert layer is not None
        weight = layer.weight if step.scale is None else layer.scaled_inputs(step.scale)
        bias = layer.bias
        if shift is not None:
            more = layer.scaled_inputs(shift).flatten(1).sum(1)
            bias = more if bias is None else bias + more
        renew(model, layer, weight, bias, step.source)
    return True


def join_affine(model: GraphModule) -> bool:
    """Write two affine steps with numbers per channel as one batch norm, which is rounded once."""
    changed = False
    for node in list(model.graph.nodes):
        last = affine_of(model, node, 1) if node.users else None
        first = None if last is None else affine_of(model, last.source, 1)
        result = tensor_of(node)
        if last is None or first is None or result is None or not reads_alone(node, first.node):
            continue
        if (first.is_uniform and last.is_uniform) or result.ndim < 2:
            continue  # one number for all is part of a function
        one, zero = (torch.tensor([v], dtype=torch.float64) for v in (1.0, 0.0))
        more = one if last.scale is None else last.scale
        scale = (one if first.scale is None else first.scale) * more
        shift = (zero if first.shift is None else first.shift) * more
        shift = shift if last.shift is None else shift + last.shift
        channels = result.shape[1]
        values = [scale.expand(channels), shift.expand(channels), torch.zeros(channels), torch.ones(channels)]
        norm = [add_constant(model, node, value.float(), f"{node.name}_norm") for value in values]
        change_call(node, aten.batch_norm.default, (first.source, *norm, False, 0.0, 0.0, False))
        changed = True
    return changed
