"""Random graphs for as long as you like: whatever the compiler makes of them, the driver must run it, and the
results must equal LiteRT's reference kernels.

    python -m tests.compiler.fuzz --count 10000 [--seed 0]

Every seed is a graph, general, made for stripes or on a picture, and a way to compile it: whole, in the least
memory (with inputs and outputs in the arena or in memory of their own), with weights streamed, with little
SRAM. It ends with 1 and names the seeds if one of them differs or fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import numpy as np

from openneutron.compiler.compile import compile_graph
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.file import read, write
from openneutron.litert.ir import Graph
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target
from tests.compiler.graphs import random_graph, random_inputs
from tests.compiler.striped_graphs import picture_graph, striped_graph, values

TARGET = find_target("imxrt700")
WAYS = (
    "whole",
    "size",
    "streamed",
    "small",
    "small and streamed",
    "size, inputs kept",
    "size and streamed",
)


def try_seed(seed: int) -> tuple[str, Graph]:
    """Compile and run the graph of a seed: the way it was compiled, or that it does not fit."""
    rng = np.random.default_rng(seed)
    striped = seed % 4 == 0
    if seed % 4 == 1:
        made = picture_graph(seed)
    else:
        made = striped_graph(seed) if striped else random_graph(seed, int(rng.integers(3, 20)))
    graph = read(write(made))
    inputs = values(graph, seed) if striped else random_inputs(graph, seed)
    way = WAYS[seed % len(WAYS)]
    streamed = "streamed" in way
    options = CompileOptions(
        optimise="size" if "size" in way else "performance",
        cycle_budget=float(seed % 3),
        fetch_constants_to_sram=streamed,
        keep_inputs="kept" in way,
    )
    if "small" in way:
        whole = compile_graph(graph, TARGET, options)
        needed = whole.scratch_bytes + max(whole.prefetch_bytes, len(whole.weights))
        sram = max(int(needed * rng.uniform(0.75, 1.1)), 64)
        options = CompileOptions(sram_bytes=sram, fetch_constants_to_sram=streamed)
    try:
        result = compile_graph(graph, TARGET, options)
    except OpenNeutronError as error:
        if error.diagnostic.code != "ON403":
            raise
        return "does not fit", graph
    got = NativeModel(result.microcode, result.weights).run(inputs)
    for a, b in zip(run_reference(graph, inputs), got, strict=True):
        np.testing.assert_array_equal(a.reshape(b.shape), b)
    return way, graph


def main() -> int:
    """Try as many seeds as asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    ways, kinds, bad = Counter[str](), Counter[str](), []
    began = time.time()
    for seed in range(options.seed, options.seed + options.count):
        try:
            way, graph = try_seed(seed)
        except Exception as error:
            bad.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error).strip().splitlines()[0]}", flush=True)
            continue
        ways[way] += 1
        kinds.update({op.kind.name for op in graph.ops})
        done = seed - options.seed + 1
        if done % 1000 == 0:
            print(f"{done} graphs, {len(bad)} bad, {time.time() - began:.0f} s", flush=True)
    found = ", ".join(f"{name} {count}" for name, count in sorted(ways.items()))
    print(f"{options.count} graphs in {time.time() - began:.0f} s: {len(bad)} bad; {found}")
    print("graphs with: " + ", ".join(f"{name} {count}" for name, count in sorted(kinds.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
