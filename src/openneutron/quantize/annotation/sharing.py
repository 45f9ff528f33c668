"""Which tensors have the same parameters, said in a way that torchao can follow.

An annotation may refer to another tensor's parameters, and torchao by itself joins all that is said of one
tensor. Where the two make a circle (a tensor joined to a part of itself), it would follow them forever. So
every reference is made to point at the one specification of its group that refers to nothing. Of a tensor
with many readers, as a recurrent layer of many steps has them, torchao compares every two and recurses from
one to the next: those are joined here alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from openneutron.quantize.annotation.number_formats import ACTIVATION_RANGE

Place = Any  # a node (its output) or a pair of nodes (an input): what torchao calls EdgeOrNode
# What torchao compares before it joins two specifications of one tensor.
_COMPARED = ("dtype", "is_dynamic", "quant_min", "quant_max", "qscheme", "ch_axis", "scale", "zero_point")
_MANY = 64  # readers of a tensor that torchao is not left to join


def flatten_sharing(model: GraphModule) -> None:
    """Let every place of a group refer to the group's first specification."""
    specs = dict(_specifications(model))
    parents: dict[Place, Place] = {place: place for place in specs}

    def root(place: Place) -> Place:
        while parents[place] != place:
            parents[place] = place = parents[parents[place]]
        return place

    def join(a: Place, b: Place) -> None:
        a, b = root(a), root(b)
        # The root is a specification of its own wherever there is one.
        if isinstance(specs[a], SharedQuantizationSpec):
            a, b = b, a
        parents[b] = a

    for place, spec in specs.items():
        if isinstance(spec, SharedQuantizationSpec) and spec.edge_or_node in specs:
            join(spec.edge_or_node, place)
    for node in model.graph.nodes:
        places = [p for p in (node, *((node, user) for user in node.users)) if p in specs]
        different: list[Place] = []
        for place in places:
            joins = [o for o in different if _may_join(place) and _alike(specs[root(place)], specs[root(o)])]
            for other in joins:
                join(other, place)
            different += [] if joins else [place]
    crowd = {user for node in model.graph.nodes if len(node.users) > _MANY for user in node.users}
    groups: dict[Place, list[Place]] = {}
    for place in specs:
        groups.setdefault(root(place), []).append(place)
    for found, (first, *others) in groups.items():
        refers = any(
            isinstance(specs[place], SharedQuantizationSpec)
            or (place if isinstance(place, Node) else place[1]) in crowd
            for place in (first, *others)
        )
        if refers and not isinstance(specs[found], SharedQuantizationSpec):
            _say(first, specs[found])  # torchao meets places in this order, and must know the one referred to
            for place in others:
                _say(place, SharedQuantizationSpec(first))
    for user in crowd:
        if (annotation := user.meta.get(Q_ANNOTATION_KEY)) is not None:
            annotation.allow_implicit_sharing = False


@dataclass(frozen=True)
class NextState:
    """What a state's input becomes: the number of an output; its scale and zero point, if given."""

    output: int
    parameters: tuple[float, int] | None = None


def share_states(model: GraphModule, states: Mapping[str, NextState]) -> None:
    """Give what a state becomes the parameters it is read with, so that nothing is converted in between.

    A range that is fixed (a sigmoid's) stays that of its maker; a state that is joined with other tensors
    has theirs. Parameters that are given, because other methods have the state too, are those of all.
    """
    if not states:
        return
    specs = dict(_specifications(model))
    results = pytree.tree_leaves(model.graph.output_node().args)
    inputs = {node.name: node for node in model.graph.find_nodes(op="placeholder")}

    def owner(place: Place) -> Place:
        spec, seen = specs[place], {place}
        while isinstance(spec, SharedQuantizationSpec) and spec.edge_or_node in specs:
            place = spec.edge_or_node
            if place in seen:
                break
            seen.add(place)
            spec = specs[place]
        return place

    def reads_of(state: Node, seen: frozenset[Node] = frozenset()) -> list[Place]:
        """Where a state is read, or one that it is handed on to."""
        found = [(state, user) for user in state.users if (state, user) in specs]
        for other, following in states.items():
            if results[following.output] is state and state not in seen:
                found += reads_of(inputs[other], seen | {state})
        return found

    for name, following in states.items():
        state, value = inputs[name], results[following.output]
        reads = reads_of(state)
        made = [p for p in (value, *((value, user) for user in value.users)) if p in specs]
        for place in (*reads[1:], *made) if reads else ():
            first, other = owner(reads[0]), owner(place)
            if first == other:
                continue
            if isinstance(specs[other], FixedQParamsQuantizationSpec):
                alone = all(owner(p) != first for p in specs if p not in reads)
                if isinstance(specs[first], FixedQParamsQuantizationSpec) or not alone:
                    continue
                first, other = other, first
            specs[other] = SharedQuantizationSpec(first)
            _say(other, specs[other])
        if following.parameters is not None:
            for first in {owner(place): None for place in (*reads, *made)}:
                specs[first] = _given(*following.parameters)
                _say(first, specs[first])


def _given(scale: float, zero_point: int) -> FixedQParamsQuantizationSpec:
    return FixedQParamsQuantizationSpec(
        torch.int8, scale, zero_point, *ACTIVATION_RANGE, torch.per_tensor_affine
    )


def _specifications(model: GraphModule) -> Iterator[tuple[Place, QuantizationSpecBase]]:
    for node in model.graph.nodes:
        annotation: QuantizationAnnotation | None = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is None:
            continue
        for source, spec in annotation.input_qspec_map.items():
            if spec is not None:
                yield (source, node), spec
        if annotation.output_qspec is not None:
            yield node, annotation.output_qspec


def _may_join(place: Place) -> bool:
    return isinstance(place, Node) or place[1].meta[Q_ANNOTATION_KEY].allow_implicit_sharing


def _alike(a: QuantizationSpecBase, b: QuantizationSpecBase) -> bool:
    if not all(isinstance(spec, QuantizationSpec | FixedQParamsQuantizationSpec) for spec in (a, b)):
        return False
    none = object()
    return all(getattr(a, name, none) == getattr(b, name, none) for name in _COMPARED)


def _say(place: Place, spec: QuantizationSpecBase) -> None:
    if isinstance(place, Node):
        place.meta[Q_ANNOTATION_KEY].output_qspec = spec
    else:
        place[1].meta[Q_ANNOTATION_KEY].input_qspec_map[place[0]] = spec
