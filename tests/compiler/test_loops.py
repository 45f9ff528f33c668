"""Loops: what repeats is written once, computes the same, and does not grow with the length of a sequence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.emit import loops
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.cost import costs_of
from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Graph, Quant
from openneutron.litert.reference import Reference
from openneutron.options import CompileOptions
from openneutron.report.addresses import buffers
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

TARGET = find_target("imxrt700")
WIDTH = 8
STATE, GATE, SIGMOID = (
    Quant.per_tensor(1 / 128, 0),
    Quant.per_tensor(0.04, 5),
    Quant.per_tensor(1 / 256, -128),
)


def recurrent(steps: int, backwards: bool = False, island: bool = False) -> Graph:
    """h = sigmoid(x[t] + W h) * tanh(...), all steps' h as the output; with a step in float on the way."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", (steps, WIDTH), quant=GATE)
    weights = b.const(rng.integers(-127, 128, (WIDTH, WIDTH), np.int8), Quant.per_tensor(0.01, 0))
    bias = b.const(rng.integers(-500, 500, WIDTH, np.int32), Quant.per_tensor(0.01 / 128, 0))
    h = b.input("h", (1, WIDTH), quant=STATE)
    plain = {"fusedActivationFunction": int(Activation.NONE)}
    outputs = []
    for step in reversed(range(steps)) if backwards else range(steps):
        part = b.op(Builtin.SLICE, [x, b.ints([step, 0]), b.ints([1, WIDTH])], (1, WIDTH), GATE)
        product = b.op(
            Builtin.FULLY_CONNECTED,
            [h, weights, bias],
            (1, WIDTH),
            GATE,
            options=plain | {"keepNumDims": False},
        )
        gate = b.op(Builtin.ADD, [part, product], (1, WIDTH), GATE, options=plain)
        if island:
            wide = b.op(Builtin.EXP, [b.dequantize(gate)], (1, WIDTH), None, dtype="float32")
            gate = b.quantize(wide, GATE)
        open_ = b.op(Builtin.LOGISTIC, [gate], (1, WIDTH), SIGMOID)
        new = b.op(Builtin.TANH, [gate], (1, WIDTH), STATE)
        h = b.op(Builtin.MUL, [open_, new], (1, WIDTH), STATE, options=plain)
        outputs.append(h)
    outputs = outputs[::-1] if backwards else outputs
    options = plain | {"axis": 0}
    return b.graph([b.op(Builtin.CONCATENATION, outputs, (steps, WIDTH), STATE, options=options)])


def compiled(graph: Graph, **options):
    return compile_graph(graph, TARGET, CompileOptions(**options))


def loop_of(result) -> mc.Loop:
    (loop,) = (call for call in result.program.calls if isinstance(call, mc.Loop))
    return loop


@pytest.mark.parametrize("options", [{}, {"optimise": "size"}], ids=["performance", "size"])
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("island", [False, True], ids=["int8", "float"])
def test_a_loop_is_exact(options, backwards, island, monkeypatch):
    graph = recurrent(40, backwards, island)
    result = compiled(graph, **options)
    assert loop_of(result).times > 15
    rng = np.random.default_rng(1)
    inputs = [rng.integers(-128, 128, t.shape, np.int8) for t in graph.inputs]
    (expected,) = Reference(graph).run(inputs)
    model = NativeModel(result.microcode, result.weights)
    np.testing.assert_array_equal(model.run(inputs)[0], expected)
    (threaded,) = NativeModel(result.microcode, result.weights, threads=2).run(inputs)
    np.testing.assert_array_equal(threaded, expected)
    # Without loops: the same calls, cycles and memory, in more bytes.
    monkeypatch.setattr("openneutron.compiler.compile.roll", lambda calls, buffers: (calls, buffers))
    plain = compiled(graph, **options)
    (unrolled,) = NativeModel(plain.microcode, plain.weights).run(inputs)
    np.testing.assert_array_equal(unrolled, expected)
    assert (plain.cycles, plain.macs, plain.scratch_bytes) == (
        result.cycles,
        result.macs,
        result.scratch_bytes,
    )
    assert len(plain.microcode) > 5 * len(result.microcode)


def test_the_microcode_does_not_grow_with_the_length():
    graph = recurrent(1000)
    short, long = compiled(recurrent(30)), compiled(graph)
    assert len(short.microcode) == len(long.microcode)
    assert len(short.buffers) == len(long.buffers)
    assert long.cycles > 30 * short.cycles
    rng = np.random.default_rng(2)
    inputs = [rng.integers(-128, 128, t.shape, np.int8) for t in graph.inputs]
    (expected,) = Reference(graph).run(inputs)
    np.testing.assert_array_equal(NativeModel(long.microcode, long.weights).run(inputs)[0], expected)


def test_the_report_of_a_loop():
    result = compiled(recurrent(40))
    loop, program = loop_of(result), mc.decode(result.microcode)
    assert program.calls == result.program.calls and mc.Kernel.LOOP in program.kernels
    assert [info.cost for info in result.calls] == costs_of(program.calls, TARGET)
    at = program.calls.index(loop)
    body = result.calls[at + 1 : at + 1 + loop.body]
    assert all(info.cost.cycles % loop.times == 0 and len(info.writes) == loop.times for info in body)
    assert all(0 <= b.first_call <= b.last_call < len(program.calls) for b in result.buffers)
    for call in range(
        len(program.calls)
    ):  # what a call finds in memory overlaps only if it is the same place
        live = {(b.offset, b.nbytes) for b in result.buffers if b.first_call <= call <= b.last_call}
        held = sorted(live)
        assert all(a + size <= b for (a, size), (b, _) in pairwise(held))
    assert {b["region"] for b in buffers(program.calls)} == {"scratch"}
    lines = mc.disassemble(program)
    first = next(i for i, line in enumerate(lines) if " loop " in line)
    assert f"body={loop.body} times={loop.times}" in lines[first]
    assert lines[first + 2].split(maxsplit=1)[0] == str(at + 1) and "    " in lines[first + 2][4:9]


def test_what_repeats_only_a_few_times_stays_as_it_is():
    result = compiled(recurrent(4))
    assert not any(isinstance(call, mc.Loop) for call in result.program.calls)


def test_constants_that_differ_are_no_loop():
    def table(step: int, constants: int) -> mc.Table:
        source, result = mc.Ref(mc.Region.INPUT, offset=16 * step), mc.Ref(mc.Region.OUTPUT, offset=16 * step)
        return mc.Table(source, result, mc.Ref(mc.Region.WEIGHTS, offset=constants), 1, 16, 16, 16)

    assert not loops.find_repeats([table(i, 256 * i) for i in range(40)])
    assert loops.find_repeats([table(i, 0) for i in range(40)]) == [loops.Repeat(0, 1, 40)]
