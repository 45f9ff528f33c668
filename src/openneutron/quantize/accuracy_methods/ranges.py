"""The range of every tensor, by what rounding and clipping it do at the model's outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch.fx import GraphModule

from openneutron import ops
from openneutron.quantize.accuracy_methods.judged import JudgedModel, Progress
from openneutron.quantize.annotation.borders import kept_whole
from openneutron.quantize.annotation.observer import CHOICES, EFFECT, MINMAX, RangeObserver
from openneutron.quantize.prepared_model.copies import copied
from openneutron.quantize.prepared_model.effect import measure_effects
from openneutron.quantize.prepared_model.model import Sample, observers
from openneutron.quantize.prepared_model.quality import Run, float_run, quality, quantized_run
from openneutron.quantize.samples import spread_over

_GAIN_DB = 0.05
_LIMIT = 60.0  # seconds for choices made tensor by tensor


def apply(judged: JudgedModel, progress: Progress) -> tuple[GraphModule | None, str]:
    """Choose ranges by what they do at the outputs; thoroughly, also by trying them one by one."""
    model = copied(judged.model)
    samples = spread_over(judged.fitted, 24)
    count = measure_effects(model, samples)
    if not count:
        return None, "no tensor has a known effect at the outputs"
    whole = kept_whole(model, ops.find)
    for observer in {id(o): o for o in observers(model).values()}.values():
        if isinstance(observer, RangeObserver):
            observer.choice = MINMAX if observer in whole else EFFECT
    text = f"the ranges of {count} tensors by what they do at the outputs"
    if not judged.plan.thorough:
        return model, text
    tried = choose_each(model, float_run(judged.original, samples), samples, _LIMIT, progress)
    return model, f"{text}; {tried} by trial"


def choose_each(
    prepared: GraphModule,
    exact: Run,
    samples: Sequence[Sample],
    limit: float,
    progress: Callable[[float], None] = lambda part: None,
) -> int:
    """Try every range of every tensor, those that differ most first, in place; how many were changed."""
    start = time.monotonic()
    found = {id(o): o for o in observers(prepared).values() if isinstance(o, RangeObserver) and o.seen}
    ordered = sorted(found.values(), key=_spread, reverse=True)
    ordered = [o for o in ordered if _spread(o) > 1.02]
    best = quality(exact, quantized_run(prepared, samples)).sqnr_db
    changed = 0
    for done, observer in enumerate(ordered, 1):
        first = chosen = observer.choice
        for choice in CHOICES:
            if choice == first or time.monotonic() - start > limit:
                continue
            observer.choice = choice
            score = quality(exact, quantized_run(prepared, samples)).sqnr_db
            if score > best + _GAIN_DB:
                best, chosen = score, choice
        observer.choice = chosen
        changed += chosen != first
        progress(done / len(ordered))
    return changed


def _spread(observer: RangeObserver) -> float:
    """How much the widest range of a tensor is wider than its narrowest."""
    widths = [high - low for low, high in (observer.range(choice) for choice in CHOICES)]
    return max(widths) / max(min(widths), 1e-12)
