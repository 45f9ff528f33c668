"""An estimate for a delegate whose microcode is not public, from the LiteRT graph it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openneutron.compiler.microcode.cost import costs_of
from openneutron.compiler.microcode.format import decode
from openneutron.options import CompileOptions
from openneutron.run.litert import load_litert
from openneutron.targets.table import DEFAULT_TARGET, find_target


@dataclass(frozen=True)
class LiteRTEstimate:
    """Cycles of the NPU for a graph, as the open converter would compile it."""

    file: str
    cycles: int
    microseconds: float

    @property
    def sentence(self) -> str:
        """For a reader."""
        return (
            f"estimate from {self.file}, as the open converter compiles it: {self.cycles:,} cycles of the "
            f"NPU, {self.microseconds:,.1f} microseconds; CPU operators and borders are not in it"
        )

    def add_to(self, data: dict[str, Any]) -> None:
        """Into a report whose delegates' cost is not known."""
        if not data["summary"].get("cycles_npu"):
            data["summary"] |= {
                "cycles_estimated": data["summary"]["cycles_estimated"] + self.cycles,
                "cycles_npu": self.cycles,
                "time_us_estimated": self.microseconds,
                "estimate_label": self.sentence,
            }


def litert_estimate(path: Path, target: str = DEFAULT_TARGET) -> LiteRTEstimate:
    """The estimate of a .tflite."""
    chip = find_target(target)
    compiled = load_litert(path, CompileOptions(config=target)).compiled
    cycles = sum(cost.cycles for cost in costs_of(decode(compiled.microcode, str(path)).calls, chip))
    return LiteRTEstimate(path.name, cycles, round(cycles / chip.frequency_hz * 1e6, 1))
