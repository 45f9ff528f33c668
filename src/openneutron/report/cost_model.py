"""How good the cycle estimates are: their parameters, and published times beside them.

`published.json` is written by `python -m openneutron.bench.published`, from the chips' files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from openneutron.targets.chip import Target


@dataclass(frozen=True)
class Measurement:
    """A published time, and what we estimate for it."""

    target: str
    network: str
    layer: str  # empty: all of it
    on: str  # npu or cpu
    weights_in_flash: bool
    microseconds: float
    published_cycles: int
    estimated_cycles: int
    fitted: bool  # whether the parameters were fitted to it
    set_aside: str  # why its error does not count for the band
    source: str

    @property
    def error(self) -> float:
        """The estimate's relative error."""
        return self.estimated_cycles / self.published_cycles - 1

    @property
    def model(self) -> str:
        """The network and what of it was measured."""
        flash = "weights in flash" if self.weights_in_flash else ""
        return ", ".join(part for part in (self.network, self.layer, flash) if part)


@cache
def measurements() -> tuple[Measurement, ...]:
    """All published times, of all chips."""
    rows = json.loads((files(__package__) / "published.json").read_text())
    return tuple(Measurement(**row) for row in rows)


@dataclass(frozen=True)
class Band:
    """The range of errors on published times that nothing was fitted to."""

    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.low:+.0%} to {self.high:+.0%}"

    def around(self, estimate: float) -> tuple[float, float]:
        """What the true figure is, if the estimate is off by what it was off before."""
        return estimate / (1 + self.high), estimate / (1 + self.low)


def band(on: str, layers: bool = False) -> Band:
    """The band of the NPU's estimates or the CPU's; of whole networks, or of the CPU's single layers."""
    errors = [
        m.error
        for m in measurements()
        if m.on == on and not m.fitted and not m.set_aside and (on == "npu" or bool(m.layer) == layers)
    ]
    return Band(min(errors), max(errors), len(errors))


def describe_cost_model(target: Target) -> dict[str, Any]:
    """The model's parameters and errors, for reports."""
    bands = {"npu": band("npu"), "cpu": band("cpu"), "cpu_layers": band("cpu", layers=True)}
    return {
        "parameters": {
            name: {"value": value, "unit": unit, "source": source}
            for name, value, unit, source in target.cost.table()
        },
        "validation": [
            {
                "target": m.target,
                "model": m.model,
                "on": m.on,
                "published_cycles": m.published_cycles,
                "estimated_cycles": m.estimated_cycles,
                "error": round(m.error, 4),
                "fitted": m.fitted,
                "set_aside": m.set_aside,
                "source": m.source,
            }
            for m in measurements()
        ],
        "bands": {
            name: {"low": round(b.low, 4), "high": round(b.high, 4), "count": b.count}
            for name, b in bands.items()
        },
        "label": error_label(target),
    }


def error_label(target: Target | None = None) -> str:
    """The sentence every estimate is shown with."""
    npu, cpu, layers = band("npu"), band("cpu"), band("cpu", layers=True)
    fitted = [m for m in measurements() if m.fitted]
    worst = max(abs(m.error) for m in fitted)
    invented = f"{invented_label(target)} " if target is not None and target.invented else ""
    return (
        f"{invented}Estimated, not measured: the NPU's cycles were {npu} off {npu.count} published times "
        f"that nothing was fitted to (within {worst:.0%} of the {len(fitted)} that were used), the CPU's "
        f"{cpu} off {cpu.count} networks and {layers} off {layers.count} single layers."
    )


def error_range(invented: str = "") -> str:
    """The same in a few words, for a terminal."""
    begin = "of an INVENTED chip, " if invented else ""
    return f"{begin}estimated; off published times by {band('npu')} on the NPU, {band('cpu')} on the CPU"


def invented_label(target: Target) -> str:
    """What to say with every figure of a chip that does not exist."""
    return f"INVENTED CHIP, {target.name} does not exist: {target.invented}."
