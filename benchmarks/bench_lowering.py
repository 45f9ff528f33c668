"""From a float module to a .pte: time and peak memory of the stages, for MobileNetV2-224 or another model.

python benchmarks/bench_lowering.py [zoo name]
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import TypeVar

from openneutron.compiler.compile import compile_graph
from openneutron.litert.file import read
from openneutron.models.zoo import build_model, example_inputs
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model, quantize_model
from openneutron.target import find_target

T = TypeVar("T")


def timed(what: str, run: Callable[[], T]) -> T:
    """Run and print wall and CPU seconds, and the peak memory of the process so far."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<34}{wall:>9.2f}{cpu:>9.2f}{peak:>12.0f}", flush=True)
    return result


def main(name: str = "mobilenet_v2") -> None:
    """Print one line per stage."""
    warnings.simplefilter("ignore")
    samples = [example_inputs(name, seed) for seed in range(4)]
    print(f"{name:<34}{'wall s':>9}{'CPU s':>9}{'peak MiB':>12}")
    timed("imports and the float model", lambda: build_model(name)(*samples[0]))
    quantized = timed("quantize (4 calibration inputs)", lambda: quantize_model(build_model(name), samples))
    compiled = timed("lower to a .pte", lambda: compile_model(quantized, samples[0]))
    target = find_target(compiled.options.config)
    for partition in compiled.partitions:
        raw = partition.litert
        timed("  of it, LiteRT to microcode", lambda r=raw: compile_graph(read(r), target, CompileOptions()))  # type: ignore[misc]
    print(f"partitions {len(compiled.partitions)}, nodes left on the CPU {len(compiled.rejected)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
