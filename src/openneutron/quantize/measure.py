"""How good the outputs of a prepared model are once they are quantized, on samples, without labels.

A softmax or a sigmoid at the end hides most of an error, or makes it look like one of the last rounding: what
is decided by is measured on the scores they are computed from as well.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from openneutron import ops
from openneutron.fx import op_name
from openneutron.quantize.prepared import Sample, behind, in_float, simulated

_SQUASHING = {
    "aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default",
    "aten.sigmoid.default", "aten.hardsigmoid.default", "aten.tanh.default",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a model gave for samples: its outputs, and the scores behind them, float tensors only."""

    outputs: list[list[Tensor]]
    scores: list[list[Tensor]]


@dataclass(frozen=True)
class Quality:
    """Error of the scores in decibel, of each output, and how often the largest value stays in place."""

    sqnr_db: float
    per_output_db: tuple[float, ...]
    agreement: float | None  # None: no output is a row of scores
    samples: int
    per_sample_db: tuple[float, ...] = ()  # of the scores

    @property
    def output_db(self) -> float:
        """The error of the outputs: of several, the worst."""
        return min(self.per_output_db, default=math.inf)

    def is_better_than(self, other: Quality, gain_db: float) -> bool:
        """Whether this is better by so much: altogether, and sample by sample beyond chance."""
        if math.isinf(self.sqnr_db) and self.sqnr_db > 0:
            return True
        if not self.sqnr_db > other.sqnr_db + gain_db:
            return False
        pairs = zip(self.per_sample_db, other.per_sample_db, strict=True)
        gains = [a - b for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        if len(gains) < 2:
            return True
        return statistics.mean(gains) > statistics.stdev(gains) / math.sqrt(len(gains))


def float_run(prepared: GraphModule, samples: Sequence[Sample]) -> Run:
    """What the model computes in float."""
    with in_float(prepared):
        return _run(prepared, samples)


def quantized_run(prepared: GraphModule, samples: Sequence[Sample], exact: Collection[str] = ()) -> Run:
    """What the model will compute quantized, with the parameters as they are now, if some do not round."""
    with simulated(prepared, exact):
        return _run(prepared, samples)


def quality(exact: Run, found: Run) -> Quality:
    """Compare two runs over the same samples."""
    agreed = asked = 0
    for good, bad in zip(exact.scores, found.scores, strict=True):
        rows = [(a, b) for a, b in zip(good, bad, strict=True) if a.ndim == 2 and a.shape[1] > 1]
        for a, b in rows[:1]:
            agreed += int((a.argmax(1) == b.argmax(1)).sum())
            asked += len(a)
    together = _together(_ratios(exact.scores, found.scores))
    each = tuple(math.inf if r is None else decibel(1.0, r) for r in _ratios(exact.outputs, found.outputs))
    samples = [_together(_ratios([a], [b])) for a, b in zip(exact.scores, found.scores, strict=True)]
    agreement = agreed / asked if asked else None
    return Quality(together, each, agreement, len(exact.outputs), tuple(samples))


def _together(ratios: list[float | None]) -> float:
    known = [r for r in ratios if r is not None]
    return decibel(1.0, sum(known) / len(known)) if known else math.inf


def _ratios(exact: list[list[Tensor]], found: list[list[Tensor]]) -> list[float | None]:
    """Of each tensor the power of its error over its own; None where there is no signal."""
    signal = [0.0] * len(exact[0]) if exact else []
    noise = list(signal)
    for good, bad in zip(exact, found, strict=True):
        for i, (a, b) in enumerate(zip(good, bad, strict=True)):
            signal[i] += float(a.double().square().sum())
            noise[i] += float((a.double() - b.double()).square().sum())
    return [n / s if s > 0 else None for s, n in zip(signal, noise, strict=True)]


def decibel(signal: float, noise: float) -> float:
    """The ratio of two powers."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _run(prepared: GraphModule, samples: Sequence[Sample]) -> Run:
    found = Run([], [])
    probe = _Probe(prepared)
    with torch.no_grad():
        if not probe.squashes:  # the outputs are the scores, and compiled code is quicker
            outputs = [_floats(prepared(*sample)) for sample in samples]
            return Run(outputs, outputs)
        for sample in samples:
            found.outputs.append(_floats(probe.run(*sample)))
            found.scores.append(_floats(probe.scores()))
    return found


def _floats(value: object) -> list[Tensor]:
    leaves = pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


class _Probe(Interpreter):
    """Runs a model and keeps what its last squashing functions read."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        ends = [n for n in pytree.tree_leaves(_output(module).args) if isinstance(n, Node)]
        self._wanted = scores_of(module)
        self.squashes = self._wanted != ends
        self._values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n in self._wanted:
            self._values[n] = result
        return result

    def scores(self) -> list[Any]:
        """What was kept of the last run."""
        return [self._values[n] for n in self._wanted]


def scores_of(module: GraphModule) -> list[Node]:
    """What a model is judged by: the parts its outputs are joined from, and what those squash.

    A sigmoid hides errors where it is flat; what it reads shows large ones where nobody looks: both count.
    """
    parts = [node for _, node in parts_of(module)]
    return list(dict.fromkeys([*parts, *map(_before_squashing, parts)]))


def parts_of(module: GraphModule) -> list[tuple[int, Node]]:
    """The tensors that a model's outputs are put together from, each once, with the number of the output."""
    ends = [n for n in pytree.tree_leaves(_output(module).args) if isinstance(n, Node)]
    found: dict[Node, int] = {}
    for number, end in enumerate(ends):
        for part in _parts(end):
            if _is_measured(part):
                found.setdefault(part, number)
    return [(number, node) for node, number in found.items()]


def _is_measured(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or value.is_floating_point()


def _output(module: GraphModule) -> Node:
    (end,) = (n for n in module.graph.nodes if n.op == "output")
    return end


def _parts(node: Node) -> list[Node]:
    """The tensors that an output is put together from in float."""
    spec = ops.find(op_name(node)) if node.op == "call_function" else None
    if spec is None or not spec.moves_values:
        return [node]
    return [part for source in node.all_input_nodes for part in _parts(source)]


def _before_squashing(node: Node) -> Node:
    source = behind(node)
    while op_name(source) in _SQUASHING:
        source = behind(source.args[0])
    return node if source is behind(node) else source
