"""A calibrated model on its way through the methods, each kept only if the outputs are nearer to float.

A method is the file of its name here, with `apply`, which works on a copy; `plan.METHODS` lists them.

What a method is fitted to and what it is judged on are different samples. How many of each depends on what
running the model costs: a small network is measured on many, a large one on a few.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from torch.fx import GraphModule

from openneutron.quantize.annotation.observer import RangeObserver
from openneutron.quantize.plan import EQUALIZE, RANGES, WEIGHT_METHODS, AccuracyPlan
from openneutron.quantize.prepared_model.copies import copied
from openneutron.quantize.prepared_model.model import Sample, observers
from openneutron.quantize.prepared_model.quality import (
    Quality,
    Run,
    chosen_by_others,
    compared,
    float_run,
    joined,
    quality,
    quantized_run,
)
from openneutron.quantize.prepared_model.walk import MANY, SOME, Step, Walk, affordable, live_bytes, work_of
from openneutron.quantize.samples import mirrored, spread_over

_MEMORY = {True: 2 << 30, False: 1 << 30}  # by thoroughness: bytes of results that a walk may hold
_ENOUGH = 4  # fewer samples say nothing about the mean of a channel
GAIN_DB = 0.1  # less is chance
GOOD_DB = {True: 40.0, False: 36.0}  # by thoroughness: above this nothing is tried
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


class Method(Protocol):
    """What a method's file provides."""

    def apply(self, judged: JudgedModel, progress: Progress) -> tuple[GraphModule | None, str]:
        """A changed copy of `judged.model`, or None; and what was done to it, or why nothing was."""


def find_method(name: str) -> Method:
    """The method of that name, one of `plan.METHODS`."""
    return cast(Method, import_module(f"{__package__}.{name}"))


@dataclass(frozen=True)
class Attempt:
    """What a method made of a model, if anything, and how good it is on the samples kept back."""

    model: GraphModule | None
    text: str
    run: Run
    quality: Quality | None


class JudgedModel:
    """A calibrated model on its way through the methods.

    Samples are what methods are fitted to; `held` are others, which decide whether a method is kept. Without
    them there is nothing to decide.
    """

    def __init__(
        self,
        prepared: GraphModule,
        samples: Sequence[Sample],
        held: Sequence[Sample],
        plan: AccuracyPlan,
        original: GraphModule,
    ):
        self.original = original  # in float, what the outputs should be
        self.model = self.reference = prepared
        self.samples = list(samples)
        self.plan = plan
        self.taken: list[str] = []  # methods that were kept
        most = affordable(prepared, 96 << 20, 8, 16)
        self.measured = spread_over(held, most)
        room = max(1, _MEMORY[plan.thorough] // max(1, live_bytes(prepared)))
        if not plan.thorough:
            room = min(room, affordable(prepared, 512 << 20, 8, 32))
        self.fitted = _with_mirrored(self.samples, room) if plan.thorough else spread_over(self.samples, room)
        self.exact: Run = float_run(original, self.measured)
        self._run = quantized_run(prepared, self.measured)
        self.quality: Quality | None = quality(self.exact, self._run) if held else None
        self.shown = self.quality  # the figure of samples that had no part in the choices
        self.good_db = _SMALL_GOOD_DB if is_small(prepared) else GOOD_DB[plan.thorough]

    def judge(self, model: GraphModule) -> Quality:
        """How good a model is on the samples kept back."""
        if model is self.model and self.quality is not None:
            return self.quality
        return quality(self.exact, quantized_run(model, self.measured))

    def judged(self) -> tuple[Run, Run]:
        """What the model should give for the samples kept back, and what it gives."""
        return self.exact, self._run

    def without_margins(self) -> Quality:
        """How good the model is on samples kept back if ranges end where the samples fitted to do."""
        found = [o for o in observers(self.model).values() if isinstance(o, RangeObserver)]
        for observer in found:
            observer.let_have_margin(False)
        run = quantized_run(self.model, self.measured)
        for observer in found:
            observer.let_have_margin(True)
        return quality(self.exact, run)

    def attempt(self, method: str, progress: Progress) -> Attempt:
        """Try one method on a copy."""
        trial, text = find_method(method).apply(self, progress)
        if trial is None:
            return Attempt(None, text, self._run, self.quality)
        run = quantized_run(trial, self.measured)
        return Attempt(trial, text, run, quality(self.exact, run) if self.measured else None)

    def take(self, method: str, attempt: Attempt) -> None:
        """Go on with what a method has made."""
        if attempt.model is not None:
            self.taken.append(method)
            self.model, self.quality, self._run = attempt.model, attempt.quality, attempt.run
            self.reference = self.model if method == EQUALIZE else self.reference

    def fitted_anew(self, model: GraphModule) -> GraphModule:
        """Another model, whose weights are as they were given, with what was done to those of this one."""
        other = copy(self)
        other.model = model
        for method in self.taken:
            if method in WEIGHT_METHODS and other.samples:
                changed, _ = find_method(method).apply(other, lambda part: None)
                other.model = changed or other.model
        return other.model

    def told_by_fitted(self) -> Quality | None:
        """The figure to show: those kept back may be easier than others, which samples fitted to tell."""
        if self.shown is None:
            return None
        others = spread_over(self.samples, 3 * len(self.measured))
        found = quality(float_run(self.original, others), quantized_run(self.model, others))
        return compared(self.shown, found)

    def too_few(self) -> str:
        """Why nothing was tried."""
        return f"not with {len(self.samples)} samples: at least {_ENOUGH} are needed"

    def walk(self, visit: Callable[[Step], object], progress: Progress) -> GraphModule | None:
        """A copy in which every layer was visited with what it gets and should give; None without samples."""
        if len(self.samples) < _ENOUGH:
            return None
        model = copied(self.model)
        Walk(model, self.fitted, MANY if self.plan.thorough else SOME).run(visit, progress)
        return model


def is_small(prepared: GraphModule) -> bool:
    """Whether running a model costs so little that more is tried."""
    return work_of(prepared) < _SMALL


def run_method(
    judged: Sequence[JudgedModel], method: str, shown: Quality, progress: Progress
) -> tuple[MethodResult, Quality]:
    """Try one method on a model, or on folds of one: what all samples kept back say is done in all of them.

    What was done, and the figure to show for these samples.
    """
    start, before = time.monotonic(), joined([j.quality for j in judged if j.quality is not None])
    if before.together_db >= judged[0].good_db:
        text = "not needed: already above the threshold"
        return MethodResult(method, text, before.sqnr_db, before.sqnr_db, False, 0.0), shown
    attempts = [
        j.attempt(method, lambda part, n=n: progress((n + part) / len(judged)))  # type: ignore[misc]
        for n, j in enumerate(judged)
    ]
    kept, after = False, before
    if any(a.model is not None for a in attempts):
        after = joined([a.quality for a in attempts if a.quality is not None])
        # Ranges are chosen, not fitted: what is better by chance is no worse on other samples.
        rule = (0.0, 0.0) if method == RANGES else (GAIN_DB, 1.0)
        shown = chosen_by_others(shown, before, after, *rule)
        kept = after.is_better_than(before, *rule)
    for one, attempt in zip(judged, attempts, strict=True) if kept else ():
        one.take(method, attempt)
    seconds = time.monotonic() - start
    text = next((a.text for a in attempts if a.model is not None), attempts[0].text)
    return MethodResult(method, text, before.sqnr_db, after.sqnr_db, kept, seconds), shown


def _with_mirrored(samples: Sequence[Sample], room: int) -> list[Sample]:
    """So many samples, and where there is room those that images mirrored make."""
    some = spread_over(samples, room)
    return some + spread_over(mirrored(some), room - len(some))
