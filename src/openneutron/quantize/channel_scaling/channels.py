"""Which channels of a model can be scaled together without changing what it computes.

Every channel of every tensor is given the number of a variable: its scale. Operators that commute with a
positive factor per channel (ReLU, pools, padding with zeros, ...) hand the numbers on, a sum joins those of
its sides, a concatenation lines them up, a layer with weights ends one set and begins another. Whatever else
reads a tensor pins its scales to one, and so do the model's inputs and outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.quantize.prepared_model.model import Layer, behind, layers_of, value_of

# Operators that commute with a positive factor per channel, whatever dimension the channels are in.
_POINTWISE = {
    "aten.relu.default", "aten.relu_.default", "aten.leaky_relu.default", "aten.leaky_relu_.default",
    "aten.dropout.default", "aten.clone.default", "aten.contiguous.default", "aten.detach.default",
    "aten.abs.default", "aten.prelu.default",
}  # fmt: skip
# The same where they work on the dimensions behind the channels.
SPATIAL = {
    "aten.max_pool2d.default", "aten.max_pool1d.default", "aten.avg_pool2d.default",
    "aten.avg_pool1d.default",
    "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool1d.default", "aten.upsample_nearest2d.vec",
    "aten.upsample_bilinear2d.vec", "aten.upsample_nearest2d.default", "aten.upsample_bilinear2d.default",
}  # fmt: skip
_SUMS = {"aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor", "aten.sub_.Tensor", "aten.maximum.default"}
_CLAMPS = {
    "aten.hardtanh.default", "aten.hardtanh_.default", "aten.relu6.default", "aten.relu6_.default",
    "aten.clamp.default", "aten.clamp_.default",
}  # fmt: skip
_RESHAPES = {
    "aten.view.default",
    "aten.reshape.default",
    "aten.flatten.using_ints",
    "aten._unsafe_view.default",
}


@dataclass(frozen=True, eq=False)
class Channels:
    """The variables of a model: for each layer those of its output and of its input channels."""

    count: int
    pinned: np.ndarray  # of each variable, whether its scale must be one
    outputs: dict[Layer, np.ndarray]
    inputs: dict[Layer, np.ndarray]
    clamps: dict[Node, np.ndarray]  # of the clamps that end at a positive number, the channels they see


def clamp_bounds(node: Node) -> tuple[float, float] | None:
    """The bounds of a clamp from zero up; None for anything else."""
    if op_name(node) not in _CLAMPS:
        return None
    args = bind_args(node)
    low = args.get("min_val", args.get("min", 0.0))
    high = args.get("max_val", args.get("max", 6.0))
    if not isinstance(high, int | float) or not isinstance(low, int | float) or low != 0 or high <= 0:
        return None
    return float(low), float(high)


class _Joiner:
    """Union-find over numbers handed out in blocks."""

    def __init__(self) -> None:
        self.parent = np.zeros(0, np.int64)

    def fresh(self, count: int) -> np.ndarray:
        start = len(self.parent)
        ids = np.arange(start, start + count)
        self.parent = np.concatenate([self.parent, ids])
        return ids

    def find(self, ids: np.ndarray) -> np.ndarray:
        roots = self.parent[ids]
        while not np.array_equal(roots, self.parent[roots]):
            roots = self.parent[roots]
        return roots

    def join(self, a: np.ndarray, b: np.ndarray) -> None:
        for left, right in zip(a.tolist(), b.tolist(), strict=True):
            x, y = (int(self.find(np.array([i]))[0]) for i in (left, right))
            self.parent[max(x, y)] = min(x, y)


def channels_of(prepared: GraphModule) -> Channels:
    """Go through a prepared model and find what can be scaled."""
    return _Finder(prepared).find()


class _Finder:
    def __init__(self, prepared: GraphModule):
        self.prepared = prepared
        self.layers = {layer.node: layer for layer in layers_of(prepared)}
        self.joiner = _Joiner()
        self.pins: list[np.ndarray] = []
        self.ids: dict[Node, np.ndarray] = {}  # of the tensors whose channels can be followed
        self.outputs: dict[Layer, np.ndarray] = {}
        self.inputs: dict[Layer, np.ndarray] = {}
        self.clamps: dict[Node, np.ndarray] = {}

    def find(self) -> Channels:
        for node in self.prepared.graph.nodes:
            if node.op == "call_module":
                if node.args[0] in self.ids:
                    self.ids[node] = self.ids[node.args[0]]
            elif node.op in ("call_function", "output"):
                self._visit(node)
        pinned = np.zeros(len(self.joiner.parent), bool)
        for ids in self.pins:
            pinned[self.joiner.find(ids)] = True
        roots = self.joiner.find
        return Channels(
            len(pinned),
            pinned,
            {layer: roots(ids) for layer, ids in self.outputs.items()},
            {layer: roots(ids) for layer, ids in self.inputs.items()},
            {node: roots(ids) for node, ids in self.clamps.items()},
        )

    def _visit(self, node: Node) -> None:
        if node in self.layers:
            self._layer(self.layers[node])
            return
        found = self._passed(node) if node.op == "call_function" else None
        if found is not None:
            self.ids[node] = found
            return
        for source in node.all_input_nodes:  # an operator that is not known to commute
            if source in self.ids:
                self.pins.append(self.ids[source])

    def _layer(self, layer: Layer) -> None:
        args = bind_args(layer.node)
        source, weight = args["input"], value_of(self.prepared, layer.weight)
        outputs = weight.shape[layer.axis]
        if source in self.ids and self._reads_channels(layer, source, weight):
            self.inputs[layer] = self.ids[source]
        elif source in self.ids:
            self.pins.append(self.ids[source])
        value = tensor_of(layer.node)
        if value is None:
            return
        linear = op_name(layer.node) == "aten.linear.default"
        # Channels are dimension 1 for everything behind; of a linear layer on more than rows, the last.
        if linear and value.dim() != 2:
            return
        self.outputs[layer] = self.ids[layer.node] = self.joiner.fresh(outputs)

    def _reads_channels(self, layer: Layer, source: Node, weight: Any) -> bool:
        ids = self.ids[source]
        if layer.transposed:
            return layer.groups == 1 and len(ids) == weight.shape[0]
        if layer.groups == 1:
            return len(ids) == weight.shape[1]
        # Groups: each reads its part; one channel each is a depthwise convolution.
        return len(ids) == weight.shape[1] * layer.groups

    def _passed(self, node: Node) -> np.ndarray | None:
        name, value = op_name(node), tensor_of(node)
        if not name or value is None:  # several results, or one picked of them
            return None
        args = bind_args(node)
        first = args.get("self", args.get("input"))
        ids = self.ids.get(first) if isinstance(first, Node) else None
        if name in _SUMS:
            return self._sum(node, args)
        if name == "aten.cat.default":
            return self._cat(args, value)
        if ids is None or (value.shape[1:2] != (len(ids),) and name not in _RESHAPES):
            return None
        if name in _POINTWISE:
            return ids
        if name in _CLAMPS:
            if clamp_bounds(node) is None:
                return None
            self.clamps[node] = ids
            return ids
        if name in SPATIAL:
            return ids
        if name == "aten.mean.dim" and value.dim() >= 2:
            rank = len(tensor_of(behind(first)).shape)  # type: ignore[union-attr]
            return ids if all(d % rank >= 2 for d in args["dim"] or (0,)) else None
        if name in ("aten.pad.default", "aten.constant_pad_nd.default"):
            sides = args["pad"]
            filled = args.get("value") or 0
            plain = args.get("mode", "constant") == "constant" and filled == 0
            return ids if plain and len(sides) <= 2 * (value.dim() - 2) else None
        if name in _RESHAPES and isinstance(first, Node):
            return self._reshaped(first, ids, value)
        if name in ("aten.squeeze.dims", "aten.squeeze.dim", "aten.unsqueeze.default"):
            return ids if value.shape[1] == len(ids) else None
        return None

    def _sum(self, node: Node, args: dict[str, Any]) -> np.ndarray | None:
        left, right = args["self"], args["other"]
        if not (isinstance(left, Node) and isinstance(right, Node)):
            return None
        shapes = [tensor_of(behind(n)) for n in (left, right)]
        if left not in self.ids or right not in self.ids or shapes[0] is None or shapes[1] is None:
            return None
        if shapes[0].shape != shapes[1].shape:
            return None
        self.joiner.join(self.ids[left], self.ids[right])
        return self.ids[left]

    def _cat(self, args: dict[str, Any], value: Any) -> np.ndarray | None:
        parts = args["tensors"]
        if args["dim"] % value.dim() != 1 or not all(part in self.ids for part in parts):
            return None
        return np.concatenate([self.ids[part] for part in parts])

    def _reshaped(self, source: Node, ids: np.ndarray, value: Any) -> np.ndarray | None:
        """Rows made of (N, C, H, W): every channel becomes H * W neighbours."""
        before = tensor_of(behind(source))
        if before is None or value.dim() != 2 or before.shape[:1] != value.shape[:1]:
            return None
        return np.repeat(ids, math.prod(before.shape[2:]))
