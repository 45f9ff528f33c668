"""Host inference beside LiteRT's reference kernels and its default (XNNPACK), on one thread and on two.

All are timed in turns, many times, in one process; the best run counts. One thread: CPU seconds of the
calling thread, so that other work on the machine does not count. Two threads: seconds on the clock, for which
the machine must have two idle cores, in longer turns: threads need a few runs to find their data again.
Outputs are compared with the reference before anything is timed. Samples per second: single runs, one after
the other, then all samples in one call, which two threads share. Words on the command line choose the
networks whose names contain one of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from networks import NETWORKS

from openneutron.bench.host import default_runner, random_inputs
from openneutron.compiler.compile import compile_graph
from openneutron.litert.file import write
from openneutron.litert.ir import Graph
from openneutron.litert.reference import Reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

ROUNDS, AT_ONCE = 60, 4
THREAD_ROUNDS, THREADS_AT_ONCE = 10, 24
BATCH_SECONDS = 0.02  # what a batch takes, about
Run = Callable[[], object]
HEAD = f"{'ours ms':>9}{'XNN ms':>9}{'ref ms':>9}{'x ref':>8}{'x XNN':>9}{'(median)':>10}"


def milliseconds(
    runs: Sequence[Run], clock: Callable[[], float], rounds: int = ROUNDS, at_once: int = AT_ONCE
) -> list[tuple[float, float]]:
    """The best and the median time of each, taken in turns of a few runs."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, found in zip(runs, times, strict=True):
            for _ in range(at_once):
                begun = clock()
                run()
                found.append((clock() - begun) * 1e3)
    return [(min(found), float(np.median(found))) for found in times]


def measure(name: str, graph: Graph) -> None:
    """Print the rows of a network."""
    compiled = compile_graph(graph, find_target("imxrt700"), CompileOptions())
    inputs = random_inputs(graph)
    reference = Reference(graph)
    wanted = reference.run(inputs)
    models = [NativeModel(compiled.microcode, compiled.weights, name, threads=n) for n in (1, 2)]
    for model in models:
        for want, got in zip(wanted, model.run(inputs), strict=True):
            assert np.array_equal(want.reshape(got.shape), got), f"{name}: outputs differ"
    ours: list[Run] = [lambda m=m: m.run(inputs) for m in models]  # type: ignore[misc]
    theirs = [default_runner(write(graph), inputs, n) for n in (1, 2)]
    [(ref, _)] = milliseconds([lambda: reference.run(inputs)], time.thread_time, rounds=1)
    (one, one_median), (xnn, xnn_median) = milliseconds([ours[0], theirs[0]], time.thread_time)
    print(f"{name:<24}{1:>3}{one:>9.3f}{xnn:>9.3f}{ref:>9.2f}{ref / one:>8.1f}{xnn / one:>9.2f}"
          f"{xnn_median / one_median:>10.2f}")  # fmt: skip
    (alone, _), (two, _), (xnn_alone, _), (xnn_two, _) = milliseconds(
        [ours[0], ours[1], theirs[0], theirs[1]], time.perf_counter, THREAD_ROUNDS, THREADS_AT_ONCE
    )
    print(f"{'':<24}{2:>3}{two:>9.3f}{xnn_two:>9.3f}{'':>17}{xnn_two / two:>9.2f}{'':>10}"
          f"   {alone / two:.2f} x one thread (XNNPACK {xnn_alone / xnn_two:.2f})")  # fmt: skip
    _batches(name, models, inputs, one)


def _batches(name: str, models: Sequence[NativeModel], inputs: Sequence[np.ndarray], one: float) -> None:
    """Print how many samples are done in a second."""
    count = max(4, round(BATCH_SECONDS / (one * 1e-3)))
    samples = [np.stack([x] * count) for x in inputs]
    singles = [[x[i] for x in samples] for i in range(count)]
    wanted = models[0].run(inputs)
    for model in models:
        for want, got in zip(wanted, model.run_batch(samples), strict=True):
            assert all(np.array_equal(want, found) for found in got), f"{name}: outputs of the batch differ"

    def run_singles() -> None:
        for sample in singles:
            models[0].run(sample)

    runs: list[Run] = [run_singles, *(lambda m=m: m.run_batch(samples) for m in models)]  # type: ignore[misc]
    rates = [count / best * 1e3 for best, _ in milliseconds(runs, time.perf_counter, 3, 2)]
    print(f"{'':<24}{'':>3}   samples/s: {rates[0]:,.0f} in single runs, {rates[1]:,.0f} in one call, "
          f"{rates[2]:,.0f} with two threads ({rates[2] / rates[0]:.2f} x single runs)")  # fmt: skip


def main(words: Sequence[str]) -> None:
    """Print the table."""
    print(f"{'network':<24}{'thr':>3}{HEAD}")
    for name, make in NETWORKS.items():
        if words and not any(word.lower() in name.lower() for word in words):
            continue
        try:
            measure(name, make())
        except FileNotFoundError as error:
            print(f"{name:<24}skipped: {error.filename} is absent")


if __name__ == "__main__":
    main(sys.argv[1:])
