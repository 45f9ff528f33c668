"""The cycle estimate beside published measurements; exit 1 if an error leaves its bar or the table is stale.

The networks have random weights: only shapes count. Inputs and outputs are int8, softmax runs as a kernel.
"""

from __future__ import annotations

import sys

from networks import cifarnet, ds_cnn, mobilenet_v1

from openneutron.compiler.compile import compile_graph
from openneutron.litert.file import read, write
from openneutron.options import CompileOptions
from openneutron.report.cost_model import MEASUREMENTS, Measurement
from openneutron.target import TARGETS

NETWORKS = {
    "CifarNet": cifarnet,
    "DS-CNN": ds_cnn,
    "MobileNetV1-0.25-128": mobilenet_v1,
    "MobileNetV1-1.0-224, weights in flash": lambda: mobilenet_v1(1.0, 224),
}
BARS = {True: 0.15, False: 0.25}  # of fitted measurements, and of those kept out


def estimate(measurement: Measurement) -> int:
    """The estimated cycles of a measured network."""
    options = CompileOptions(fetch_constants_to_sram=not measurement.fitted)
    graph = read(write(NETWORKS[measurement.model]()))
    return compile_graph(graph, TARGETS["imxrt700"], options).cycles


def main() -> int:
    """Print the table."""
    print(f"{'network':<40}{'published':>12}{'estimated':>12}{'error':>8}{'bar':>6}  used for")
    failed = 0
    for m in MEASUREMENTS:
        cycles = estimate(m)
        error = cycles / m.published_cycles - 1
        used = "fitting" if m.fitted else "checking (not fitted, but known when the form was chosen)"
        remark = "" if abs(error) <= BARS[m.fitted] else "  OUT OF BAR"
        if cycles != m.estimated_cycles:
            remark += f"  the table in report/cost_model.py says {m.estimated_cycles:,}"
        failed |= bool(remark)
        columns = f"{m.published_cycles:>12,}{cycles:>12,}{error:>+8.1%}{BARS[m.fitted]:>6.0%}"
        print(f"{m.model:<40}{columns}  {used}{remark}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
