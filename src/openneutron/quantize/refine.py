"""Calibration, and the accuracy methods in their order, on a model with observers in place.

Each method is tried on a copy and kept only if the outputs are nearer to float for it, on samples that
nothing was observed on or fitted to; what it did is said either way.
"""

from __future__ import annotations

import math
import random
import resource
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from torch.fx import GraphModule

from openneutron import ops
from openneutron.diagnostics import fail
from openneutron.quantize.accuracy_methods.judged import JudgedModel, MethodResult, Progress
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

FOLDED = 8  # fewer samples are too few to keep some back for good
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
    peak_bytes: int = 0  # of memory that the process has had by then
    kept_float: dict[str, Any] | None = None  # layers left in float, and what that gives and costs
    fitted: int = 0  # samples that were calibrated with
    folded: bool = False  # they were too few to keep some back: each half judged the other
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
    they give there, and every figure is of it. A few samples are folded: each half judges the other.
    """
    plan, stream = find_plan(accuracy), iter(samples)
    first = Kept.first_of(stream)
    if not first:
        fail("ON209", "calibration", "there are no calibration inputs", "Give at least one tuple of inputs.")
    if not measure and not plan.methods:
        observe(prepared, Kept().watch(chain(first, stream)))
        return prepared, Refined(plan.name)
    if len(first) < FOLDED:
        return _folded(prepared, first, plan, progress)
    fitted, held = kept_back(first)
    model, refined, _ = _fitted(prepared, chain(fitted, stream), held, plan, progress)
    return model, refined


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


def _folded(
    prepared: GraphModule, samples: list[Sample], plan: AccuracyPlan, progress: Progress
) -> tuple[GraphModule, Refined]:
    """Every half judges a model fitted to the other; a method that helps both is used on all samples."""
    for index, sample in enumerate(samples):
        check_sample(sample, index)
    if len(samples) == 1:  # nothing can be said about other inputs, and nothing can be chosen by it
        model, refined, _ = _fitted(prepared, samples, [], plan, progress, frozenset())
        return model, _judging_all(refined, samples)
    half = len(samples) // 2
    folds = [
        _fitted(copied(prepared), fitted, held, plan, lambda part, n=n: progress((n + part) / 3))  # type: ignore[misc]
        for n, (fitted, held) in enumerate(
            ((samples[:half], samples[half:]), (samples[half:], samples[:half]))
        )
    ]
    helped = [{r.method for r in refined.results if r.kept} for _, refined, _ in folds]
    model, refined, _ = _fitted(prepared, samples, [], plan, progress, frozenset(helped[0] & helped[1]))
    judged = [judged for _, _, judged in folds]
    exact, found = (_joined([side for pair in judged for side in pair[i : i + 1]]) for i in (0, 1))
    figure = joined([refined.quality for _, refined, _ in folds if refined.quality is not None])
    results = [replace(result, kept=result.method in helped[0] & helped[1]) for result in folds[0][1].results]
    parts = part_errors(model, exact, found, samples[half:] + samples[:half])
    refined = replace(refined, quality=figure, results=results, folded=True, parts=parts)
    return model, _judging_all(refined, samples)


def _judging_all(refined: Refined, samples: list[Sample]) -> Refined:
    """With all samples for what is still to be chosen, where none could be kept back."""
    assert refined.original is not None
    return replace(refined, held=samples, exact=float_run(refined.original, samples))


def _joined(runs: Sequence[Run]) -> Run:
    return Run([row for run in runs for row in run.outputs], [row for run in runs for row in run.scores])


def _fitted(
    prepared: GraphModule,
    samples: Iterable[Sample],
    held: list[Sample],
    plan: AccuracyPlan,
    progress: Progress,
    chosen: frozenset[str] | None = None,
) -> tuple[GraphModule, Refined, tuple[Run, Run]]:
    """The model calibrated and refined on samples and judged on others, or with the methods that are chosen.

    What it should give for the others, and what it gives, comes with it.
    """
    kept, original = Kept(), copied(prepared) if plan.methods else prepared
    for index, sample in enumerate(held):
        check_sample(sample, index)
    observe(prepared, kept.watch(samples))
    tell_functions(prepared)
    for observer in kept_whole(prepared, ops.find):
        observer.choice = MINMAX
    work = JudgedModel(prepared, kept.samples, held, plan, original, chosen)
    for done, method in enumerate(plan.methods):
        work.run(method, lambda part, done=done: progress((done + part) / len(plan.methods)))  # type: ignore[misc]
    progress(1.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    exact, found = work.judged()
    parts = part_errors(work.model, exact, found, work.measured)
    refined = Refined(
        plan.name, work.results, work.shown, work.reference, original, peak, fitted=kept.seen, parts=parts,
        held=work.measured, exact=exact,
    )  # fmt: skip
    return work.model, refined, (exact, found)
