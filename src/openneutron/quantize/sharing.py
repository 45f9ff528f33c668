"""Which tensors have the same parameters, said in a way that torchao can follow.

An annotation may refer to another tensor's parameters, and torchao by itself joins all that is said of one
tensor. Where the two make a circle (a tensor joined to a part of itself), it would follow them forever. So
every reference is made to point at the one specification of its group that refers to nothing. Of a tensor
with many readers, as a recurrent layer of many steps has them, torchao compares every two and recurses from
one to the next: those are joined here alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpec,
    QuantizationSpecBase,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

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
