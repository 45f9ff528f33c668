"""The methods that work on a calibrated model, each on a copy, kept only if the outputs are nearer to float.

What a method is fitted to and what it is judged on are different samples where there are enough. How many of
each depends on what running the model costs: a small network is measured on many, a large one on a few.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from openneutron.quantize.bias import correct_bias
from openneutron.quantize.clip import clip_weights
from openneutron.quantize.copies import copied
from openneutron.quantize.measure import Quality, Run, float_run, quality, quantized_run
from openneutron.quantize.observer import CHOICES, ENTROPY, MSE, RangeObserver
from openneutron.quantize.plan import BIAS, CLIP, RANGES, ROUND, AccuracyPlan
from openneutron.quantize.prepared import Sample, layers_of, observers
from openneutron.quantize.ranges import choose_each
from openneutron.quantize.rounding import round_weights
from openneutron.quantize.samples import mirrored
from openneutron.quantize.walk import MANY, SOME, Step, Walk, live_bytes, work_of

_MEMORY = {True: 2 << 30, False: 1 << 30}  # by thoroughness: bytes of results that a walk may hold
_ENOUGH = 4  # fewer samples say nothing about the mean of a channel
_LIMIT = 60.0  # seconds for choices made tensor by tensor
_LARGEST = 512  # inputs of an output channel whose weights the balanced plan still rounds
_DOUBT_DB = 0.3  # by which another range than that of least squares must be better
GAIN_DB = 0.1  # less is chance
GOOD_DB = {True: 40.0, False: 36.0}  # by thoroughness: as good as eight bits make it, nothing is tried
_SMALL = 1 << 20  # values that a model computes: with fewer, trying costs so little that more is tried
_SMALL_GOOD_DB = 44.0

Progress = Callable[[float], None]


@dataclass(frozen=True)
class MethodResult:
    """What one method did."""

    method: str
    text: str
    before_db: float
    after_db: float
    kept: bool
    seconds: float


@dataclass(frozen=True)
class Judged:
    """How good a model is on samples, observed on these and no others; `exact` is what they should give."""

    samples: list[Sample]
    exact: Run
    quality: Quality

    def is_on(self, samples: Sequence[Sample]) -> bool:
        """Whether it is these samples that it was observed and judged on."""
        return len(samples) == len(self.samples) and all(map(operator.is_, samples, self.samples))


def affordable(prepared: GraphModule, values: int, least: int, most: int) -> int:
    """How many samples may be run, if so many values may be computed in all."""
    return max(least, min(most, values // max(1, work_of(prepared))))


class Methods:
    """A calibrated model on its way through the methods."""

    def __init__(
        self,
        prepared: GraphModule,
        samples: Sequence[Sample],
        plan: AccuracyPlan,
        original: GraphModule,
        judged: Judged | None = None,
    ):
        self.original = original  # in float, what the outputs should be
        self.model = prepared
        self.samples = list(samples)
        self.plan = plan
        self.results: list[MethodResult] = []
        most = affordable(prepared, 32 << 20, 8 if plan.thorough else 4, 16)
        few = min(most, len(self.samples) // 4) if len(self.samples) >= 8 else len(self.samples)
        self.measured = spread_over(self.samples, few)
        chosen = {id(sample) for sample in self.measured}
        self.fitted = [sample for sample in self.samples if id(sample) not in chosen] or self.samples
        room = max(1, _MEMORY[plan.thorough] // max(1, live_bytes(prepared)))
        if not plan.thorough:
            room = min(room, affordable(prepared, 64 << 20, 8, 32))
        self.all, self.fitted = (
            _with_mirrored(some, room) if plan.thorough else spread_over(some, room)
            for some in (self.samples, self.fitted)
        )
        known = judged if judged is not None and judged.is_on(self.measured) else None
        self.exact: Run = known.exact if known else float_run(original, self.measured)
        self.quality = known.quality if known else self._measure(prepared)
        self.good_db = _SMALL_GOOD_DB if work_of(prepared) < _SMALL else GOOD_DB[plan.thorough]

    def _measure(self, model: GraphModule) -> Quality:
        return quality(self.exact, quantized_run(model, self.measured))

    def run(self, method: str, progress: Progress) -> None:
        """Try one method."""
        start, before = time.monotonic(), self.quality
        trial, text = None, "not needed: as good as eight bits make it"
        if before.sqnr_db < self.good_db:
            trial, text = _METHODS[method](self, progress)
        after = before if trial is None else self._measure(trial)
        kept = trial is not None and after.is_better_than(before, GAIN_DB)
        if kept:
            assert trial is not None
            self.quality = after
            self.model = self._fitted_to_all(method) if self.plan.thorough and method in _FITTED else trial
        seconds = time.monotonic() - start
        self.results.append(MethodResult(method, text, before.sqnr_db, after.sqnr_db, kept, seconds))

    def _fitted_to_all(self, method: str) -> GraphModule:
        """What a method gives once it is known to help: nothing is kept back to judge it by."""
        some, self.fitted = self.fitted, self.all
        model, _ = _METHODS[method](self, lambda part: None)
        self.fitted = some
        assert model is not None
        return model

    def ranges(self, progress: Progress) -> tuple[GraphModule | None, str]:
        """One choice for all tensors; thoroughly, each by itself."""
        found = [o for o in _unique(observers(self.model).values()) if isinstance(o, RangeObserver)]
        if not found:
            return None, "no range is observed"
        given = [o.choice for o in found]
        scores: dict[str, float] = {}
        for choice in CHOICES if self.plan.thorough else [c for c in CHOICES if c != ENTROPY]:
            now = choice == MSE and all(c == MSE for c in given)
            _set_choices(found, [choice] * len(found))
            scores[choice] = (self.quality if now else self._measure(self.model)).sqnr_db
        _set_choices(found, given)
        best = max(scores, key=lambda choice: scores[choice] + (_DOUBT_DB if choice == MSE else 0.0))
        text = ", ".join(f"{choice} {db:.1f} dB" for choice, db in scores.items())
        if best == MSE and not self.plan.thorough:
            return None, text
        model = copied(self.model)
        chosen = [o for o in _unique(observers(model).values()) if isinstance(o, RangeObserver)]
        _set_choices(chosen, [best] * len(chosen))
        if not self.plan.thorough:
            return model, text
        some = spread_over(self.fitted, affordable(model, 64 << 20, 6, 16))
        count = choose_each(model, float_run(self.original, some), some, _LIMIT, progress)
        return model, f"{text}; {count} tensors by themselves"

    def clip(self, progress: Progress) -> tuple[GraphModule | None, str]:
        """Weight ranges."""
        counted = 0

        def visit(step: Step) -> None:
            nonlocal counted
            counted += clip_weights(step)

        model = self._walk(visit, progress)
        return model, f"the weight ranges of {counted} layers" if model else self._too_few()

    def round(self, progress: Progress) -> tuple[GraphModule | None, str]:
        """Weights rounded for the least error, and biases with them."""
        counted = 0

        def visit(step: Step) -> None:
            nonlocal counted
            counted += round_weights(step, None if self.plan.thorough else _LARGEST)
            correct_bias(step)

        model = self._walk(visit, progress)
        if model is None:
            return None, self._too_few()
        return model, f"the weights of {counted} layers on {len(self.fitted)} samples, biases with them"

    def bias(self, progress: Progress) -> tuple[GraphModule | None, str]:
        """Biases alone, unless rounding has corrected them."""
        if any(result.method == ROUND and result.kept for result in self.results):
            return None, "done with the rounding of the weights"
        model = self._walk(correct_bias, progress)
        if model is None:
            return None, self._too_few()
        return model, f"{len(layers_of(model))} biases on {len(self.fitted)} samples"

    def _too_few(self) -> str:
        return f"not with {len(self.samples)} samples: at least {_ENOUGH} are needed"

    def _walk(self, visit: Callable[[Step], object], progress: Progress) -> GraphModule | None:
        if len(self.samples) < _ENOUGH:
            return None
        model = copied(self.model)
        Walk(model, self.fitted, MANY if self.plan.thorough else SOME).run(visit, progress)
        return model


_METHODS: dict[str, Callable[[Methods, Progress], tuple[GraphModule | None, str]]] = {
    RANGES: Methods.ranges,
    CLIP: Methods.clip,
    ROUND: Methods.round,
    BIAS: Methods.bias,
}
KNOWN = tuple(_METHODS)
_FITTED = (CLIP, ROUND, BIAS)  # to samples, by more than a choice


def spread_over(samples: Sequence[Sample], count: int) -> list[Sample]:
    """So many of the samples, from all over the data, which may be sorted by class."""
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]


def _with_mirrored(samples: Sequence[Sample], room: int) -> list[Sample]:
    """So many samples, and where there is room those that pictures mirrored make."""
    some = spread_over(samples, room)
    return some + spread_over(mirrored(some), room - len(some))


def _unique(items: Iterable[object]) -> list[object]:
    return list({id(item): item for item in items}.values())


def _set_choices(found: Iterable[RangeObserver], choices: Iterable[str]) -> None:
    for observer, choice in zip(found, choices, strict=True):
        observer.choice = choice
