"""High biases are absorbed: what a channel never falls below is added in the bias of the layers that read it.

A channel whose values lie between 40 and 42 spends its bits on the way from zero to 40. Moved down by 40 it
has them all, and the readers' biases get 40 times their weights: the function is the same, as long as a ReLU
in between cuts nothing that it did not cut before.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.quantize.prepared_model.model import (
    Layer,
    behind,
    ensure_bias,
    layers_of,
    readers,
    set_value,
    value_of,
)

_MARGIN = 0.25  # of a channel's extent: other data reach lower
_WORTH = 0.1  # of a channel's largest value: less is not worth the change
_RELUS = ("aten.relu.default", "aten.relu_.default")
_READING = ("aten.linear.default", "aten.conv1d.default", "aten.conv2d.default")


def absorb(prepared: GraphModule, lows: dict[Node, Tensor], tops: dict[Node, Tensor]) -> int:
    """Absorb high biases, in place; how many channels were moved.

    `lows` and `tops` are of every layer's end: the least value of each channel on samples, the largest size.
    """
    layers = {layer.node: layer for layer in layers_of(prepared)}
    count = 0
    for layer in layers.values():
        after = [layers.get(node) for node in readers(layer.end)]
        if layer.end not in lows or not (layer.end is layer.node or op_name(layer.end) in _RELUS):
            continue
        low, top = lows[layer.end], tops[layer.end]
        shift = low - _MARGIN * (top - low)
        shift = torch.where((low > 0) & (shift > _WORTH * top), shift, 0.0).double()
        if not bool(shift.any()) or not after or not all(_reads(reader, len(shift)) for reader in after):
            continue
        try:
            biases = [ensure_bias(prepared, each) for each in (layer, *after) if each is not None]
        except LookupError:  # nothing says what units a bias would have
            continue
        _add(prepared, biases[0], -shift)
        for reader, bias in zip(after, biases[1:], strict=True):
            assert reader is not None
            _add(prepared, bias, _through(value_of(prepared, reader.weight).double(), reader, shift))
        count += int((shift > 0).sum())
    return count


def _reads(layer: Layer | None, channels: int) -> bool:
    """Whether a layer multiplies nothing but these channels, on no border that is filled with zeros."""
    if layer is None or op_name(layer.node) not in _READING:
        return False
    args = bind_args(layer.node)
    padding = args.get("padding", 0)
    padded = any(padding) if isinstance(padding, list | tuple) else bool(padding)
    source = tensor_of(behind(args["input"]))
    axis = -1 if op_name(layer.node) == "aten.linear.default" else 1
    plain = source is not None and source.shape[axis] == channels and (axis == 1 or source.ndim == 2)
    return plain and not padded


def _through(weight: Tensor, layer: Layer, shift: Tensor) -> Tensor:
    """What a layer makes of a constant in every channel."""
    size = weight.flatten(2).sum(2) if weight.ndim > 2 else weight
    each = size.reshape(layer.groups, -1, size.shape[1]) @ shift.reshape(layer.groups, -1, 1)
    return each.flatten()


def _add(prepared: GraphModule, bias: Node, values: Tensor) -> None:
    old = value_of(prepared, bias)
    set_value(prepared, bias, old.double() + values.reshape(old.shape))
