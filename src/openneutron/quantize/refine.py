"""Calibration, and the accuracy methods in their order, on a model with observers in place.

Each method is tried on a copy and kept only if the outputs are nearer to float for it, on samples that it was
not fitted to where there are enough; what it did is said either way.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from openneutron.diagnostics import fail
from openneutron.quantize.bias import correct_bias
from openneutron.quantize.channels import channels_of
from openneutron.quantize.clip import clip_weights
from openneutron.quantize.equalize import Equalized, equalize
from openneutron.quantize.measure import Quality, Run, float_run, quality, quantized_run
from openneutron.quantize.observer import CHOICES, MSE, RangeObserver
from openneutron.quantize.plan import (
    BALANCED,
    BIAS,
    CLIP,
    EQUALIZE,
    RANGES,
    ROUND,
    AccuracyPlan,
    find_plan,
)
from openneutron.quantize.prepared import Sample, in_float, layers_of, observers
from openneutron.quantize.ranges import choose_each
from openneutron.quantize.rounding import round_weights
from openneutron.quantize.samples import Kept
from openneutron.quantize.walk import Step, Walk, live_bytes

_MEMORY = 1 << 30  # bytes of results that a walk may hold
_TRIED = 4  # samples that equalization is tried on, before anything else
_MEASURED = 8  # samples the outputs are measured on
_FITTED = 16  # samples the methods of the balanced plan are fitted to
_ENOUGH = 4  # fewer samples say nothing about the mean of a channel
_LIMIT = 60.0  # seconds for choices made tensor by tensor
_LARGEST = 512  # inputs of an output channel whose weights the balanced plan still rounds
_DOUBT_DB = 0.3  # by which another range than that of least squares must be better
_GAIN_DB = 0.1  # less is chance
_GOOD_DB = {True: 40.0, False: 36.0}  # by thoroughness: as good as eight bits make it, nothing is tried

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


@dataclass
class Refined:
    """What was done for the accuracy of a model, and how good its outputs are on calibration data."""

    plan: str
    results: list[MethodResult] = field(default_factory=list)
    quality: Quality | None = None
    # The model the methods that change weights began with: equalized, and in float still exact.
    reference: GraphModule | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """For summaries and reports; JSON has no infinity, so that an error of zero is null."""
        return {
            "plan": self.plan,
            "methods": [{k: _finite(v) for k, v in asdict(result).items()} for result in self.results],
            "output_sqnr_db": None if self.quality is None else _finite(self.quality.output_db),
            "per_output_sqnr_db": [
                _finite(db) for db in (self.quality.per_output_db if self.quality is not None else ())
            ],
            "agreement": None if self.quality is None else self.quality.agreement,
            "samples": 0 if self.quality is None else self.quality.samples,
        }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def calibrate(
    prepared: GraphModule,
    samples: Iterable[Sample],
    accuracy: str | AccuracyPlan = BALANCED,
    progress: Progress = lambda part: None,
    measure: bool = True,
) -> tuple[GraphModule, Refined]:
    """The model with observers filled and the plan's methods applied where they help; what they did."""
    plan, stream = find_plan(accuracy), iter(samples)
    first = Kept.first_of(stream) if EQUALIZE in plan.methods else list(islice(stream, 1))
    if not first:
        fail("ON209", "calibration", "there are no calibration inputs", "Give at least one tuple of inputs.")
    results = []
    if EQUALIZE in plan.methods:
        prepared, result = _equalized(prepared, first, plan.thorough)
        results.append(result)
    kept = Kept()
    observe(prepared, kept.watch(chain(first, stream)))
    if not measure and not plan.methods:
        return prepared, Refined(plan.name, results)
    model, refined = refine(prepared, kept.samples, plan, progress)
    return model, Refined(plan.name, [*results, *refined.results], refined.quality, prepared)


def _equalized(
    prepared: GraphModule, samples: Sequence[Sample], thorough: bool
) -> tuple[GraphModule, MethodResult]:
    """The equalized model, if it is better on a few samples."""
    start = time.monotonic()
    everything, samples = samples, _spread_over(samples, _TRIED)
    observe(prepared, samples)
    exact = float_run(prepared, samples)
    before = best = quality(exact, quantized_run(prepared, samples)).sqnr_db
    chosen, what = prepared, Equalized(0, 0, 1.0)
    channels = channels_of(prepared)
    trials = channels.outputs and before < _GOOD_DB[thorough]
    # What a clamp cuts on one sample in a hundred must not be taken for what it never cuts.
    for known in (reached(prepared, everything if channels.clamps else samples), {}) if trials else ():
        trial = copy.deepcopy(prepared)
        names = {node.name: node for node in trial.graph.nodes}
        done = equalize(trial, {names[n.name]: top for n, top in known.items()} if known else None)
        if not done.channels:
            continue
        observe(trial, samples)
        score = quality(exact, quantized_run(trial, samples)).sqnr_db
        if score > best + _GAIN_DB:
            chosen, what, best = trial, done, score
    text = (
        f"{what.channels:,} channels of {what.layers} layers scaled by up to {what.largest:.3g}"
        if what.channels
        else "no scaling of channels helps"
        if trials
        else "nothing to scale"
    )
    kept = chosen is not prepared
    return chosen, MethodResult(EQUALIZE, text, before, best, kept, time.monotonic() - start)


def observe(prepared: GraphModule, samples: Iterable[Sample]) -> None:
    """Let the observers see samples, and nothing but them."""
    for observer in observers(prepared).values():
        if isinstance(observer, RangeObserver):
            observer.reset()
        elif hasattr(observer, "reset_min_max_vals"):
            observer.reset_min_max_vals()
    with torch.no_grad():
        for sample in samples:
            prepared(*sample)


def refine(
    prepared: GraphModule,
    samples: Sequence[Sample],
    plan: AccuracyPlan,
    progress: Progress = lambda part: None,
) -> tuple[GraphModule, Refined]:
    """The model with the plan's methods applied, where they help, and what they did."""
    work = _Work(prepared, samples, plan)
    methods = [method for method in plan.methods if method in _METHODS]
    parts = len(methods) or 1
    for done, method in enumerate(methods):
        work.run(method, lambda part, done=done: progress((done + part) / parts))  # type: ignore[misc]
    progress(1.0)
    return work.model, Refined(plan.name, work.results, work.quality)


class _Work:
    def __init__(self, prepared: GraphModule, samples: Sequence[Sample], plan: AccuracyPlan):
        self.model = prepared
        self.samples = list(samples)
        self.plan = plan
        few = min(_MEASURED, len(self.samples) // 4) if len(self.samples) >= 8 else len(self.samples)
        self.measured = _spread_over(self.samples, few)
        chosen = {id(sample) for sample in self.measured}
        fitted = [sample for sample in self.samples if id(sample) not in chosen] or self.samples
        room = max(1, _MEMORY // max(1, live_bytes(prepared)))
        self.fitted = _spread_over(fitted, min(room, len(fitted) if plan.thorough else _FITTED))
        self.exact: Run = float_run(prepared, self.measured)
        self.quality = self._measure(prepared)
        self.results: list[MethodResult] = []
        self.uncorrected = prepared  # before biases were corrected, which rounding does by itself

    def _measure(self, model: GraphModule) -> Quality:
        return quality(self.exact, quantized_run(model, self.measured))

    def run(self, method: str, progress: Progress) -> None:
        start, before = time.monotonic(), self.quality.sqnr_db
        trial, text = None, "not needed: as good as eight bits make it"
        if before < _GOOD_DB[self.plan.thorough]:
            trial, text = _METHODS[method](self, progress)
        after = self.quality if trial is None else self._measure(trial)
        kept = trial is not None and _is_better(after.sqnr_db, before)
        if kept:
            assert trial is not None
            if method == BIAS:
                self.uncorrected = self.model
            self.model, self.quality = trial, after
            if method != BIAS:
                self.uncorrected = trial
        seconds = time.monotonic() - start
        self.results.append(MethodResult(method, text, before, after.sqnr_db, kept, seconds))

    def ranges(self, progress: Progress) -> tuple[GraphModule | None, str]:
        found = [o for o in _unique(observers(self.model).values()) if isinstance(o, RangeObserver)]
        if not found:
            return None, "no range is observed"
        model = copy.deepcopy(self.model)
        scores: dict[str, float] = {}
        for choice in CHOICES:
            _set_choice(model, choice)
            scores[choice] = self._measure(model).sqnr_db
        best = max(scores, key=lambda choice: scores[choice] + (_DOUBT_DB if choice == MSE else 0.0))
        _set_choice(model, best)
        text = ", ".join(f"{choice} {db:.1f} dB" for choice, db in scores.items())
        if not self.plan.thorough:
            return (None if best == MSE else model), text
        count = choose_each(model, self.exact, self.measured, _LIMIT, progress)
        return model, f"{text}; {count} tensors by themselves"

    def clip(self, progress: Progress) -> tuple[GraphModule | None, str]:
        counted = 0

        def visit(step: Step) -> None:
            nonlocal counted
            counted += clip_weights(step)

        model = self._walk(self.model, visit, progress)
        return model, f"the weight ranges of {counted} layers" if model else self._too_few()

    def bias(self, progress: Progress) -> tuple[GraphModule | None, str]:
        model = self._walk(self.model, correct_bias, progress)
        if model is None:
            return None, self._too_few()
        return model, f"{len(layers_of(model))} biases on {len(self.fitted)} samples"

    def round(self, progress: Progress) -> tuple[GraphModule | None, str]:
        counted = 0

        def visit(step: Step) -> None:
            nonlocal counted
            counted += round_weights(step, None if self.plan.thorough else _LARGEST)
            correct_bias(step)

        model = self._walk(self.uncorrected, visit, progress)
        if model is None:
            return None, self._too_few()
        return model, f"the weights of {counted} layers on {len(self.fitted)} samples"

    def _too_few(self) -> str:
        return f"not with {len(self.samples)} samples: at least {_ENOUGH} are needed"

    def _walk(
        self, model: GraphModule, visit: Callable[[Step], object], progress: Progress
    ) -> GraphModule | None:
        if len(self.samples) < _ENOUGH:
            return None
        model = copy.deepcopy(model)
        Walk(model, self.fitted).run(visit, progress)
        return model


_METHODS: dict[str, Callable[[_Work, Progress], tuple[GraphModule | None, str]]] = {
    RANGES: _Work.ranges,
    CLIP: _Work.clip,
    BIAS: _Work.bias,
    ROUND: _Work.round,
}


def _spread_over(samples: Sequence[Sample], count: int) -> list[Sample]:
    """So many of the samples, from all over the data, which may be sorted by class."""
    count = min(count, len(samples))
    return [samples[i * len(samples) // count] for i in range(count)]


def _is_better(after: float, before: float) -> bool:
    return after > before + _GAIN_DB or (math.isinf(after) and after > 0)


def _unique(items: Iterable[object]) -> list[object]:
    return list({id(item): item for item in items}.values())


def _set_choice(model: GraphModule, choice: str) -> None:
    for observer in observers(model).values():
        if isinstance(observer, RangeObserver):
            observer.choice = choice


def reached(prepared: GraphModule, samples: Sequence[Sample]) -> dict[Node, Tensor]:
    """Of every layer's end, the largest size of each channel's values; of every clamp, of what it reads."""
    clamps = set(channels_of(prepared).clamps)
    ends = {layer.end for layer in layers_of(prepared)} - clamps
    found: dict[Node, Tensor] = {}

    class Looking(Interpreter):
        def run_node(self, n: Node) -> object:
            result = super().run_node(n)
            source = n.args[0] if n in clamps else None
            value = self.env[source] if isinstance(source, Node) else result.abs() if n in ends else None
            if isinstance(value, Tensor) and value.ndim >= 2:
                top = value.movedim(1, 0).flatten(1).amax(1)
                found[n] = torch.maximum(found[n], top) if n in found else top
            return result

    with torch.no_grad(), in_float(prepared):
        runner = Looking(prepared)
        for sample in samples:
            runner.run(*sample)
    return found
