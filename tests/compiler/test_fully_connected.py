"""Fully connected layers in little memory: the results of a row that are made last lie over the row."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.litert.build import Builder
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Graph, Quant
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

SIZE = CompileOptions(optimise="size")


def _layers(*sizes: int) -> Graph:
    rng = np.random.default_rng(sum(sizes))
    b = Builder()
    x = b.input("x", (1, sizes[0]), quant=Quant.per_tensor(0.05, 3))
    for size in sizes[1:]:
        weights = b.const(rng.integers(-127, 128, (size, x.shape[1])).astype(np.int8), Quant.per_tensor(0.01))
        bias = b.const(
            rng.integers(-99, 99, size).astype(np.int32), Quant.per_tensor(x.quant.scale[0] * 0.01)
        )
        options = {"fusedActivationFunction": 0, "keepNumDims": False}
        quant = Quant.per_tensor(float(rng.uniform(0.1, 0.5)), int(rng.integers(-9, 9)))
        x = b.op(Builtin.FULLY_CONNECTED, [x, weights, bias], (1, size), quant, options=options)
    return read(write(b.graph([x])))


def _random_sizes(seed: int) -> tuple[int, ...]:
    rng = np.random.default_rng(seed)
    most = int(rng.choice([24, 90, 700]))
    return tuple(int(n) for n in rng.integers(1, most, rng.integers(3, 8)))


@pytest.mark.parametrize("seed", range(40))
def test_layers_of_any_size_are_exact(seed: int) -> None:
    graph = _layers(*_random_sizes(seed))
    program = compile_graph(graph, find_target("imxrt700"), SIZE)
    inputs = [np.random.default_rng(seed).integers(-128, 128, graph.inputs[0].shape).astype(np.int8)]
    (expected,) = run_reference(graph, inputs)
    for threads in (1, 3):
        model = NativeModel(program.microcode, program.weights, threads=threads)
        np.testing.assert_array_equal(model.run(inputs)[0], expected)


@pytest.mark.parametrize(
    ("sizes", "least"),
    [
        ((640, 128, 128, 8, 128, 128, 640), 640 + 128 - 32),
        ((784, 32, 784), 784),
        ((96, 304, 96, 10), 304 + 96 - 32),
        ((784, 512, 10), 784 + 512 - 32),
    ],
)
def test_the_last_results_take_the_place_of_the_input(sizes: tuple[int, ...], least: int) -> None:
    program = compile_graph(_layers(*sizes), find_target("imxrt700"), SIZE)
    assert program.reserve_bytes == least
