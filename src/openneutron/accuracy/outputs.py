"""The error of a model's outputs, each by itself: in decibel, by agreement, and on the worst samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from openneutron.quantize.prepared_model.quality import decibel

_WORST = 3  # samples that are named


@dataclass(frozen=True)
class OutputError:
    """How far one output is from the float model's."""

    output: int
    node: str  # the operator that makes it
    sqnr_db: float
    max_error: float
    agreement: float | None  # how often the largest value is in the same place; None: it is no row of scores
    worst: tuple[tuple[int, float], ...]  # samples with the largest error, and theirs in decibel

    def as_dict(self) -> dict[str, Any]:
        """For reports; JSON has no infinity, so that an error of zero is null."""
        found = asdict(self)
        found["sqnr_db"] = None if math.isinf(self.sqnr_db) else self.sqnr_db
        found["worst"] = [
            {"sample": index, "sqnr_db": None if math.isinf(db) else db} for index, db in self.worst
        ]
        return found


def output_errors(
    exact: GraphModule, quantized: GraphModule, samples: Sequence[tuple[Any, ...]]
) -> list[OutputError]:
    """The error of every float output over these samples."""
    pairs: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    with torch.no_grad():
        for inputs in samples:
            pairs.append(list(zip(_flat(exact(*inputs)), _flat(quantized(*inputs)), strict=True)))
    return [
        _error(index, name, [sample[index] for sample in pairs])
        for index, name in enumerate(_names(quantized))
        if pairs and index < len(pairs[0]) and pairs[0][index][0].is_floating_point()
    ]


def _error(index: int, name: str, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> OutputError:
    powers = [
        (float(a.double().square().sum()), float((a.double() - b.double()).square().sum())) for a, b in pairs
    ]
    each = sorted(((i, decibel(s, n)) for i, (s, n) in enumerate(powers)), key=lambda item: item[1])
    scores = pairs[0][0].ndim == 2 and pairs[0][0].shape[1] > 1
    same = [float((a.argmax(1) == b.argmax(1)).double().mean()) for a, b in pairs] if scores else []
    return OutputError(
        index,
        name,
        decibel(sum(s for s, _ in powers), sum(n for _, n in powers)),
        max(float((a - b).abs().max()) if a.numel() else 0.0 for a, b in pairs),
        sum(same) / len(same) if same else None,
        tuple(each[:_WORST]),
    )


def _flat(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _names(module: GraphModule) -> list[str]:
    """The operators that make the outputs, behind their quantize steps."""
    (end,) = (n for n in module.graph.nodes if n.op == "output")
    names = []
    for node in pytree.tree_leaves(end.args):
        if isinstance(node, Node):
            while "quantize" in node.name and node.args and isinstance(node.args[0], Node):
                node = node.args[0]
            names.append(node.name)
    return names
