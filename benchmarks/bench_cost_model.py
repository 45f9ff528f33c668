"""The cycle estimate beside published times; exit 1 if an error leaves its bar or the stored table is stale.

The networks have random weights: only shapes count. Inputs and outputs are int8, softmax runs as a kernel.
"""

from __future__ import annotations

import json
import sys

from openneutron.bench.published import stored_text
from openneutron.report.cost_model import Measurement, band, measurements

# Of what was fitted, of the NPU's other times, and of the CPU's; single layers have none.
BARS = {"fitted": 0.15, "npu": 0.25, "cpu": 0.30}


def bar(m: Measurement) -> float | None:
    """How far off an estimate may be."""
    if m.set_aside or (m.on == "cpu" and m.layer):
        return None
    return BARS["fitted" if m.fitted else m.on]


def main() -> int:
    """Print the table."""
    head = f"{'chip':<10}{'on':<5}{'network':<46}"
    print(f"{head}{'published':>12}{'estimated':>12}{'error':>8}{'bar':>6}  used for")
    failed = 0
    for m in measurements():
        limit = bar(m)
        used = "fitting" if m.fitted else "shown only" if m.set_aside else "checking"
        remark = "  OUT OF BAR" if limit is not None and abs(m.error) > limit else ""
        failed |= bool(remark)
        columns = f"{m.published_cycles:>12,}{m.estimated_cycles:>12,}{m.error:>+8.1%}"
        shown = "" if limit is None else f"{limit:.0%}"
        print(f"{m.target:<10}{m.on:<5}{m.model:<46}{columns}{shown:>6}  {used}{remark}")
    print(f"bands: NPU {band('npu')}, CPU {band('cpu')}, single layers on the CPU {band('cpu', layers=True)}")
    if json.loads(stored_text()) != [vars(m) for m in measurements()]:
        print("report/published.json is stale: python -m openneutron.bench.published --write")
        failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
