"""The methods that work on a calibrated model, each on a copy, kept only if the outputs are nearer to float.

What a method is fitted to and what it is judged on are different samples. How many of each depends on what
running the model costs: a small network is measured on many, a large one on a few.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch.fx import GraphModule

from openneutron import ops
from openneutron.quantize.bias import correct_bias
from openneutron.quantize.borders import kept_whole
from openneutron.quantize.clip import clip_weights
from openneutron.quantize.copies import copied
from openneutron.quantize.effect import measure_effects
from openneutron.quantize.measure import Quality, Run, float_run, quality, quantized_run
from openneutron.quantize.observer import EFFECT, MINMAX, RangeObserver
from openneutron.quantize.plan import BIAS, CLIP, EQUALIZE, RANGES, ROUND, AccuracyPlan
from openneutron.quantize.prepared import Sample, layers_of, observers
from openneutron.quantize.ranges import choose_each
from openneutron.quantize.rounding import round_weights
from openneutron.quantize.samples import mirrored, spread_over
from openneutron.quantize.scaling import equalized
from openneutron.quantize.walk import MANY, SOME, Step, Walk, affordable, live_bytes, work_of

_MEMORY = {True: 2 << 30, False: 1 << 30}  # by thoroughness: bytes of results that a walk may hold
_ENOUGH = 4  # fewer samples say nothing about the mean of a channel
_LIMIT = 60.0  # seconds for choices made tensor by tensor
_LARGEST = 1536  # inputs of an output channel whose weights the balanced plan still rounds
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


class Methods:
    """A calibrated model on its way through the methods.

    Samples are what methods are fitted to; `held` are others, which decide whether a method is kept. With
    `chosen` there is nothing to decide: those methods are applied, and no others.
    """

    def __init__(
        self,
        prepared: GraphModule,
        samples: Sequence[Sample],
        held: Sequence[Sample],
        plan: AccuracyPlan,
        original: GraphModule,
        chosen: frozenset[str] | None = None,
    ):
        self.original = original  # in float, what the outputs should be
        self.model = self.reference = prepared
        self.samples = list(samples)
        self.plan = plan
        self.chosen = chosen
        self.results: list[MethodResult] = []
        most = affordable(prepared, 96 << 20, 8, 16)
        self.measured = spread_over(held, most)
        room = max(1, _MEMORY[plan.thorough] // max(1, live_bytes(prepared)))
        if not plan.thorough:
            room = min(room, affordable(prepared, 512 << 20, 8, 32))
        self.fitted = _with_mirrored(self.samples, room) if plan.thorough else spread_over(self.samples, room)
        self.exact: Run = float_run(original, self.measured)
        self.quality: Quality | None = self.judge(prepared) if held else None
        self.good_db = _SMALL_GOOD_DB if work_of(prepared) < _SMALL else GOOD_DB[plan.thorough]

    def judge(self, model: GraphModule) -> Quality:
        """How good a model is on the samples kept back."""
        return quality(self.exact, quantized_run(model, self.measured))

    def judged(self) -> tuple[Run, Run]:
        """What the model should give for the samples kept back, and what it gives."""
        return self.exact, quantized_run(self.model, self.measured)

    def run(self, method: str, progress: Progress) -> None:
        """Try one method."""
        start, before = time.monotonic(), self.quality
        if self.chosen is not None:
            trial = _METHODS[method](self, progress)[0] if method in self.chosen else None
            self.model = trial or self.model
            self.reference = self.model if method == EQUALIZE else self.reference
            return
        assert before is not None
        trial, text = None, "not needed: as good as eight bits make it"
        if before.sqnr_db < self.good_db:
            trial, text = _METHODS[method](self, progress)
        after = before if trial is None else self.judge(trial)
        # Ranges are chosen, not fitted: what is better by chance is no worse on other samples.
        gain = (
            after.sqnr_db - before.sqnr_db > 0 if method == RANGES else after.is_better_than(before, GAIN_DB)
        )
        kept = trial is not None and gain
        if kept:
            assert trial is not None
            self.model, self.quality = trial, after
            self.reference = trial if method == EQUALIZE else self.reference
        seconds = time.monotonic() - start
        self.results.append(MethodResult(method, text, before.sqnr_db, after.sqnr_db, kept, seconds))

    def equalize(self, progress: Progress) -> tuple[GraphModule | None, str]:
        """Channels scaled across layers."""
        if not self.measured:  # it was better on folds, and the way is chosen by those it is fitted to
            self.exact, self.measured = float_run(self.original, self.samples[:4]), self.samples[:4]
            found, _, text = equalized(self.model, self.samples, self.judge, self.plan.thorough)
            self.exact, self.measured = Run([], []), []
            return found, text
        found, _, text = equalized(self.model, self.samples, self.judge, self.plan.thorough)
        return found, text

    def ranges(self, progress: Progress) -> tuple[GraphModule | None, str]:
        """Ranges by what they do at the outputs; thoroughly, also tried one by one."""
        model = copied(self.model)
        some = spread_over(self.fitted, 24)
        told = measure_effects(model, some)
        chosen = [o for o in _unique(observers(model).values()) if isinstance(o, RangeObserver)]
        if not told:
            return None, "no range is observed"
        whole = kept_whole(model, ops.find)
        for observer in chosen:
            observer.choice = MINMAX if observer in whole else EFFECT
        text = f"the ranges of {told} tensors by what they do at the outputs"
        if not self.plan.thorough:
            return model, text
        count = choose_each(model, float_run(self.original, some), some, _LIMIT, progress)
        return model, f"{text}; {count} by trial"

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
    EQUALIZE: Methods.equalize,
    RANGES: Methods.ranges,
    CLIP: Methods.clip,
    ROUND: Methods.round,
    BIAS: Methods.bias,
}


def _with_mirrored(samples: Sequence[Sample], room: int) -> list[Sample]:
    """So many samples, and where there is room those that pictures mirrored make."""
    some = spread_over(samples, room)
    return some + spread_over(mirrored(some), room - len(some))


def _unique(items: Iterable[object]) -> list[object]:
    return list({id(item): item for item in items}.values())
