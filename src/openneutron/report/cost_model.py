"""How good the cycle estimates are: their parameters, and the published measurements beside them.

`benchmarks/bench_cost_model.py` computes the estimates again and says if this table is out of date.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openneutron.target import Target


@dataclass(frozen=True)
class Measurement:
    """A whole inference measured on an i.MX RT700 at 324 MHz and published, and what we estimate for it."""

    model: str
    published_cycles: int
    estimated_cycles: int
    fitted: bool  # whether the parameters were fitted to it

    @property
    def error(self) -> float:
        """The estimate's relative error."""
        return self.estimated_cycles / self.published_cycles - 1


MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement("CifarNet", 332_748, 327_592, True),
    Measurement("DS-CNN", 186_624, 188_977, True),
    Measurement("MobileNetV1-0.25-128", 893_916, 905_684, True),
    Measurement("MobileNetV1-1.0-224, weights in flash", 17_293_824, 17_173_743, False),
)


def describe_cost_model(target: Target) -> dict[str, Any]:
    """The model's parameters and errors, for reports."""
    return {
        "parameters": {
            name: {"value": value, "unit": unit, "source": source}
            for name, value, unit, source in target.cost.table()
        },
        "validation": [
            {
                "model": m.model,
                "published_cycles": m.published_cycles,
                "estimated_cycles": m.estimated_cycles,
                "error": round(m.error, 4),
                "fitted": m.fitted,
            }
            for m in MEASUREMENTS
        ],
        "label": error_label(),
    }


def error_label() -> str:
    """The sentence every estimate is shown with."""
    worst = max(abs(m.error) for m in MEASUREMENTS if m.fitted)
    kept = [m for m in MEASUREMENTS if not m.fitted]
    count = len(MEASUREMENTS) - len(kept)
    off = " and ".join(f"{m.error:+.0%} on {m.model}, which its numbers were not fitted to" for m in kept)
    return (
        f"Estimated, not measured: within {worst:.0%} of the {count} published times the model is fitted to, "
        f"{off}; the share of the CPU rests on assumptions."
    )


def error_range() -> str:
    """The same in a few words, for a terminal."""
    worst = max(abs(m.error) for m in MEASUREMENTS)
    return f"estimated; up to {worst:.0%} off the {len(MEASUREMENTS)} published times it was made with"
