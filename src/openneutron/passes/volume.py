"""3-D convolutions as 2-D ones, which both the NPU and ExecuTorch's own kernels have.

An output slice is a 2-D convolution of the input slices under the window, put side by side as channels: one
sum over all of them, so that nothing is rounded in between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, tensor_of
from openneutron.passes.graph import add_constant, constant, insert

aten = torch.ops.aten


def rewrite_volume_convolutions(model: GraphModule) -> bool:
    """Turn a 3-D convolution with one group and constant weights into a 2-D one per output slice."""
    changed = False
    for node in list(model.graph.nodes):
        if node.target != aten.conv3d.default:
            continue
        args = bind_args(node)
        source, weight = tensor_of(args["input"]), constant(model, args["weight"])
        if source is None or weight is None or source.dim() != 5 or args["groups"] != 1:
            continue
        stride, padding, dilation = (_three(args[k]) for k in ("stride", "padding", "dilation"))
        result = tensor_of(node)
        assert result is not None
        taps = _taps(source.shape[2], result.shape[2], weight.shape[2], stride[0], padding[0], dilation[0])
        if not all(taps):
            continue  # a slice of nothing but padding
        slices = _Slices(args["input"], node)
        weights = _Weights(model, args["weight"], weight, node)
        parts = []
        for pairs in taps:
            inputs = [slices.at(z) for z, _ in pairs]
            joined = inputs[0] if len(inputs) == 1 else insert(node, aten.cat.default, (inputs, 1), like=node)
            own = (joined, weights.of(tuple(k for _, k in pairs)), args["bias"])
            plane = insert(
                node, aten.conv2d.default, (*own, stride[1:], padding[1:], dilation[1:], 1), like=node
            )
            parts.append(insert(node, aten.unsqueeze.default, (plane, 2), like=node))
        whole = parts[0] if len(parts) == 1 else insert(node, aten.cat.default, (parts, 2), like=node)
        node.replace_all_uses_with(whole)
        model.graph.erase_node(node)
        changed = True
    return changed


def _three(value: Any) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * 3 if len(values) == 1 else values


def _taps(depth: int, slices: int, taps: int, stride: int, padding: int, dilation: int) -> list[Any]:
    """For every output slice the input slices in its window, with the taps that meet them."""
    places = [[(z * stride - padding + k * dilation, k) for k in range(taps)] for z in range(slices)]
    return [[(at, k) for at, k in pairs if 0 <= at < depth] for pairs in places]


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


class _Weights:
    """The weights of some taps as those of a 2-D convolution, made once for each set of taps."""

    def __init__(self, model: GraphModule, node: Node, value: torch.Tensor, before: Node):
        self._model, self._node, self._value, self._before = model, node, value, before
        self._made: dict[tuple[int, ...], Node] = {}

    def of(self, taps: tuple[int, ...]) -> Node:
        if taps not in self._made:
            flat: torch.Tensor = torch.cat([self._value.detach()[:, :, k] for k in taps], 1)
            if isinstance(self._value, torch.nn.Parameter):
                flat = torch.nn.Parameter(flat, self._value.requires_grad)
            name = f"{self._node.target}_planes"
            self._made[taps] = add_constant(self._model, self._before, flat, name)
        return self._made[taps]
