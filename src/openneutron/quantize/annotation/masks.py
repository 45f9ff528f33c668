"""How low the masks of softmaxes are, by the scores of samples.

A forbidden place must be so low that no probability is left there, whatever its score: how low that is
depends on how far scores are apart. What is lower than need be costs all scores their resolution.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.fx import op_name, watch
from openneutron.passes.decompositions.attention import MASKED, PASSING, masked_scores
from openneutron.passes.graph import add_constant, constant

# Below the largest score of its row. The smallest probability of int8 is e^-5.5; scores of other samples may
# be further apart than those of these.
_BELOW = 12.0


def fit_masks(model: GraphModule, samples: Sequence[tuple[Any, ...]]) -> None:
    """Let every mask be as low as the scores of these samples need it."""
    masks = list(_masks(model)) if samples else []
    if not masks:
        return
    lowest = _needed(model, samples, masks)
    for source in dict.fromkeys(mask.source for mask in masks):  # one mask may serve several layers
        same = [mask for mask in masks if mask.source is source]
        if all(mask.scores in lowest for mask in same):
            low = min(lowest[mask.scores] for mask in same)
            _set(model, source, low)
            for clamp in dict.fromkeys(clamp for mask in same for clamp in mask.clamps):
                clamp.update_arg(1, low)
    model.recompile()


@dataclass(frozen=True)
class _Mask:
    scores: Node  # masked
    place: int  # of the mask among its arguments
    source: Node  # says how low it is: a constant, or a product with one
    clamps: tuple[Node, ...]  # on the way from there


def _masks(model: GraphModule) -> Iterator[_Mask]:
    softmaxes = [(node, scores) for node in model.graph.nodes if (scores := masked_scores(node)) is not None]
    masked = {scores for _, scores in softmaxes}
    for softmax, scores in softmaxes:
        chosen = op_name(scores) == "aten.where.self"
        for place in (1, 2) if chosen else (0, 1):
            mask = scores.args[place]
            if not isinstance(mask, Node) or not _same_rows(softmax, scores):
                continue
            path = [mask]
            while op_name(path[-1]) in PASSING:
                path.append(path[-1].all_input_nodes[0])
            clamps = tuple(n for n in path if op_name(n) == "aten.clamp.default" and n.args[1] == MASKED)
            for source in _sources(model, path[-1], chosen):
                if _read_by_masks_alone(source, masked):
                    yield _Mask(scores, place, source, clamps)


def _same_rows(softmax: Node, scores: Node) -> bool:
    """Whether each probability row is a row of the scores, which views may lie between."""
    read, dim = softmax.all_input_nodes[0].meta["val"], operator.index(softmax.args[1])  # type: ignore[arg-type]
    return bool(dim % read.dim() == read.dim() - 1 and read.shape[-1] == scores.meta["val"].shape[-1])


def _sources(model: GraphModule, node: Node, chosen: bool) -> list[Node]:
    """What says how low forbidden places are: constants, those that are chosen from, a product with one."""
    if op_name(node) == "aten.mul.Tensor":
        factor = constant(model, node.args[1])
        return [node] if not chosen and factor is not None and _forbids(factor, 1) else []
    nodes = node.all_input_nodes[1:] if op_name(node) == "aten.where.self" and not chosen else [node]
    values = [(n, constant(model, n)) for n in nodes]
    return [n for n, value in values if value is not None and _forbids(value, 1 if chosen else value.numel())]


def _forbids(value: Tensor, most: int) -> bool:
    return value.is_floating_point() and value.numel() <= most and bool((value <= MASKED).any())


def _read_by_masks_alone(source: Node, masked: set[Node]) -> bool:
    """Whether nobody but masked scores reads it, so that it may be changed."""
    left = [source]
    while left:
        for user in left.pop().users:
            if user not in masked and op_name(user) not in (*PASSING, "aten.where.self"):
                return False
            if user not in masked:
                left.append(user)
    return True


def _needed(
    model: GraphModule, samples: Sequence[tuple[Any, ...]], masks: Sequence[_Mask]
) -> dict[Node, float]:
    """How low the masks of these scores must be for all samples; those that are no masks are left out."""
    lowest: dict[Node, float] = {}
    places = {mask.scores: mask for mask in masks}
    values: dict[Node, Tensor] = {}
    other: set[Node] = set()

    def look(node: Node, value: Tensor) -> None:
        values[node] = value
        if node not in places:
            return
        mask, operands = places[node], [values[n] for n in node.args if isinstance(n, Node)]
        if op_name(mask.source) == "aten.mul.Tensor":
            factor = constant(model, mask.source.args[1])
            product = operands[mask.place]
            if bool(((product != 0) & (product != factor)).any()):
                other.add(node)  # more than a condition
        low = _lowest(operands, mask.place, op_name(node) == "aten.where.self")
        if low is not None:
            lowest[node] = min(low, lowest.get(node, low))

    watch(model, samples, {*places, *(n for scores in places for n in scores.all_input_nodes)}, look)
    return {scores: low for scores, low in lowest.items() if scores not in other}


def _lowest(args: Sequence[Any], place: int, chosen: bool) -> float | None:
    """The same for one sample; None if it forbids nothing, or all."""
    if chosen:
        condition, *values = args
        scores = values[2 - place]
        forbidden, scores = torch.broadcast_tensors(condition if place == 1 else ~condition, scores)
    else:
        mask, scores = torch.broadcast_tensors(args[place], args[1 - place])
        forbidden = mask <= MASKED
        scores = scores + mask.masked_fill(forbidden, 0.0)
    top = scores.masked_fill(forbidden, -torch.inf).amax(-1)
    rows = forbidden.any(-1) & torch.isfinite(top)
    if not bool(rows.any()):
        return None
    if chosen:
        return float(top[rows].min()) - _BELOW
    hidden = scores.masked_fill(~forbidden, -torch.inf).amax(-1)
    return min(0.0, float((top - hidden)[rows].min())) - _BELOW


def _set(model: GraphModule, source: Node, low: float) -> None:
    product = constant(model, source) is None
    held = source.args[1] if product else source
    value = constant(model, held)
    assert isinstance(held, Node) and value is not None
    fitted = value.detach().masked_fill(value.detach() <= MASKED, low)
    node = add_constant(model, source, fitted, f"{held.target}_fitted")
    if product:
        source.update_arg(1, node)
    else:
        source.replace_all_uses_with(node)
