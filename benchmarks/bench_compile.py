"""Compile time from LiteRT bytes to microcode. `bench_cost_model.py` judges the estimates."""

from __future__ import annotations

import time

from networks import NETWORKS, mobilenet_v1

from openneutron.compiler.compile import compile_graph
from openneutron.litert.file import read, write
from openneutron.options import CompileOptions
from openneutron.targets.table import find_target

STREAMED = {"MobileNetV1-1.0-224 *": lambda: mobilenet_v1(1.0, 224)}  # weights in flash, as published


def main() -> None:
    """Print the table."""
    target = find_target("imxrt700")
    titles = f"{'seconds':>9}{'weights':>12}{'MACs':>14}{'cycles (est.)':>15}"
    print(f"{'network':<24}{titles}")
    for name, make in {**NETWORKS, **STREAMED}.items():
        try:
            raw = write(make())
        except FileNotFoundError as error:
            print(f"{name:<24}skipped: {error.filename} is absent")
            continue
        begun = time.perf_counter()
        options = CompileOptions(fetch_constants_to_sram=name in STREAMED)
        compiled = compile_graph(read(raw), target, options)
        seconds = time.perf_counter() - begun
        print(
            f"{name:<24}{seconds:>9.2f}{len(compiled.weights):>12,}{compiled.macs:>14,}{compiled.cycles:>15,}"
        )
    print("* weights streamed from flash")


if __name__ == "__main__":
    main()
