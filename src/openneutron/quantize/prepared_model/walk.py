"""Running a prepared model on many samples side by side, in float and rounded, one node after the other.

At every layer with weights the inputs of all samples are at hand, as they are and as they should be, and what
a method changes of the layer is in force for everything behind it: one walk serves a whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from openneutron.fx import bind_args, tensor_of, values_of
from openneutron.quantize.prepared_model.model import Layer, Rounding, Sample, behind, layers_of, roundings

Visit = Callable[["Step"], object]


@dataclass(frozen=True)
class Share:
    """How many patches of its input, of all samples together, a layer is judged by."""

    least: int
    each: int  # for every input of an output channel
    most: int

    def of(self, inputs: int) -> int:
        """The patches of a layer with so many inputs."""
        return min(self.most, max(self.least, self.each * inputs))


SOME, MANY = Share(512, 3, 4096), Share(4096, 12, 8192)


class Step:
    """A layer that the walk has come to: what it reads and what it should give."""

    def __init__(self, walk: Walk, layer: Layer):
        self.prepared = walk.prepared
        self.layer = layer
        self.share = walk.share
        self._walk = walk
        source = bind_args(layer.node)["input"]
        self.inputs: list[Tensor] = [env[source] for env in walk.rounded]
        self.exact_inputs: list[Tensor] = [env[source] for env in walk.exact]
        self.targets: list[Tensor] = [env[layer.node] for env in walk.exact]

    def outputs(self) -> list[Tensor]:
        """What the layer gives now, with its weights and bias rounded."""
        return [self._walk.compute(self.layer.node, env, rounded=True) for env in self._walk.rounded]

    def renew(self) -> None:
        """Read weights, bias and their observers again after they were changed."""
        self._walk.forget(self.layer)


class Walk:
    """Both runs of all samples, with what is no longer needed dropped on the way."""

    def __init__(self, prepared: GraphModule, samples: Sequence[Sample], share: Share = SOME):
        self.prepared = prepared
        self.share = share
        self.exact: list[dict[Node, Any]] = [{} for _ in samples]
        self.rounded: list[dict[Node, Any]] = [{} for _ in samples]
        self._samples = [iter(pytree.tree_leaves(sample)) for sample in samples]
        self._roundings = roundings(prepared)
        self._layers = {layer.node: layer for layer in layers_of(prepared)}
        self._constants = {n for n in prepared.graph.nodes if behind(n).op == "get_attr"}
        self._last: dict[Node, list[Node]] = {}
        last: dict[Node, Node] = {}
        for node in prepared.graph.nodes:
            for source in node.all_input_nodes:
                last[source] = node
        for source, node in last.items():
            self._last.setdefault(node, []).append(source)

    def run(self, visit: Visit, progress: Callable[[float], None] = lambda part: None) -> None:
        """Go through the model; `visit` is called at every layer with weights."""
        nodes = list(self.prepared.graph.nodes)
        with torch.no_grad():
            for done, node in enumerate(nodes, 1):
                self._compute(node)
                if node in self._layers:
                    visit(Step(self, self._layers[node]))
                    for env in self.rounded:
                        env[node] = self.compute(node, env, rounded=True)
                for source in self._last.get(node, ()):
                    for env in (*self.exact, *self.rounded):
                        env.pop(source, None)
                progress(done / len(nodes))

    def _compute(self, node: Node) -> None:
        if node.op == "placeholder":
            for exact, rounded, sample in zip(self.exact, self.rounded, self._samples, strict=True):
                exact[node] = rounded[node] = next(sample)
            return
        if node.op == "output":
            return
        if node in self._constants:  # the same for every sample
            for envs, rounded_too in ((self.exact, False), (self.rounded, True)):
                value = self.compute(node, envs[0], rounded_too)
                for env in envs:
                    env[node] = value
            return
        for env in self.exact:
            env[node] = self.compute(node, env, False)
        if node in self._layers:
            return
        for env in self.rounded:
            env[node] = self.compute(node, env, True)

    def compute(self, node: Node, env: dict[Node, Any], rounded: bool) -> Any:
        """One node's result."""
        if node.op == "get_attr":
            found: Any = self.prepared
            for part in str(node.target).split("."):
                found = getattr(found, part)
            return found
        if node.op == "call_module":
            value = env[node.args[0]]  # type: ignore[index]  # an observer looks at one tensor
            return self._roundings[str(node.target)].forward(value) if rounded else value
        args, kwargs = map_arg((node.args, node.kwargs), env.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]  # a call_function

    def forget(self, layer: Layer) -> None:
        """Take a layer's constants and their rounding as they are now."""
        self._roundings = {**self._roundings, **_of_constants(self.prepared, layer)}
        for node in layer.node.all_input_nodes:
            source = node.args[0] if node.op == "call_module" else node
            if isinstance(source, Node) and source.op == "get_attr":
                value = self.compute(source, {}, False)
                rounded = value if node is source else self._roundings[str(node.target)](value)
                for env in self.rounded:
                    env[source], env[node] = value, rounded


def _of_constants(prepared: GraphModule, layer: Layer) -> dict[str, Any]:
    return {
        str(n.target): Rounding(prepared.get_submodule(str(n.target)))
        for n in layer.node.all_input_nodes
        if n.op == "call_module" and isinstance(n.args[0], Node) and n.args[0].op == "get_attr"
    }


def live_bytes(prepared: GraphModule) -> int:
    """The most memory a walk needs for one sample: what is alive at once, in float and rounded."""
    last: dict[Node, Node] = {}
    for node in prepared.graph.nodes:
        for source in node.all_input_nodes:
            last[source] = node
    now = most = 0
    ends: dict[Node, list[Node]] = {}
    for source, node in last.items():
        ends.setdefault(node, []).append(source)
    for node in prepared.graph.nodes:
        now += _bytes(node)
        most = max(most, now)
        now -= sum(_bytes(source) for source in ends.get(node, ()))
    return 2 * most


def work_of(prepared: GraphModule) -> int:
    """The values a model computes for one sample: a measure of what running it costs."""
    return sum(_bytes(node) for node in prepared.graph.nodes) // 4


def affordable(prepared: GraphModule, values: int, least: int, most: int) -> int:
    """How many samples may be run, if so many values may be computed in all."""
    return max(least, min(most, values // max(1, work_of(prepared))))


def _bytes(node: Node) -> int:
    value = tensor_of(node)
    return 0 if value is None or node.op == "get_attr" else values_of(node) * value.element_size()
