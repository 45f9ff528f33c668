"""Ranges chosen tensor by tensor, by what they do to the model's outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch.fx import GraphModule

from openneutron.quantize.measure import Run, quality, quantized_run
from openneutron.quantize.observer import CHOICES, RangeObserver
from openneutron.quantize.prepared import Sample, observers

_GAIN_DB = 0.05


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
