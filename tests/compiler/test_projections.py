"""What the steps of a recurrent layer read row by row is made in parts where memory is to be small."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.graph.rules import fuse
from openneutron.litert.build import Builder
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Graph, Quant, Tensor
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

TARGET = find_target("imxrt700")
PLAIN = {"fusedActivationFunction": 0}


def _product(b: Builder, rng: np.random.Generator, x: Tensor, width: int, quant: Quant) -> Tensor:
    depth = x.shape[-1]
    weights = b.const(rng.integers(-127, 128, (width, depth)).astype(np.int8), Quant.per_tensor(0.004))
    bias = b.const(rng.integers(-99, 99, width).astype(np.int32), Quant.per_tensor(x.quant.scale[0] * 0.004))
    rows = x.elements // depth
    return b.op(Builtin.FULLY_CONNECTED, [x, weights, bias], (rows, width), quant, options=PLAIN)


def _recurrent(seed: int) -> Graph:
    """A cell with two gates over a sequence, forwards or backwards; the last state or all of them."""
    rng = np.random.default_rng(seed)
    steps, features, hidden = (int(rng.integers(*r)) for r in ((8, 24), (1, 12), (1, 20)))
    b, quant = Builder(), Quant.per_tensor(0.03, 4)
    x = b.input("x", (1, steps, features), quant=Quant.per_tensor(0.05, -3))
    gates = _product(b, rng, b.reshape(x, (steps, features)), 2 * hidden, quant)
    cells = _product(b, rng, b.reshape(x, (steps, features)), hidden, quant) if seed % 3 == 0 else None
    state: Tensor | None = None
    states = []
    for step in (range(steps), reversed(range(steps)))[seed % 2]:
        row = b.op(Builtin.SLICE, [gates, b.ints((step, 0)), b.ints((1, 2 * hidden))], (1, 2 * hidden), quant)
        if state is not None:
            more = _product(b, rng, state, 2 * hidden, quant)
            row = b.op(Builtin.ADD, [row, more], row.shape, quant, options=PLAIN)
        parts = [
            b.op(Builtin.SLICE, [row, b.ints((0, i * hidden)), b.ints((1, hidden))], (1, hidden), quant)
            for i in range(2)
        ]
        if cells is not None:
            own = b.op(Builtin.SLICE, [cells, b.ints((step, 0)), b.ints((1, hidden))], (1, hidden), quant)
            parts[1] = b.op(Builtin.ADD, [parts[1], own], own.shape, quant, options=PLAIN)
        state = b.op(Builtin.MUL, parts, (1, hidden), quant, options=PLAIN)
        states.append(state)
    every = b.op(Builtin.CONCATENATION, states, (steps, hidden), quant, options={"axis": 0, **PLAIN})
    if seed % 4 == 0:
        return read(write(b.graph([every])))
    last = b.reshape(every, (1, steps, hidden))
    box = [b.ints((0, steps - 1, 0)), b.ints((1, 1, hidden))]
    return read(write(b.graph([b.op(Builtin.SLICE, [last, *box], (1, 1, hidden), quant)])))


@pytest.mark.parametrize("seed", range(24))
def test_parts_are_exact_and_save_memory(seed: int) -> None:
    graph = _recurrent(seed)
    options = [CompileOptions(), CompileOptions(optimise="size", cycle_budget=1.0)]
    whole, small = (compile_graph(graph, TARGET, o) for o in options)
    x = np.random.default_rng(seed).integers(-128, 128, graph.inputs[0].shape).astype(np.int8)
    expected = run_reference(graph, [x])
    for program in (whole, small):
        (got,) = NativeModel(program.microcode, program.weights).run([x])
        np.testing.assert_array_equal(got, expected[0])
    assert small.reserve_bytes < whole.reserve_bytes


def test_the_last_of_all_steps_needs_no_room_for_the_others() -> None:
    fused = fuse(_recurrent(1))
    assert all(op.kind is not Builtin.CONCATENATION for op in fused.ops)
