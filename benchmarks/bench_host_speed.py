"""Host inference, one thread: the runtime beside LiteRT's reference kernels and its default (XNNPACK).

Times are CPU seconds of the calling thread, the best of many runs, so that other work on the machine does not
count; outputs are compared with the reference before anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from networks import NETWORKS

from openneutron.compiler.compile import compile_graph
from openneutron.litert.file import write
from openneutron.litert.reference import Reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.target import find_target


def milliseconds(run: Callable[[], object], runs: int) -> float:
    """The best CPU time of one run."""
    best = float("inf")
    for _ in range(runs):
        begun = time.thread_time()
        run()
        best = min(best, time.thread_time() - begun)
    return best * 1e3


def main() -> None:
    """Print the table."""
    target, rng = find_target("imxrt700"), np.random.default_rng(0)
    print(f"{'network':<24}{'ours ms':>9}{'ref ms':>10}{'XNNPACK ms':>12}{'x ref':>8}{'x XNNPACK':>11}")
    for name, make in NETWORKS.items():
        try:
            graph = make()
        except FileNotFoundError as error:
            print(f"{name:<24}skipped: {error.filename} is absent")
            continue
        compiled = compile_graph(graph, target, CompileOptions())
        inputs = [rng.integers(-128, 128, t.shape, np.int8) for t in graph.inputs]
        reference = Reference(graph)
        model = NativeModel(compiled.microcode, compiled.weights, name)
        for want, got in zip(reference.run(inputs), model.run(inputs), strict=True):
            assert np.array_equal(want.reshape(got.shape), got), f"{name}: outputs differ"
        default = Interpreter(model_content=write(graph), num_threads=1)
        default.allocate_tensors()
        indices = [d["index"] for d in default.get_input_details()]

        def run_default(
            interpreter: Interpreter = default, where: list[int] = indices, arrays: list[np.ndarray] = inputs
        ) -> None:
            for index, array in zip(where, arrays, strict=True):
                interpreter.set_tensor(index, array)
            interpreter.invoke()

        ours = milliseconds(lambda m=model, x=inputs: m.run(x), 50)
        ref = milliseconds(lambda m=reference, x=inputs: m.run(x), 3)
        xnn = milliseconds(run_default, 50)
        print(f"{name:<24}{ours:>9.3f}{ref:>10.2f}{xnn:>12.3f}{ref / ours:>8.1f}{xnn / ours:>11.2f}")


if __name__ == "__main__":
    main()
