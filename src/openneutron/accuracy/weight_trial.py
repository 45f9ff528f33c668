"""Trying per-channel weights on one layer at a time: it is computed from exact inputs with such weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from openneutron import ops
from openneutron.fx import bind_args, op_name
from openneutron.ops.spec import Weighted
from openneutron.passes.patterns import fusible_activation_after
from openneutron.quantize.annotation.number_formats import FLOOR, WEIGHT_RANGE
from openneutron.quantize.prepared_model.model import behind


class WeightTrial:
    """Layers with weights of a prepared model, by the name of the node that carries the result."""

    def __init__(self, prepared: GraphModule):
        self._module = prepared
        self._layers: dict[str, tuple[list[Node], Node, int]] = {}  # chain, weight, channel axis
        self._tried: dict[str, torch.Tensor] = {}
        self._inputs = [n for n in prepared.graph.nodes if n.op == "placeholder"]
        for node in prepared.graph.nodes:
            spec = ops.find(op_name(node)) if node.op == "call_function" else None
            if spec is None or not isinstance(spec.quantize, Weighted) or spec.quantize.channel_axis is None:
                continue
            weight = behind(bind_args(node)[spec.quantize.weight])
            if not isinstance(weight, Node) or weight.op != "get_attr":
                continue
            chain = [node]
            if spec.fuses_activation and (activation := _activation(node)) is not None:
                chain.append(activation)
            self._layers[chain[-1].name] = chain, weight, spec.quantize.channel_axis

    def spread(self, layer: str) -> float | None:
        """How much the ranges of a layer's output channels differ; None for a layer without weights."""
        if layer not in self._layers:
            return None
        _, weight, axis = self._layers[layer]
        ranges = _channel_ranges(self._value(weight), axis)
        ranges = ranges[ranges > 0]
        return float(ranges.max() / ranges.min()) if ranges.numel() else 1.0

    def run(self, layer: str, exact: dict[str, np.ndarray], inputs: tuple[Any, ...]) -> np.ndarray | None:
        """The layer's result with a weight scale per channel; None for a layer without weights."""
        if layer not in self._layers:
            return None
        chain, weight, axis = self._layers[layer]
        if layer not in self._tried:
            self._tried[layer] = _per_channel(self._value(weight), axis)
        result: Any = None
        for node in chain:

            def value(item: Any, previous: Any = result, first: bool = node is chain[0]) -> Any:
                if not isinstance(item, Node):
                    return item
                source = behind(item)
                if source is weight:
                    return self._tried[layer]
                if not first and source is chain[0]:
                    return previous
                if source.op == "get_attr":
                    return self._value(source)
                if source in self._inputs:
                    return inputs[self._inputs.index(source)]
                return torch.from_numpy(exact[source.name])

            args, kwargs = pytree.tree_map_only(Node, value, (node.args, node.kwargs))
            result = node.target(*args, **kwargs)  # type: ignore[operator]  # a call_function
        return result.detach().numpy()

    def _value(self, node: Node) -> torch.Tensor:
        found: Any = self._module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        return found.detach()


def _activation(node: Node) -> Node | None:
    found = fusible_activation_after(node)
    return found if isinstance(found, Node) else None


def _channel_ranges(weight: torch.Tensor, axis: int) -> torch.Tensor:
    return (
        weight.abs().amax([d for d in range(weight.ndim) if d != axis]) if weight.ndim > 1 else weight.abs()
    )


def _per_channel(weight: torch.Tensor, axis: int) -> torch.Tensor:
    """Weights rounded with a scale for every output channel."""
    shape = [-1 if d == axis else 1 for d in range(weight.ndim)]
    low, high = WEIGHT_RANGE
    scale = (_channel_ranges(weight, axis) / ((high - low) / 2)).clamp(min=FLOOR).reshape(shape)
    return (weight / scale).round().clamp(low, high) * scale


def gain(before: float | None, after: float | None) -> float:
    """Decibels gained; nothing where one is unknown or both are exact."""
    if before is None or after is None or math.isinf(before):
        return 0.0
    return after - before
