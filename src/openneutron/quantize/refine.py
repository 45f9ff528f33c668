"""Calibration, and the accuracy methods in their order, on a model with observers in place.

Each method is tried on a copy and kept only if the outputs are nearer to float for it, on samples that it was
not fitted to where there are enough; what it did is said either way.
"""

from __future__ import annotations

import math
import resource
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from openneutron.diagnostics import fail
from openneutron.quantize.absorb import absorb
from openneutron.quantize.channels import channels_of
from openneutron.quantize.copies import copied
from openneutron.quantize.equalize import Equalized, equalize, trade_clamps
from openneutron.quantize.measure import Quality, float_run, quality, quantized_run
from openneutron.quantize.methods import (
    GOOD_DB,
    KNOWN,
    Judged,
    MethodResult,
    Methods,
    Progress,
    affordable,
    spread_over,
)
from openneutron.quantize.observer import RangeObserver
from openneutron.quantize.plan import BALANCED, EQUALIZE, AccuracyPlan, find_plan
from openneutron.quantize.prepared import Sample, in_float, layers_of, observers
from openneutron.quantize.samples import Kept

_SCALED_DB = 1.0  # the same of scaling: less is lost again when weights are rounded
_ABSORB, _SCALE, _SCALE_BY_WEIGHTS, _TRADE = range(4)  # ways of equalizing
_NOTHING = Equalized(0, 0, 1.0)
_TRADE_DB = 1.0  # by which the outputs must be better for a change of the float function


@dataclass
class Refined:
    """What was done for the accuracy of a model, and how good its outputs are on calibration data."""

    plan: str
    results: list[MethodResult] = field(default_factory=list)
    quality: Quality | None = None
    # The model the methods that change weights began with: equalized, its layers those of the result.
    reference: GraphModule | None = field(default=None, repr=False)
    original: GraphModule | None = field(default=None, repr=False)  # before everything
    peak_bytes: int = 0  # of memory that the process has had by then
    kept_float: dict[str, Any] | None = None  # layers left in float, and what that gives and costs

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
    """The model with observers filled and the plan's methods applied where they help; what they did."""
    plan, stream = find_plan(accuracy), iter(samples)
    first = Kept.first_of(stream) if EQUALIZE in plan.methods else list(islice(stream, 1))
    if not first:
        fail("ON209", "calibration", "there are no calibration inputs", "Give at least one tuple of inputs.")
    results, original, kept = [], prepared, Kept()
    judged: Judged | None = None
    if EQUALIZE in plan.methods:
        prepared, _, result, judged = equalized(prepared, first, plan.thorough)
        results.append(result)
        more = list(islice(stream, 1))
        stream, judged = chain(more, stream), judged if not more and judged.is_on(first) else None
    seen = kept.watch(chain(first, stream))
    if judged is None:
        observe(prepared, seen)
    else:  # on these samples it has been
        deque(seen, maxlen=0)
    if not measure and not plan.methods:
        return prepared, Refined(plan.name, results)
    model, refined = refine(prepared, kept.samples, plan, progress, original, judged)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = [*results, *refined.results]
    return model, Refined(plan.name, found, refined.quality, prepared, original, peak)


def equalized(
    prepared: GraphModule, samples: Sequence[Sample], thorough: bool
) -> tuple[GraphModule, Equalized, MethodResult, Judged]:
    """The equalized model, if it is better on a few samples, how it was scaled, and what that gives.

    The model is observed on these samples, of which the last result tells.
    """
    start = time.monotonic()
    most = affordable(prepared, 256 << 20, 16, len(samples))
    everything, samples = samples, spread_over(samples, affordable(prepared, 32 << 20, 3, 8))
    observe(prepared, samples)
    exact = float_run(prepared, samples)
    before = best = quality(exact, quantized_run(prepared, samples))
    chosen, what, how = prepared, _NOTHING, ""
    channels = channels_of(prepared)
    trials = channels.outputs and before.sqnr_db < GOOD_DB[thorough]
    # What a clamp cuts on one sample in a hundred must not be taken for what it never cuts.
    seen = everything if thorough else spread_over(everything, most)
    known = reached(prepared, seen if channels.clamps else samples) if trials else Reached()
    ways = [_ABSORB, _SCALE, _SCALE_BY_WEIGHTS] + [_TRADE] * (thorough and bool(channels.clamps))
    for way in ways if trials else ():
        trial = copied(prepared)
        mine = known.of(trial)
        count = trade_clamps(trial, mine.tops) if way == _TRADE else 0
        if way == _TRADE and not count:
            continue
        done = _NOTHING
        if way != _ABSORB:
            done = equalize(trial, mine.tops if way != _SCALE_BY_WEIGHTS else None)
        moved = absorb(trial, *mine.scaled(trial, done))
        if not done.channels and not moved:
            continue
        observe(trial, samples)
        score = quality(exact, quantized_run(trial, samples))
        if score.is_better_than(best, _TRADE_DB if way == _TRADE else _SCALED_DB):
            chosen, what, best = trial, done, score
            how = f"; {count} clamps (ReLU6) traded for ReLU, better at the outputs" if count else ""
            how += f"; {moved} high biases absorbed" if moved else ""
    text = (
        f"{what.channels:,} channels of {what.layers} layers scaled by up to {what.largest:.3g}{how}"
        if chosen is not prepared
        else "no scaling of channels helps"
        if trials
        else "nothing to scale"
        if not channels.outputs
        else "not needed: as good as eight bits make it"
    )
    kept = chosen is not prepared
    took = time.monotonic() - start
    result = MethodResult(EQUALIZE, text, before.sqnr_db, best.sqnr_db, kept, took)
    return chosen, what, result, Judged(list(samples), exact, best)


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
    original: GraphModule | None = None,
    judged: Judged | None = None,
) -> tuple[GraphModule, Refined]:
    """The model with the plan's methods applied, where they help, and what they did.

    `original` is the model to be near to, if that is another one; `judged` what is known of the model.
    """
    work = Methods(prepared, samples, plan, original or prepared, judged)
    methods = [method for method in plan.methods if method in KNOWN]
    parts = len(methods) or 1
    for done, method in enumerate(methods):
        work.run(method, lambda part, done=done: progress((done + part) / parts))  # type: ignore[misc]
    progress(1.0)
    return work.model, Refined(plan.name, work.results, work.quality)


@dataclass(frozen=True)
class Reached:
    """Of every channel of layers' results and of what clamps read: the largest size, and the least value."""

    tops: dict[Node, Tensor] = field(default_factory=dict)
    lows: dict[Node, Tensor] = field(default_factory=dict)

    def of(self, copied: GraphModule) -> Reached:
        """The same by the nodes of a copy."""
        names = {node.name: node for node in copied.graph.nodes}
        tops, lows = ({names[n.name]: v for n, v in side.items()} for side in (self.tops, self.lows))
        return Reached(tops, lows)

    def scaled(self, prepared: GraphModule, done: Equalized) -> tuple[dict[Node, Tensor], dict[Node, Tensor]]:
        """The least values and the largest sizes of layers' ends once their channels are scaled."""
        found: tuple[dict[Node, Tensor], dict[Node, Tensor]] = {}, {}
        for layer in layers_of(prepared):
            made, _ = done.factors.get(str(layer.weight.target), (None, None))
            factor = torch.tensor(1.0) if made is None else torch.from_numpy(made.copy())
            for side, values in zip(found, (self.lows, self.tops), strict=True):
                if layer.end in values:
                    side[layer.end] = values[layer.end] / factor
        return found


def reached(prepared: GraphModule, samples: Sequence[Sample]) -> Reached:
    """Of every layer's end, the largest size of each channel's values; of every clamp, of what it reads."""
    clamps = set(channels_of(prepared).clamps)
    ends = {layer.end for layer in layers_of(prepared)} - clamps
    found = Reached()

    class Looking(Interpreter):
        def run_node(self, n: Node) -> object:
            result = super().run_node(n)
            source = n.args[0] if n in clamps else None
            value = self.env[source] if isinstance(source, Node) else result if n in ends else None
            if isinstance(value, Tensor) and value.ndim >= 2:
                low, high = value.movedim(1, 0).flatten(1).aminmax(dim=1)
                top = high if n in clamps else torch.maximum(high, -low)
                found.tops[n] = torch.maximum(found.tops[n], top) if n in found.tops else top
                found.lows[n] = torch.minimum(found.lows[n], low) if n in found.lows else low
            return result

    with torch.no_grad(), in_float(prepared):
        runner = Looking(prepared)
        for sample in samples:
            runner.run(*sample)
    return found
