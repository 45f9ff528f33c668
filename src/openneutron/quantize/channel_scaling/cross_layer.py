"""Cross-layer equalization: channels are scaled so that their weights, and their values, are of like size.

A factor taken from what a channel is computed with and given to what reads it leaves the model's function as
it is, wherever all in between commutes with it (see `channels`). With one scale per tensor a channel a
hundred times smaller than the largest has one or two bits; afterwards it has all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.quantize.channel_scaling.channels import Channels, channels_of, clamp_bounds
from openneutron.quantize.prepared_model.model import Layer, set_value, value_of

_ROUNDS = 12
_SETTLED = 1e-2
_WIDEST = 1e4  # no channel is scaled by more
_SMALL = 1e-8
_MARGIN = 1.5


@dataclass(frozen=True)
class Equalized:
    """What equalization did."""

    layers: int
    channels: int
    largest: float  # the largest factor
    # By the name of a layer's weight: what its output channels are divided by, its input channels multiplied.
    factors: dict[str, tuple[np.ndarray | None, np.ndarray | None]] = field(default_factory=dict, repr=False)


def equalize(
    prepared: GraphModule,
    reached: dict[Node, Tensor] | None = None,
) -> Equalized:
    """Equalize the channels of a prepared model, in place.

    `reached` has the largest values of each channel on samples: of every layer's end, of what clamps read. A
    channel that a clamp cuts keeps its scale; one that stays below may have another as long as it does.
    """
    channels = channels_of(prepared)
    layers = list(dict.fromkeys([*channels.outputs, *channels.inputs]))
    weights = {layer: value_of(prepared, layer.weight).double() for layer in layers}
    sizes = {layer: _sizes(weight).float() for layer, weight in weights.items()}
    low, high = _limits(channels, reached)
    free = ~channels.pinned & (high > low)
    log = np.zeros(channels.count)
    for _ in range(_ROUNDS):
        made, read = np.full(channels.count, _SMALL), np.full(channels.count, _SMALL)
        factor = np.exp(log)
        for layer, ids in channels.outputs.items():
            ranges = _output_ranges(layer, _scaled(layer, sizes[layer], channels, factor))
            size = ranges / max(ranges.max(), _SMALL)
            if reached is not None and layer.end in reached:
                values = reached[layer.end].double().numpy() / factor[ids]
                values = values / max(values.max(), _SMALL)
                size = np.maximum(size, values)
            np.maximum.at(made, ids, size)
        for layer, ids in channels.inputs.items():
            ranges = _input_ranges(layer, _scaled(layer, sizes[layer], channels, factor))
            np.maximum.at(read, ids, ranges / max(ranges.max(), _SMALL))
        change = np.where(free, 0.5 * np.log(made / read), 0.0)
        change = np.where((made <= _SMALL) | (read <= _SMALL), 0.0, change)
        new = np.clip(log + change, np.log(low), np.log(high))
        settled = np.abs(new - log).max(initial=0.0) < _SETTLED
        log = new
        if settled:
            break
    factor = np.where(free, np.exp(log), 1.0)
    _apply(prepared, channels, weights, factor)
    used = np.unique(np.concatenate([*channels.outputs.values(), np.zeros(0, np.int64)]).astype(np.int64))
    changed = used[np.abs(np.log(factor[used])) > 0.01] if used.size else used
    touched = [la for la, ids in channels.outputs.items() if np.isin(ids, changed).any()]
    most = float(np.exp(np.abs(np.log(factor)).max(initial=0.0)))
    factors = {
        str(layer.weight.target): (
            factor[channels.outputs[layer]] if layer in channels.outputs else None,
            factor[channels.inputs[layer]] if layer in channels.inputs else None,
        )
        for layer in layers
    }
    return Equalized(len(touched), int(changed.size), most, factors)


def trade_clamps(prepared: GraphModule, reached: dict[Node, Tensor]) -> int:
    """Make a ReLU of every clamp that cuts something, in place; how many.

    This changes the float function. `reached` is by the nodes of the model or of one it was copied from.
    """
    count = 0
    bounds = {node: clamp_bounds(node) for node in reached}
    cut = {n.name for n, b in bounds.items() if b is not None and float(reached[n].max()) * _MARGIN > b[1]}
    for node in prepared.graph.nodes:
        if node.name in cut and clamp_bounds(node) is not None:
            node.target = torch.ops.aten.relu.default
            node.args, node.kwargs = node.args[:1], {}
            count += 1
    prepared.recompile()
    return count


def _limits(channels: Channels, reached: dict[Node, Tensor] | None) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest factor of every variable."""
    low = np.full(channels.count, 1 / _WIDEST)
    high = np.full(channels.count, _WIDEST)
    for node, ids in channels.clamps.items():
        bounds = clamp_bounds(node)
        assert bounds is not None
        if reached is None or node not in reached:
            low[ids] = high[ids] = 1.0
            continue
        top = reached[node].double().numpy()
        top = np.maximum(top, _SMALL) * _MARGIN  # other data reach further
        cut = top > bounds[1]
        # The values of a channel are divided by its factor: they must stay below the clamp.
        np.maximum.at(low, ids, np.where(cut, 1.0, top / bounds[1]))
        np.minimum.at(high, ids, np.where(cut, 1.0, _WIDEST))
    return low, high


def _scaled(layer: Layer, weight: Tensor, channels: Channels, factor: np.ndarray) -> Tensor:
    if layer in channels.outputs:
        weight = weight / along(layer, weight, factor[channels.outputs[layer]], output=True)
    if layer in channels.inputs:
        weight = weight * along(layer, weight, factor[channels.inputs[layer]], output=False)
    return weight


def along(layer: Layer, weight: Tensor, values: np.ndarray, output: bool) -> Tensor:
    """One factor per channel in the shape that multiplies a weight."""
    found = torch.from_numpy(np.ascontiguousarray(values)).to(weight.dtype)
    if output or layer.transposed:
        axis = layer.axis if output else 0
        return found.reshape([-1 if d == axis else 1 for d in range(weight.ndim)])
    if layer.groups == 1:
        return found.reshape([-1 if d == 1 else 1 for d in range(weight.ndim)])
    # (outputs, inputs of a group, ...): the outputs of a group read the inputs of that group.
    per_group = found.reshape(layer.groups, 1, weight.shape[1])
    spread = per_group.expand(-1, weight.shape[0] // layer.groups, -1)
    return spread.reshape(weight.shape[0], weight.shape[1], *[1] * (weight.ndim - 2))


def _sizes(weight: Tensor) -> Tensor:
    """The largest weight from every channel to every other, whatever the kernel."""
    return weight.abs().flatten(2).amax(2) if weight.ndim > 2 else weight.abs()


def _output_ranges(layer: Layer, size: Tensor) -> np.ndarray:
    return size.amax(1 - layer.axis).numpy()


def _input_ranges(layer: Layer, size: Tensor) -> np.ndarray:
    if layer.transposed:
        return size.amax(1).numpy()
    if layer.groups == 1:
        return size.amax(0).numpy()
    return size.reshape(layer.groups, -1, size.shape[1]).amax(1).flatten().numpy()


def _apply(
    prepared: GraphModule, channels: Channels, weights: dict[Layer, Tensor], factor: np.ndarray
) -> None:
    for layer, weight in weights.items():
        set_value(prepared, layer.weight, _scaled(layer, weight, channels, factor))
        if layer in channels.outputs and layer.bias is not None:
            bias = value_of(prepared, layer.bias).double()
            scale = torch.from_numpy(factor[channels.outputs[layer]])
            set_value(prepared, layer.bias, bias / scale.reshape(bias.shape))
