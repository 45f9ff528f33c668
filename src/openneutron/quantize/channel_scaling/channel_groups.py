"""Channels of very different size in front of a function get tables of their own.

Between a layer and what reads it a factor per channel can be taken out, unless a function such as hard-swish
stands there: it does not commute with factors. But the channels can be sorted by size and cut into groups,
each with one factor: `f(x)` of a group is then `f(x' / d) * e`, a function again, for which the compiler
makes a table. All groups have values of like size, so that one scale for the tensor is right for every
channel. The factors are powers of two, and the layers around take the order and the factors: the float model
computes what it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from openneutron import ops
from openneutron.fx import bind_args, is_float, op_name, tensor_of, watch
from openneutron.quantize.annotation.fused_groups import TABLES
from openneutron.quantize.channel_scaling.channels import SPATIAL
from openneutron.quantize.prepared_model.effect import Function, function_after, is_number
from openneutron.quantize.prepared_model.model import (
    Layer,
    Sample,
    behind,
    free_name,
    in_float,
    layers_of,
    readers,
    set_value,
    value_of,
)

aten = torch.ops.aten
_LEVELS = 4  # groups: channels of full size, of half, of a quarter, and all that are smaller
_RELUS = ("aten.relu.default", "aten.relu_.default")
_POINTS = 256  # at which it is looked where a function is flat
_GAIN = 1.5  # by which groups must lower the power of the rounding, all channels alike


@dataclass(frozen=True, eq=False)
class _Place:
    """Between a layer and those that alone read what it gives: a function, or nothing but a ReLU."""

    function: Function | None
    layer: Layer
    after: tuple[Layer, ...]
    kept: Node  # the observer of the results

    @property
    def end(self) -> Node:
        """What the layers behind read."""
        return self.layer.end if self.function is None else self.function.end


def group_channels(prepared: GraphModule, known: dict[str, Seen], share: float) -> list[frozenset[Any]]:
    """Scale channels of different size, by groups where a function reads them, in place.

    Of every place where that is done the observers that see other values for it are returned.

    `known` is what `seen_in_places` has found in the model, or in one it was copied from. Where a layer mixes
    channels, its weights get smaller as much as what it reads gets larger, and rounding them costs more:
    there only this share of the ratio of sizes is made up for.
    """
    axes = _Axes(prepared)
    levels = {place: _levels_of(place, known, share) for place in _usable(prepared, axes)}
    chosen = [place for place in levels if max(map(_worth, levels[place])) >= _GAIN]
    together: dict[Node, list[_Place]] = {}
    for place in chosen:
        if place.function is None:
            _scale(prepared, place, *levels[place])
        else:
            together.setdefault(axes.root(place.layer.node), []).append(place)
    for root, some in together.items():
        keys = torch.cat([levels[place] for place in some])
        order = torch.tensor(sorted(range(keys.shape[1]), key=lambda c: (*keys[:, c].tolist(), c)))
        axes.permute(root, order)
        for place in some:
            _scale(prepared, place, *levels[place][:, order])
            _split(prepared, place, [(a, b) for a, b in levels[place][:, order].T.tolist()])
    if chosen:
        prepared.graph.lint()
        prepared.recompile()
    return [_watching(prepared, place) for place in chosen]


def seen_in_places(prepared: GraphModule, samples: Sequence[Sample]) -> dict[str, Seen]:
    """What the channels hold that may be scaled, by the names of nodes: of all samples.

    A channel that is large in a single sample must not be taken for a small one: scaled up, it would widen
    the range of the whole tensor.
    """
    places = _usable(prepared, _Axes(prepared))
    found = _seen(prepared, samples, [n for place in places for n in (place.layer.node, place.end)])
    return {node.name: seen for node, seen in found.items()}


def _usable(prepared: GraphModule, axes: _Axes) -> list[_Place]:
    places = [p for p in _places(prepared) if p.function is None or not axes.is_fixed(p.layer.node)]
    tables = prepared.meta.get(TABLES)
    return [place for place in places if tables or place.function is None]


@dataclass(frozen=True, eq=False)
class Seen:
    """Of every channel of a tensor: its least and its largest value."""

    low: Tensor
    high: Tensor

    @property
    def size(self) -> Tensor:
        return torch.maximum(self.high, -self.low)


def _levels_of(place: _Place, seen: dict[str, Seen], share: float) -> Tensor:
    """A row for what a layer gives, and one for what the layers behind read."""
    mixed = any(layer.groups == 1 for layer in place.after)
    results = _levels(seen[place.end.name].size ** (share if mixed else 1.0))
    if place.function is None:
        return torch.stack([results, results])
    return torch.stack(
        [_levels(_needed(place.function, seen[place.layer.node.name], seen[place.end.name])), results]
    )


def _levels(size: Tensor) -> Tensor:
    """Of every channel, how often its size can be doubled before it is the largest."""
    ratio = (size.max() / size.clamp(min=1e-30)).log2().floor().nan_to_num(0.0)
    return ratio.clamp(0, _LEVELS - 1).long()


def _worth(levels: Tensor) -> float:
    """By how much levels lower the power of the rounding, all channels alike."""
    return len(levels) / float((0.25 ** levels.double()).sum())


def _needed(function: Function, given: Seen, result: Seen) -> Tensor:
    """The size of the values that a function must tell apart: below -3 a hard-swish is flat."""
    shares = torch.linspace(0.0, 1.0, _POINTS, dtype=torch.float64)
    at = given.low + (given.high - given.low) * shares[:, None]
    values = function(at.float()).double()
    allowed = result.size / 256
    flat = [(values - end).abs() <= allowed for end in (values[:1], values[-1:])]
    first = flat[0].cummin(0).values.sum(0).clamp(1, _POINTS) - 1
    last = _POINTS - flat[1].flip(0).cummin(0).values.sum(0).clamp(1, _POINTS)
    ends = [at.gather(0, place[None])[0].abs() for place in (first, last)]
    return torch.maximum(*ends)


def _places(prepared: GraphModule) -> list[_Place]:
    """Where only a function, or nothing, stands between layers."""
    layers = {layer.node: layer for layer in layers_of(prepared)}
    found = []
    for layer in layers.values():
        value, following = tensor_of(layer.node), list(layer.end.users)
        if value is None or value.ndim not in (3, 4) or value.shape[0] != 1 or layer.transposed:
            continue
        if len(following) != 1 or following[0].op != "call_module":
            continue
        function = function_after(prepared, following[0]) if layer.end is layer.node else None
        if function is None and layer.end is not layer.node and op_name(layer.end) not in _RELUS:
            continue
        end = layer.end if function is None else function.end
        kept, after = list(end.users), [layers.get(reader) for reader in readers(end)]
        if len(kept) != 1 or kept[0].op != "call_module" or len(kept[0].users) != len(after) or not after:
            continue
        ready = [la for la in after if la is not None and bind_args(la.node)["input"] is kept[0]]
        if len(ready) == len(after) and all(_reads_each(prepared, la) for la in ready):
            found.append(_Place(function, layer, tuple(ready), kept[0]))
    return found


def _reads_each(prepared: GraphModule, layer: Layer) -> bool:
    """Whether a layer multiplies every channel by weights of its own."""
    return layer.groups == 1 or _is_depthwise(prepared, layer)


def _is_depthwise(prepared: GraphModule, layer: Layer) -> bool:
    weight = value_of(prepared, layer.weight)
    return not layer.transposed and weight.shape[0] == layer.groups and weight.shape[1] == 1


def _seen(prepared: GraphModule, samples: Sequence[Sample], nodes: Sequence[Node]) -> dict[Node, Seen]:
    """What the channels of tensors hold."""
    found: dict[Node, Seen] = {}

    def look(node: Node, value: Tensor) -> None:
        low, high = (v.double() for v in value.movedim(1, 0).flatten(1).aminmax(dim=1))
        if node in found:
            low, high = torch.minimum(low, found[node].low), torch.maximum(high, found[node].high)
        found[node] = Seen(low, high)

    with in_float(prepared):
        watch(prepared, samples, set(nodes), look)
    return found


def _watching(prepared: GraphModule, place: _Place) -> frozenset[Any]:
    nodes = [place.kept] if place.function is None else [place.kept, place.function.start]
    return frozenset(prepared.get_submodule(str(node.target)) for node in nodes)


def _scale(prepared: GraphModule, place: _Place, before: Tensor, after: Tensor) -> None:
    """Let the layers around a function compute with channels of like size."""
    factor = 2.0 ** before.double()
    weight = value_of(prepared, place.layer.weight).double()
    set_value(prepared, place.layer.weight, weight * factor.reshape(-1, *[1] * (weight.ndim - 1)))
    if place.layer.bias is not None:
        set_value(prepared, place.layer.bias, value_of(prepared, place.layer.bias).double() * factor)
    factor = 2.0 ** after.double()
    for layer in place.after:
        weight = value_of(prepared, layer.weight).double()
        axis = 0 if layer.transposed or layer.groups > 1 else 1
        shape = [-1 if d == axis else 1 for d in range(weight.ndim)]
        set_value(prepared, layer.weight, weight / factor.reshape(shape))


def _split(prepared: GraphModule, place: _Place, levels: list[tuple[int, int]]) -> None:
    """A copy of the function for each run of channels with one factor, and their results joined."""
    function = place.function
    assert function is not None
    graph, before, after = prepared.graph, function.start, place.kept
    parts, start = [], 0
    with graph.inserting_before(after):
        for stop in range(1, len(levels) + 1):
            if stop < len(levels) and levels[stop] == levels[start]:
                continue
            part = _call(graph, aten.slice.Tensor, (before, 1, start, stop), function.end)
            # What a function makes of it, element by element, is all alike: asking each operator takes long.
            value = torch.empty_like(part.meta["val"])
            part = _watched(prepared, before, part)
            known = {before: _times(prepared, part, 0.5 ** levels[start][0], value)}
            for node in function.nodes:
                given = map_arg((node.args, node.kwargs), lambda n, known=known: known.get(n, n))  # type: ignore[misc]
                known[node] = _call(graph, node.target, given[0], node, given[1], value)
            end = _times(prepared, known[function.end], 2.0 ** levels[start][1], value)
            parts.append(_watched(prepared, after, end))
            start = stop
        joined = _call(graph, aten.cat.default, (parts, 1), function.end)
    after.args = (joined,)
    for node in reversed(function.nodes):
        graph.erase_node(node)


def _times(prepared: GraphModule, node: Node, factor: float, value: Tensor | None = None) -> Node:
    if factor == 1.0:
        return node
    name = free_name(prepared, f"{node.name}_factor")
    prepared.register_buffer(name, torch.tensor(factor))
    number = prepared.graph.get_attr(name)
    number.meta["val"] = prepared.get_buffer(name)
    return _call(prepared.graph, aten.mul.Tensor, (node, number), node, value=value)


def _watched(prepared: GraphModule, like: Node, node: Node) -> Node:
    """A tensor that is observed together with another."""
    name = free_name(prepared, str(like.target))
    prepared.add_module(name, prepared.get_submodule(str(like.target)))
    return prepared.graph.call_module(name, (node,))


def _call(
    graph: torch.fx.Graph,
    target: Any,
    args: Any,
    like: Node,
    kwargs: Any = None,
    value: Tensor | None = None,
) -> Node:
    """A call that has what is known of another; its result is like `value`, or is computed to know it."""
    made = graph.call_function(target, args, kwargs or {})
    made.meta = {k: v for k, v in like.meta.items() if k != "val"}
    if value is not None:
        made.meta["val"] = value
        return made
    given, named = map_arg((made.args, made.kwargs), lambda n: behind(n).meta["val"])
    made.meta["val"] = target(*given, **named)
    return made


class _Axes:
    """Which tensors have the same channels in the same order, and which layers make and read them."""

    def __init__(self, prepared: GraphModule):
        self.prepared = prepared
        self._parent: dict[Node, Node] = {}
        self._fixed: list[Node] = []
        self._made: list[Layer] = []
        self._read: list[tuple[Node, Layer]] = []
        layers = {layer.node: layer for layer in layers_of(prepared)}
        for node in prepared.graph.nodes:
            if node.op == "call_module" and node.args[0] in self._parent:
                self._join(node, node.args[0])
            elif node in layers:
                self._layer(layers[node])
            elif node.op in ("call_function", "output"):
                self._pass(node)

    def root(self, node: Node) -> Node:
        """The first tensor with these channels."""
        while self._parent[node] is not node:
            node = self._parent[node]
        return node

    def is_fixed(self, node: Node) -> bool:
        """Whether the order of a tensor's channels cannot be changed."""
        return self.root(node) in {self.root(each) for each in self._fixed}

    def permute(self, root: Node, order: Tensor) -> None:
        """Let layers make and read channels in another order."""
        for layer in self._made:
            if self.root(layer.node) is root:
                self._index(layer.weight, layer.axis, order)
                if layer.bias is not None:
                    self._index(layer.bias, 0, order)
        for source, layer in self._read:
            if self.root(source) is root:
                self._index(layer.weight, 0 if layer.transposed else 1, order)

    def _index(self, constant: Node, axis: int, order: Tensor) -> None:
        value = value_of(self.prepared, constant)
        set_value(self.prepared, constant, value.index_select(axis, order))

    def _join(self, node: Node, *sources: Any) -> None:
        self._parent.setdefault(node, node)
        for source in sources:
            a, b = self.root(node), self.root(source)
            self._parent[a] = b

    def _layer(self, layer: Layer) -> None:
        node, source = layer.node, bind_args(layer.node)["input"]
        value, weight = tensor_of(node), value_of(self.prepared, layer.weight)
        self._parent[node] = node
        self._made.append(layer)
        if _is_depthwise(self.prepared, layer):
            if source in self._parent:
                self._join(node, source)
            else:
                self._fixed.append(node)
        elif source in self._parent:
            self._read.append((source, layer))
        plain = value is not None and (value.ndim == 2 or "linear" not in op_name(node))
        if not plain or (layer.groups != 1 and not _is_depthwise(self.prepared, layer)):
            self._fixed += [node] + [source] * (source in self._parent)
        elif weight.ndim == 2 and (given := tensor_of(behind(source))) is not None and given.ndim != 2:
            self._fixed += [source] * (source in self._parent)

    def _pass(self, node: Node) -> None:
        sources = [n for n in node.all_input_nodes if n in self._parent]
        if not sources:
            return
        if self._keeps_channels(node, sources):
            self._join(node, *sources)
        else:
            self._fixed += sources

    def _keeps_channels(self, node: Node, sources: list[Node]) -> bool:
        """Whether every channel of a result depends on the same channels of the tensors and nothing else."""
        value = tensor_of(node)
        if node.op != "call_function" or value is None or value.ndim < 2:
            return False
        shapes = [tensor_of(behind(source)) for source in sources]
        if any(s is None or s.ndim < 2 or s.shape[1] != value.shape[1] for s in shapes):
            return False
        name = op_name(node)
        if name in SPATIAL:
            return len(sources) == 1
        if name == "aten.mean.dim":
            args = bind_args(node)
            rank = shapes[0].ndim  # type: ignore[union-attr]
            return all(d % rank >= 2 for d in args["dim"] or (0,))
        spec = ops.find(name)
        if spec is None or spec.real is None or spec.real.reduces or spec.moves_values or not is_float(node):
            return False
        others = [n for n in node.all_input_nodes if n not in sources]
        if any(s.ndim != value.ndim for s in shapes if s is not None):
            return False
        return all(map(is_number, others))
