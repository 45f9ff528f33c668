"""Host inference, one thread: the runtime beside LiteRT's reference kernels and its default (XNNPACK).

Times are CPU seconds of the calling thread, the best of many runs, so that other work on the machine does not
count; outputs are compared with the reference before anything is timed.
"""

from __future__ import annotations

from networks import NETWORKS

from openneutron.bench.host import time_host
from openneutron.compiler.compile import compile_graph
from openneutron.litert.file import write
from openneutron.options import CompileOptions
from openneutron.target import find_target


def main() -> None:
    """Print the table."""
    print(f"{'network':<24}{'ours ms':>9}{'ref ms':>10}{'XNNPACK ms':>12}{'x ref':>8}{'x XNNPACK':>11}")
    for name, make in NETWORKS.items():
        try:
            graph = make()
        except FileNotFoundError as error:
            print(f"{name:<24}skipped: {error.filename} is absent")
            continue
        compiled = compile_graph(graph, find_target("imxrt700"), CompileOptions())
        times = time_host(graph, write(graph), compiled.microcode, compiled.weights)
        assert times.exact, f"{name}: outputs differ"
        ours, ref, xnn = times.simulator_ms, times.reference_ms, times.xnnpack_ms
        print(f"{name:<24}{ours:>9.3f}{ref:>10.2f}{xnn:>12.3f}{ref / ours:>8.1f}{xnn / ours:>11.2f}")


if __name__ == "__main__":
    main()
