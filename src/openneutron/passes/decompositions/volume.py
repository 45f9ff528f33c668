"""3-D convolutions as 2-D ones, which both the NPU and ExecuTorch's own kernels have.

An output slice is a 2-D convolution of the input slices under the window, put side by side as channels: one
sum over all of them, so that nothing is rounded in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, tensor_of
from openneutron.ops.common import per_axis
from openneutron.passes.graph import add_constant, constant, insert

aten = torch.ops.aten


def rewrite_volume_convolutions(model: GraphModule) -> bool:
    """Turn a 3-D convolution with constant weights, transposed or not, into a 2-D one per output slice."""
    changed = False
    for node in list(model.graph.nodes):
        if node.target not in _VOLUME:
            continue
        args = bind_args(node)
        source, weight, result = tensor_of(args["input"]), constant(model, args["weight"]), tensor_of(node)
        if source is None or weight is None or result is None or source.dim() != 5:
            continue
        transposed = node.target is aten.conv_transpose3d.input
        stride, dilation = per_axis(args["stride"], 3), per_axis(args["dilation"], 3)
        padding = _padding(args["padding"], weight, dilation)
        find = _transposed_taps if transposed else _taps
        taps = find(source.shape[2], result.shape[2], weight.shape[2], stride[0], padding[0], dilation[0])
        slices = _Slices(args["input"], node)
        weights = _Weights(model, args["weight"], weight, node, args["groups"], transposed)
        parts = []
        for pairs in taps:
            # A slice of the result that sees nothing but padding: any slice, times zero.
            places = tuple(z for z, _ in pairs) or (0,)
            joined = slices.joined(places) if args["groups"] == 1 else slices.grouped(places)
            own = (joined, weights.of(tuple(k for _, k in pairs)), args["bias"])
            more: tuple[Any, ...] = (stride[1:], padding[1:], dilation[1:], args["groups"])
            target = aten.conv2d.default
            if transposed:
                more = (*more[:2], per_axis(args["output_padding"], 3)[1:], args["groups"], dilation[1:])
                target = aten.conv_transpose2d.input
            elif isinstance(args["padding"], str):
                more, target = (more[0], args["padding"], *more[2:]), aten.conv2d.padding
            plane = insert(node, target, (*own, *more), like=node)
            parts.append(insert(node, aten.unsqueeze.default, (plane, 2), like=node))
        whole = parts[0] if len(parts) == 1 else insert(node, aten.cat.default, (parts, 2), like=node)
        node.replace_all_uses_with(whole)
        model.graph.erase_node(node)
        changed = True
    return changed


_VOLUME = (aten.conv3d.default, aten.conv3d.padding, aten.conv_transpose3d.input)


def _padding(value: Any, weight: torch.Tensor, dilation: list[int]) -> list[int]:
    """The padding in front, in numbers."""
    if value == "valid":
        return [0, 0, 0]
    if value == "same":
        return [d * (k - 1) // 2 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    return per_axis(value, 3)


def _taps(depth: int, slices: int, taps: int, stride: int, padding: int, dilation: int) -> list[Any]:
    """For every output slice the input slices in its window, with the taps that meet them."""
    places = [[(z * stride - padding + k * dilation, k) for k in range(taps)] for z in range(slices)]
    return [[(at, k) for at, k in pairs if 0 <= at < depth] for pairs in places]


def _transposed_taps(
    depth: int, slices: int, taps: int, stride: int, padding: int, dilation: int
) -> list[Any]:
    """The same of a transposed one: tap k of slice z meets the input where z + padding - k divides."""
    result = []
    for z in range(slices):
        reach = [(z + padding - k * dilation, k) for k in reversed(range(taps))]
        result.append(
            [(at // stride, k) for at, k in reach if at % stride == 0 and 0 <= at // stride < depth]
        )
    return result


class _Slices:
    """The input's slices, each made once."""

    def __init__(self, source: Node, before: Node):
        self._source, self._before = source, before
        self._made: dict[int, Node] = {}

    def at(self, z: int) -> Node:
        if z not in self._made:
            cut = insert(self._before, aten.slice.Tensor, (self._source, 2, z, z + 1), like=self._before)
            self._made[z] = insert(self._before, aten.squeeze.dim, (cut, 2), like=self._before)
        return self._made[z]

    def joined(self, places: tuple[int, ...]) -> Node:
        """Slices side by side as channels, one after the other."""
        inputs = [self.at(z) for z in places]
        if len(inputs) == 1:
            return inputs[0]
        return insert(self._before, aten.cat.default, (inputs, 1), like=self._before)

    def grouped(self, places: tuple[int, ...]) -> Node:
        """Slices, evenly apart, as channels: all of one channel together, so that groups stay together."""
        step = places[1] - places[0] if len(places) > 1 else 1
        bounds = (places[0], places[-1] + 1, step)
        cut = insert(self._before, aten.slice.Tensor, (self._source, 2, *bounds), like=self._before)
        value = tensor_of(cut)
        assert value is not None
        shape = [value.shape[0], value.shape[1] * value.shape[2], *value.shape[3:]]
        return insert(self._before, aten.reshape.default, (cut, shape), like=self._before)


class _Weights:
    """The weights of some taps as those of a 2-D convolution, made once for each set of taps."""

    def __init__(
        self, model: GraphModule, node: Node, value: torch.Tensor, before: Node, groups: int, transposed: bool
    ):
        self._model, self._node, self._value, self._before = model, node, value, before
        self._grouped, self._channels = groups > 1, 0 if transposed else 1  # where the input channels are
        self._made: dict[tuple[int, ...], Node] = {}

    def of(self, taps: tuple[int, ...]) -> Node:
        if taps not in self._made:
            value = self._value.detach()
            planes = [value[:, :, k] for k in taps] or [torch.zeros_like(value[:, :, 0])]
            if self._grouped:
                flat = torch.stack(planes, self._channels + 1).flatten(self._channels, self._channels + 1)
            else:
                flat = torch.cat(planes, self._channels)
            if isinstance(self._value, torch.nn.Parameter):
                flat = torch.nn.Parameter(flat, self._value.requires_grad)
            name = f"{self._node.target}_planes"
            self._made[taps] = add_constant(self._model, self._before, flat, name)
        return self._made[taps]
