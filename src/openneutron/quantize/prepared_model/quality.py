"""How good the outputs of a prepared model are once they are quantized, on samples, without labels.

A softmax or a sigmoid at the end hides most of an error, or makes it look like one of the last rounding: what
is decided by is measured on the scores they are computed from as well.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from openneutron import ops
from openneutron.fx import op_name
from openneutron.quantize.prepared_model.model import Sample, behind, in_float, simulated

_SQUASHING = {
    "aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default",
    "aten.sigmoid.default", "aten.hardsigmoid.default", "aten.tanh.default",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a model gave for samples: its outputs, and the scores behind them, float tensors only."""

    outputs: list[list[Tensor]]
    scores: list[list[Tensor]]


_EXACT_DB = 140.0  # an error that is no more than float's own
_ROUNDING_DB = 1.0  # by which the error of a last rounding spreads at most from sample to sample
_CUT_FROM = 6  # samples: of fewer none is left out
Powers = tuple[tuple[float, float], ...]  # of each tensor of one sample: what it should be, and its error


@dataclass(frozen=True)
class Elsewhere:
    """What the samples that were fitted to say of all that are like them, beside those kept back."""

    shift_db: tuple[float, ...]  # to the figure of each output: negative where those kept back are easy ones
    samples: int  # fitted to, and compared
    uncertain_db: float  # of what fitting has made better on them


@dataclass(frozen=True)
class Quality:
    """How far a model is from float on samples, each by itself, and how often its largest value stays."""

    outputs: tuple[Powers, ...]  # of every sample
    scores: tuple[Powers, ...]
    agreement: float | None  # None: no output is a row of scores
    elsewhere: Elsewhere | None = None
    beyond: tuple[Powers, ...] = ()  # of the outputs, if ranges end where the few samples fitted to do

    @property
    def samples(self) -> int:
        """How many it was measured on."""
        return len(self.outputs)

    @property
    def sqnr_db(self) -> float:
        """The error of a sample's scores in decibel, in the mean of them all: what is decided by.

        In decibel, since the error of probabilities is most of all that of a few samples that are undecided:
        the sum of all errors would say whether these got better, by chance, and of the others nothing.
        """
        return statistics.fmean(self._each_db()) if self.scores else _EXACT_DB

    @property
    def together_db(self) -> float:
        """The error of the scores, all samples and scores together."""
        ratios = [noise / signal for signal, noise in _sums(self.scores) if signal > 0]
        return decibel(1.0, sum(ratios) / len(ratios)) if ratios else math.inf

    @property
    def per_output_db(self) -> tuple[float, ...]:
        """The error of each output: what is shown."""
        figures = [together_db(column) for column in zip(*self.outputs, strict=True)]
        shifts = (0.0,) * len(figures) if self.elsewhere is None else self.elsewhere.shift_db
        return tuple(figure + shift for figure, shift in zip(figures, shifts, strict=True))

    @property
    def output_db(self) -> float:
        """The error of the outputs: of several, the worst."""
        return min(self.per_output_db, default=math.inf)

    @property
    def uncertain_db(self) -> float:
        """The standard error of the worst output's figure.

        The error of a sample is often a hundred times that of another, and few samples have none of the
        largest: how far errors spread, those of the scores behind a softmax too, says how much that may be.
        """
        columns, figures = list(zip(*self.outputs, strict=True)), self.per_output_db
        if not columns or self.samples < 2:
            return 0.0
        place = figures.index(min(figures))
        worst = columns[place]
        beyond = [[row[place] for row in self.beyond]] if self.beyond else []
        behind = zip(*self.scores, strict=True) if len(columns) == 1 else ()
        spread = max(map(_spread_db, (worst, *behind, *beyond)))
        more, fitting = 0, 0.0
        if self.elsewhere is not None:
            more, fitting = self.elsewhere.samples, self.elsewhere.uncertain_db
        return math.hypot(_uncertain_db(spread, self.samples + more), fitting)

    def is_better_than(self, other: Quality, gain_db: float, errors: float = 1.0) -> bool:
        """Whether this is better by so much, and sample by sample by so many standard errors.

        Samples with the largest gain and loss are left out: one that int8 throws far off says nothing of the
        others. The errors of the rest together must not grow: what helps most may lose the large ones.
        """
        gains = [a - b for a, b in zip(self._each_db(), other._each_db(), strict=True)]
        cut = max(len(gains) // 8, int(len(gains) >= _CUT_FROM))
        order = sorted(range(len(gains)), key=gains.__getitem__)
        kept = order[cut : len(order) - cut]
        if not kept or self._only(kept).together_db < other._only(kept).together_db:
            return False
        least, most = gains[kept[0]], gains[kept[-1]]
        held = [min(max(gain, least), most) for gain in gains]  # the error of a trimmed mean
        chance = statistics.stdev(held) * math.sqrt(len(held)) / len(kept) if len(held) > 1 else 0.0
        return statistics.fmean(gains[i] for i in kept) > max(gain_db, errors * chance)

    def _only(self, samples: Sequence[int]) -> Quality:
        outputs, scores = (tuple(rows[i] for i in samples) for rows in (self.outputs, self.scores))
        return Quality(outputs, scores, self.agreement)

    def without(self, sample: int) -> Quality:
        """The same as if one of the samples had not been there."""
        return self._only([i for i in range(self.samples) if i != sample])

    def _each_db(self) -> list[float]:
        """The error of each sample in the mean of its scores, each by its power over all samples."""
        powers = [signal / len(self.scores) for signal, _ in _sums(self.scores)]
        found = []
        for row in self.scores:
            each = [decibel(p, n) for (_, n), p in zip(row, powers, strict=True) if p > 0]
            found.append(statistics.fmean(min(db, _EXACT_DB) for db in each) if each else _EXACT_DB)
        return found


def chosen_by_others(
    found: Quality, before: Quality, after: Quality, gain_db: float, errors: float = 1.0
) -> Quality:
    """The figure to show when `after` was set against `before` to choose one of them.

    What decides is no unseen data. So each sample counts with the model that the others would have chosen:
    its new error if they like the new model better, else the one that `found` has for it.
    """
    rows = [
        (new if after.without(i).is_better_than(before.without(i), gain_db, errors) else old)
        for i, (old, new) in enumerate(zip(_rows(found), _rows(after), strict=True))
    ]
    return replace(found, outputs=tuple(o for o, _ in rows), scores=tuple(s for _, s in rows))


def with_gain(found: Quality, before: Quality, after: Quality) -> Quality:
    """What is known of a model on folds of the samples, if a step changes its error as it did on all."""

    def scaled(rows: Sequence[Powers], old: Sequence[Powers], new: Sequence[Powers]) -> tuple[Powers, ...]:
        sums = zip(_sums(old), _sums(new), strict=True)
        factors = [b / a if a > 0 else 1.0 for (_, a), (_, b) in sums]
        return tuple(tuple((s, n * f) for (s, n), f in zip(row, factors, strict=True)) for row in rows)

    pairs = zip(_sides(found), _sides(before), _sides(after), strict=True)
    outputs, scores = (scaled(*three) for three in pairs)
    return replace(found, outputs=outputs, scores=scores)


def joined(parts: Sequence[Quality]) -> Quality:
    """Of models fitted alike, each measured on samples of its own, one figure."""
    known = [q for q in parts if q.agreement is not None]
    asked = sum(q.samples for q in known)
    same = sum(q.agreement * q.samples for q in known if q.agreement is not None)
    outputs, scores = (tuple(chain.from_iterable(rows)) for rows in zip(*map(_sides, parts), strict=True))
    return Quality(outputs, scores, same / asked if asked else None)


def _sides(found: Quality) -> tuple[tuple[Powers, ...], tuple[Powers, ...]]:
    return found.outputs, found.scores


def _rows(found: Quality) -> list[tuple[Powers, Powers]]:
    return list(zip(found.outputs, found.scores, strict=True))


def _sums(rows: Sequence[Powers]) -> list[tuple[float, float]]:
    return [(sum(s for s, _ in column), sum(n for _, n in column)) for column in zip(*rows, strict=True)]


def together_db(powers: Sequence[tuple[float, float]]) -> float:
    """The error of a tensor over all samples, in decibel."""
    signal, noise = sum(s for s, _ in powers), sum(n for _, n in powers)
    return decibel(signal, noise) if signal or noise else math.inf


def compared(held: Quality, fitted: Quality) -> Quality:
    """The quality on samples kept back, with what those fitted to say of the rest.

    How large errors are is told by the samples kept back alone, and how they spread by all: a few samples
    may be easy ones, and most of an error that of one sample in ten. What fitting makes better is told by
    the scores in the mean of decibel, which neither depends on much.
    """
    gain, error = _gained_by_fitting(held, fitted)
    factor = 10 ** (gain / 10)
    shifts = []
    for own, others in zip(zip(*held.outputs, strict=True), zip(*fitted.outputs, strict=True), strict=True):
        everywhere = together_db([*own, *((signal, noise * factor) for signal, noise in others)])
        known = math.isfinite(everywhere) and math.isfinite(together_db(own))
        shifts.append(everywhere - together_db(own) if known else 0.0)
    return replace(held, elsewhere=Elsewhere(tuple(shifts), fitted.samples, error))


def _gained_by_fitting(held: Quality, fitted: Quality) -> tuple[float, float]:
    """By how much errors are less where the model was fitted, and the standard error.

    Scores whose errors spread less weigh more. An error that is the same for every sample is the last
    rounding's, which no fitting changes.
    """
    weights = gains = 0.0
    for own, others in zip(zip(*held.scores, strict=True), zip(*fitted.scores, strict=True), strict=True):
        a, b = _in_db(own), _in_db(others)
        if len(a) < 2 or len(b) < 2:
            continue
        pooled = (statistics.variance(a) * (len(a) - 1) + statistics.variance(b) * (len(b) - 1)) / (
            len(a) + len(b) - 2
        )
        if math.sqrt(pooled) < _ROUNDING_DB:
            continue
        weight = 1 / (pooled * (1 / len(a) + 1 / len(b)))
        weights, gains = weights + weight, gains + weight * (statistics.fmean(b) - statistics.fmean(a))
    return (max(gains / weights, 0.0), 1 / math.sqrt(weights)) if weights else (0.0, 0.0)


def _in_db(powers: Sequence[tuple[float, float]]) -> list[float]:
    """The error of each sample that has one, by the power of all."""
    signal = sum(s for s, _ in powers) / max(1, len(powers))
    return [decibel(signal, noise) for _, noise in powers if signal > 0 and noise > 0]


def _spread_db(powers: Sequence[tuple[float, float]]) -> float:
    found = _in_db(powers)
    return statistics.stdev(found) if len(found) > 1 else 0.0


def _uncertain_db(spread_db: float, count: int) -> float:
    """The standard error of the mean of errors that spread so in decibel: Cox's, of log-normal values."""
    variance = (spread_db * math.log(10) / 10) ** 2
    return decibel(math.exp(math.sqrt(variance / count + variance**2 / (2 * (count - 1)))), 1.0)


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
    outputs, scores = (
        tuple(
            tuple(powers(a, b) for a, b in zip(good, bad, strict=True))
            for good, bad in zip(*side, strict=True)
        )
        for side in ((exact.outputs, found.outputs), (exact.scores, found.scores))
    )
    return Quality(outputs, scores, agreed / asked if asked else None)


def powers(exact: Tensor, found: Tensor) -> tuple[float, float]:
    """The power of a tensor and of its error."""
    good = exact.double()
    return float(good.square().sum()), float((good - found.double()).square().sum())


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
            outputs = [probe.measured(prepared(*sample)) for sample in samples]
            return Run(outputs, outputs)
        for sample in samples:
            found.outputs.append(probe.measured(probe.run(*sample)))
            found.scores.append(probe.scores())
    return found


class _Probe(Interpreter):
    """Runs a model and keeps what its last squashing functions read."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        self._ends = pytree.tree_leaves(_output(module).args)
        self._wanted = scores_of(module)
        self.squashes = self._wanted != [n for n in self._ends if isinstance(n, Node)]
        self._values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n in self._wanted:
            self._values[n] = result
        return result

    def measured(self, outputs: Any) -> list[Tensor]:
        """The outputs that errors are measured on."""
        pairs = zip(self._ends, pytree.tree_leaves(outputs), strict=True)
        return _floats(value for end, value in pairs if isinstance(end, Node) and _is_measured(end))

    def scores(self) -> list[Tensor]:
        """What was kept of the last run."""
        return _floats(self._values[n] for n in self._wanted)


def _floats(values: Iterable[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


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


def measured_outputs(module: GraphModule) -> list[int]:
    """The numbers of the outputs that errors are measured on: those that are no integers."""
    ends = [n for n in pytree.tree_leaves(_output(module).args) if isinstance(n, Node)]
    return [number for number, end in enumerate(ends) if _is_measured(end)]


def _is_measured(node: Node) -> bool:
    value = behind(node).meta.get("val")
    if not isinstance(value, Tensor):
        return True
    # Of a size that the data decides, as in x[x > 0], each of two runs has its own.
    return value.is_floating_point() and all(isinstance(size, int) for size in value.shape)


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
