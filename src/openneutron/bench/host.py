"""Host inference, one thread: the simulator beside LiteRT's default (XNNPACK) and reference kernels.

Times are CPU seconds of the calling thread, the best of several runs, so that other work on the machine does
not count. All three compute the same graph in one process; the simulator's outputs are compared with the
reference's before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.ir import Graph
from openneutron.litert.reference import Reference
from openneutron.run.native import NativeModel

RUNS, REFERENCE_RUNS = 30, 2
QUICK_RUNS, QUICK_REFERENCE_RUNS = 5, 1


@dataclass(frozen=True)
class HostTimes:
    """Milliseconds of one inference, and whether the simulator's outputs are the reference's, bit for bit.

    The last two are None where the reference kernels cannot compute the graph (see ON306).
    """

    simulator_ms: float
    xnnpack_ms: float
    reference_ms: float | None
    exact: bool | None

    def __add__(self, other: HostTimes) -> HostTimes:
        return HostTimes(
            self.simulator_ms + other.simulator_ms,
            self.xnnpack_ms + other.xnnpack_ms,
            None
            if None in (self.reference_ms, other.reference_ms)
            else (self.reference_ms or 0.0) + (other.reference_ms or 0.0),
            False if False in (self.exact, other.exact) else self.exact and other.exact,
        )


def milliseconds(run: Callable[[], object], runs: int) -> float:
    """The best CPU time of one run, after one that does not count."""
    run()
    best = float("inf")
    for _ in range(runs):
        begun = time.thread_time()
        run()
        best = min(best, time.thread_time() - begun)
    return best * 1e3


def random_inputs(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Inputs of a graph's shapes and types."""
    rng = np.random.default_rng(seed)
    arrays = []
    for t in graph.given:
        if t.dtype == "float32":
            arrays.append(rng.standard_normal(t.shape).astype(np.float32))
        else:
            arrays.append(rng.integers(-128, 128, t.shape).astype(t.dtype))
    return arrays


def default_runner(
    model: bytes, inputs: Sequence[np.ndarray], threads: int = 1
) -> Callable[[], list[np.ndarray]]:
    """One inference of LiteRT's interpreter as it comes, from inputs to outputs like `NativeModel.run`."""
    interpreter = Interpreter(model_content=model, num_threads=threads)
    interpreter.allocate_tensors()
    indices = [detail["index"] for detail in interpreter.get_input_details()]
    results = [detail["index"] for detail in interpreter.get_output_details()]

    def run() -> list[np.ndarray]:
        for index, array in zip(indices, inputs, strict=True):
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in results]

    return run


def time_host(
    graph: Graph, litert: bytes, microcode: bytes, weights: bytes, quick: bool = False
) -> HostTimes:
    """Time one compiled graph; `litert` are the bytes of the graph it was compiled from."""
    runs, few = (QUICK_RUNS, QUICK_REFERENCE_RUNS) if quick else (RUNS, REFERENCE_RUNS)
    inputs = random_inputs(graph)
    simulator, reference = NativeModel(microcode, weights, graph.name, threads=1), Reference(graph)
    reference_ms, exact = None, None
    try:
        pairs = zip(simulator.run(inputs), reference.run(inputs), strict=True)
        exact = all(np.array_equal(got, want.reshape(got.shape)) for got, want in pairs)
        reference_ms = milliseconds(lambda: reference.run(inputs), few)
    except OpenNeutronError as error:
        if error.diagnostic.code != "ON306":
            raise
    return HostTimes(
        milliseconds(lambda: simulator.run(inputs), runs),
        milliseconds(default_runner(litert, inputs), runs),
        reference_ms,
        exact,
    )
