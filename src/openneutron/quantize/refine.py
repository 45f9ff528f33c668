"""Calibration, and the accuracy methods in their order, on a model with observers in place.

Each method is tried on a copy and kept only if the outputs are nearer to float for it, on samples that
nothing was observed on or fitted to; what it did is said either way.
"""

from __future__ import annotations

import math
import random
import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, islice
from typing import Any

from torch.fx import GraphModule

from openneutron import ops
from openneutron.diagnostics import fail
from openneutron.quantize.accuracy_methods.judged import (
    JudgedModel,
    MethodResult,
    Progress,
    is_small,
    run_method,
)
from openneutron.quantize.annotation.borders import kept_whole
from openneutron.quantize.annotation.observer import MINMAX
from openneutron.quantize.channel_scaling.choose import observe
from openneutron.quantize.plan import BALANCED, AccuracyPlan, find_plan
from openneutron.quantize.prepared_model.copies import copied
from openneutron.quantize.prepared_model.effect import tell_functions
from openneutron.quantize.prepared_model.model import Sample
from openneutron.quantize.prepared_model.part_errors import PartError, part_errors
from openneutron.quantize.prepared_model.quality import Quality, Run, float_run, joined
from openneutron.quantize.samples import Kept, check_sample, neighbours_are_alike

_FEW = {True: 32, False: 16}  # of a small model: fewer samples are too few to keep some back for good
_FOLDS = 4
_MOST_KEPT_BACK = 16
_RUN_OF = 16  # samples, of which a quarter is kept back


@dataclass
class Refined:
    """What was done for the accuracy of a model, and how good its outputs are on samples kept back."""

    plan: str
    results: list[MethodResult] = field(default_factory=list)
    quality: Quality | None = None
    # The model the methods that change weights began with: equalized, its layers those of the result.
    reference: GraphModule | None = field(default=None, repr=False)
    original: GraphModule | None = field(default=None, repr=False)  # before everything
    # A model with the weights of the reference, as the methods that were kept would have it.
    fitted_anew: Callable[[GraphModule], GraphModule] | None = field(default=None, repr=False)
    peak_bytes: int = 0  # of memory that the process has had by then
    kept_float: dict[str, Any] | None = None  # layers left in float, and what that gives and costs
    fitted: int = 0  # samples that were calibrated with
    folded: bool = False  # too few to keep some back: each part judged a model of the others
    parts: list[PartError] = field(default_factory=list)  # of the outputs
    over_time: dict[int, float] = field(default_factory=dict)  # of sequences: the error at frame 1, 10, ...
    held: list[Sample] = field(default_factory=list, repr=False)  # samples kept back, or all of a few
    exact: Run = field(default_factory=lambda: Run([], []), repr=False)  # what float gives for them

    def as_dict(self) -> dict[str, Any]:
        """For summaries and reports; JSON has no infinity, so that an error of zero is null."""
        return {
            "plan": self.plan,
            "methods": [{k: _finite(v) for k, v in asdict(result).items()} for result in self.results],
            "output_sqnr_db": None if self.quality is None else _finite(self.quality.output_db),
            "output_sqnr_uncertainty_db": None if self.quality is None else self.quality.uncertain_db,
            "per_output_sqnr_db": [
                _finite(db) for db in (self.quality.per_output_db if self.quality is not None else ())
            ],
            "parts": [part.as_dict() for part in self.parts],
            "agreement": None if self.quality is None else self.quality.agreement,
            "samples": 0 if self.quality is None else self.quality.samples,  # kept back, and judged on
            "calibration_samples": self.fitted,
            "folded": self.folded,
            "over_time_db": {str(frame): _finite(db) for frame, db in self.over_time.items()},
            "kept_float": self.kept_float,
            "peak_memory_bytes": self.peak_bytes,
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
    """The model with observers filled and the plan's methods applied where they help; what they did.

    A part of the samples is kept back: nothing is observed on it or fitted to it, methods are kept by what
    they give there, and every figure is of it. Of a few samples each part judges a model of the others.
    """
    plan, stream = find_plan(accuracy), iter(samples)
    first = Kept.first_of(stream)
    if not first:
        fail("ON209", "calibration", "there are no calibration inputs", "Give at least one tuple of inputs.")
    if not measure and not plan.methods:
        observe(prepared, Kept().watch(chain(first, stream)))
        return prepared, Refined(plan.name)
    following = list(islice(stream, 1))
    if len(first) < _FEW[is_small(prepared)] and not following:
        return _folded(prepared, first, plan, progress)
    fitted, held = kept_back(first)
    model = _observed(prepared, chain(fitted, following, stream), held, plan)
    results, _ = _refined([model.judged], plan, progress)
    return model.judged.model, model.told(plan, results, model.judged.told_by_fitted())


def kept_back(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The samples to fit to, and those to judge by: one of every four, since data may be sorted.

    Which of the four is drawn: in data that repeat (one of each class, and again) every fourth would be of a
    few classes only. If neighbours are alike, as parts of one image or recording are, single samples from
    between those that are fitted to would not be unseen: then it is the second four of every 16. The last
    samples are always fitted to: they may have been added because others are unlike them.
    """
    draw = random.Random(0)
    held = [start + draw.randrange(4) for start in range(0, len(samples) - 3, 4)]
    if len(samples) >= _RUN_OF and neighbours_are_alike(samples):
        held = [i for i in range(len(samples) // _RUN_OF * _RUN_OF) if i % _RUN_OF // 4 == 1]
    chosen = set(held[:_MOST_KEPT_BACK])
    return [s for i, s in enumerate(samples) if i not in chosen], [samples[i] for i in sorted(chosen)]


def folds_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Parts of the samples, each of which is kept back once: neighbours that are alike in one."""
    count = min(_FOLDS, len(samples))
    if len(samples) < _RUN_OF or neighbours_are_alike(samples):
        part_of = [i * count // len(samples) for i in range(len(samples))]
    else:
        draw = random.Random(0)
        part_of = [part for _ in range(0, len(samples), count) for part in draw.sample(range(count), count)]
    return [[i for i in range(len(samples)) if part_of[i] == part] for part in range(count)]


def _folded(
    prepared: GraphModule, samples: list[Sample], plan: AccuracyPlan, progress: Progress
) -> tuple[GraphModule, Refined]:
    """Every part judges a model fitted to the others; a method that helps there is used on all samples."""
    for index, sample in enumerate(samples):
        check_sample(sample, index)
    if len(samples) == 1:  # nothing can be said about other inputs, and nothing can be chosen by it
        final = _observed(prepared, samples, [], plan)
        return final.judged.model, _judging_all(final.told(plan, [], None), samples)
    parts = folds_of(samples)
    judged = [
        _observed(
            copied(prepared),
            [s for i, s in enumerate(samples) if i not in part],
            [samples[i] for i in part],
            plan,
        ).judged
        for part in parts
    ]
    results, shown = _refined(judged, plan, lambda part: progress(0.8 * part))
    # A range has room for what others are likely to reach; some reach further, as these would without it.
    shown = replace(shown, beyond=joined([j.without_margins() for j in judged]).outputs)
    final = _observed(prepared, samples, [], plan)
    for result in results:
        if result.kept:
            final.judged.take(result.method, final.judged.attempt(result.method, lambda part: None))
    progress(1.0)
    ordered = [samples[i] for part in parts for i in part]
    exact, found = (_joined([pair[side] for pair in (j.judged() for j in judged)]) for side in (0, 1))
    told = final.told(plan, results, shown)
    told = replace(told, folded=True, parts=part_errors(final.judged.model, exact, found, ordered))
    return final.judged.model, _judging_all(told, ordered)


def _judging_all(refined: Refined, samples: list[Sample]) -> Refined:
    """With all samples for what is still to be chosen, where none could be kept back."""
    assert refined.original is not None
    return replace(refined, held=samples, exact=float_run(refined.original, samples))


def _refined(
    judged: Sequence[JudgedModel], plan: AccuracyPlan, progress: Progress
) -> tuple[list[MethodResult], Quality]:
    """The plan's methods on a model or on folds of one: what they did, and the figure to show."""
    results: list[MethodResult] = []
    shown = joined([j.quality for j in judged if j.quality is not None])
    for done, method in enumerate(plan.methods):
        result, shown = run_method(
            judged,
            method,
            shown,
            lambda part, done=done: progress((done + part) / len(plan.methods)),  # type: ignore[misc]
        )
        results.append(result)
    for one in judged:
        one.shown = shown
    progress(1.0)
    return results, shown


def _joined(runs: Sequence[Run]) -> Run:
    return Run([row for run in runs for row in run.outputs], [row for run in runs for row in run.scores])


@dataclass(frozen=True)
class _Observed:
    """A calibrated model, and how many samples it has seen."""

    judged: JudgedModel
    seen: int

    def told(self, plan: AccuracyPlan, results: list[MethodResult], figure: Quality | None) -> Refined:
        """What was done, and what came of it."""
        judged = self.judged
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        exact, found = judged.judged()
        shifts = figure.elsewhere.shift_db if figure is not None and figure.elsewhere is not None else ()
        parts = part_errors(judged.model, exact, found, judged.measured, shifts)
        return Refined(
            plan.name,
            results,
            figure,
            judged.reference,
            judged.original,
            judged.fitted_anew,
            peak,
            fitted=self.seen,
            parts=parts,
            held=judged.measured,
            exact=exact,
        )


def _observed(
    prepared: GraphModule, samples: Iterable[Sample], held: list[Sample], plan: AccuracyPlan
) -> _Observed:
    """The model calibrated on samples, to be judged on others."""
    kept, original = Kept(), copied(prepared) if plan.methods else prepared
    for index, sample in enumerate(held):
        check_sample(sample, index)
    observe(prepared, kept.watch(samples))
    tell_functions(prepared)
    for observer in kept_whole(prepared, ops.find):
        observer.choice = MINMAX
    return _Observed(JudgedModel(prepared, kept.samples, held, plan, original), kept.seen)
