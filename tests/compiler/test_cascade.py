"""Cascades: the same bits as without, in less memory, within the budget of cycles, and limits that hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.emit.result import CompiledGraph
from openneutron.compiler.microcode import format as mc
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import read, write
from openneutron.litert.ir import Activation, Builtin, Graph, Padding, Quant, Tensor
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target
from tests.compiler.graphs import random_graph, random_inputs
from tests.compiler.striped_graphs import picture_graph, striped_graph, values
from tests.native import libraries

TARGET = find_target("imxrt700")
LIBRARY = libraries()["portable"]
ANY = 50.0  # a budget of cycles that never binds: as many stripes as save memory


def compiled(graph: Graph, **options) -> CompiledGraph:
    return compile_graph(graph, TARGET, CompileOptions(**options))


def run(program: CompiledGraph, inputs: list[np.ndarray], library: Path = LIBRARY) -> list[np.ndarray]:
    return NativeModel(program.microcode, program.weights, library=library).run(inputs)


def cascades(program: CompiledGraph) -> list[mc.Cascade]:
    return [call for call in program.program.calls if isinstance(call, mc.Cascade)]


def check_equal(graph: Graph, inputs: list[np.ndarray], oracle: bool, **options) -> CompiledGraph:
    """The graph in size mode gives what it gives whole, and what the oracle gives."""
    whole, striped = compiled(graph), compiled(graph, optimise="size", **options)
    wanted = run(whole, inputs)
    for a, b in zip(wanted, run(striped, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    if oracle:
        for a, b in zip(run_reference(graph, inputs), wanted, strict=True):
            np.testing.assert_array_equal(a.reshape(b.shape), b)
    assert striped.reserve_bytes <= whole.reserve_bytes
    assert mc.decode(striped.microcode) == striped.program
    return striped


def check_seeds(seeds: range) -> None:
    found = stages = rolling = 0
    for seed in seeds:
        graph = read(write(striped_graph(seed)))
        oracle = seed % 10 == 0
        budget = ANY if seed % 2 else 1.0
        keep = seed % 3 == 2
        striped = check_equal(graph, values(graph, seed), oracle, cycle_budget=budget, keep_inputs=keep)
        found += len(cascades(striped))
        stages += sum(call.stages for call in cascades(striped))
        rolling += sum(buffer.rows > 0 for buffer in striped.buffers)
    assert found > len(seeds) / 3 and stages > 1.3 * found and rolling > len(seeds) / 4, (
        found,
        stages,
        rolling,
    )


def test_random_networks_give_the_same_bits():
    check_seeds(range(60))


@pytest.mark.slow  # five hundred networks
def test_five_hundred_random_networks_give_the_same_bits():
    check_seeds(range(1000, 1500))


def test_random_graphs_of_all_operators_give_the_same_bits():
    for seed in range(40):
        graph = read(write(random_graph(seed, 14)))
        check_equal(graph, random_inputs(graph, seed), oracle=False, cycle_budget=ANY)


def tower() -> Graph:
    """Three convolutions on a picture, the middle map the largest; a sum around the last."""
    b = Builder()
    rng = np.random.default_rng(0)
    x = b.input("x", (1, 32, 32, 3), quant=Quant.per_tensor(0.05, 3))
    for channels, stride in ((8, 1), (24, 1), (8, 2), (8, 1)):
        before = x
        weights = b.const(
            rng.integers(-127, 128, (channels, 3, 3, x.shape[3]), np.int8), Quant.per_tensor(0.01)
        )
        bias = b.const(np.zeros(channels, np.int32), Quant.per_tensor(0.0005))
        options = {"padding": int(Padding.SAME), "strideH": stride, "strideW": stride, "dilationHFactor": 1,
                   "dilationWFactor": 1, "fusedActivationFunction": int(Activation.RELU)}  # fmt: skip
        shape = (1, x.shape[1] // stride, x.shape[2] // stride, channels)
        x = b.op(Builtin.CONV_2D, [x, weights, bias], shape, Quant.per_tensor(0.05, -128), options=options)
    options = {"fusedActivationFunction": 0}
    x = b.op(Builtin.ADD, [before, x], x.shape, Quant.per_tensor(0.1, 0), options=options)
    return b.graph([b.op(Builtin.LOGISTIC, [x], x.shape, Quant.per_tensor(1 / 256, -128))])


def pictures_in_planes(seed: int) -> Graph:
    """A picture as PyTorch has it, halved by convolutions of random sizes until it is small."""
    b, rng = Builder(), np.random.default_rng(seed)
    size = tuple(int(n) for n in rng.integers(24, 56, 2))
    x = b.input("x", (1, 3, *size), quant=Quant.per_tensor(0.05, 3))
    x = b.op(Builtin.TRANSPOSE, [x, b.const(np.array([0, 2, 3, 1], np.int32))], (1, *size, 3), x.quant)
    for stride in (2, 1, 2):
        kernel, channels = int(rng.integers(1, 4)) * 2 - 1, int(rng.integers(2, 9))
        weights = b.const(
            rng.integers(-127, 128, (channels, kernel, kernel, x.shape[3]), np.int8), Quant.per_tensor(0.01)
        )
        bias = b.const(np.zeros(channels, np.int32), Quant.per_tensor(0.0005))
        options = {"padding": int(Padding.SAME), "strideH": stride, "strideW": stride, "dilationHFactor": 1,
                   "dilationWFactor": 1, "fusedActivationFunction": int(Activation.RELU)}  # fmt: skip
        shape = (1, -(-x.shape[1] // stride), -(-x.shape[2] // stride), channels)
        x = b.op(Builtin.CONV_2D, [x, weights, bias], shape, Quant.per_tensor(0.05, -128), options=options)
    return b.graph([x])


def test_rows_of_a_picture_in_planes_die_one_by_one():
    planar = gained = 0
    for seed in range(24):
        graph = read(write(pictures_in_planes(seed)))
        striped = check_equal(graph, random_inputs(graph, seed), oracle=seed % 6 == 0, cycle_budget=ANY)
        kept = compiled(graph, optimise="size", cycle_budget=ANY, keep_inputs=True)
        planar += any(isinstance(call, mc.Conv2DPlanar) for call in striped.program.calls)
        gained += striped.reserve_bytes < kept.reserve_bytes - striped.program.outputs[0].bytes
    assert planar > 8 and gained > 12, (planar, gained)


def bands(program: CompiledGraph) -> int:
    """In how many bands a program computes what is largest in it; 0 if nothing is cut."""
    return len({b.name.split(", band ")[1] for b in program.buffers if ", band " in b.name})


def test_networks_on_pictures_give_the_same_bits_in_bands():
    """The first layers are cut into bands of rows and tiles of columns, whatever windows and padding."""
    cut = most = 0
    for seed in range(32):
        graph = read(write(picture_graph(seed)))
        budget = (0.5, ANY)[seed % 2]
        striped = check_equal(graph, random_inputs(graph, seed), oracle=seed % 8 == 0, cycle_budget=budget)
        cut += bands(striped) > 0
        most = max(most, bands(striped))
    assert cut > 6 and most > 4, (cut, most)


def stem() -> Graph:
    """The first layers of a MobileNetV2 on a picture of 128 x 128."""
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", (1, 128, 128, 3), quant=Quant.per_tensor(0.05, 3))
    for channels, kernel, stride in ((32, 3, 2), (0, 3, 1), (16, 1, 1), (96, 1, 1), (0, 3, 2), (24, 1, 1)):
        n, h, w, c = x.shape
        shape = (channels or 1, kernel, kernel, c)
        weights = b.const(rng.integers(-127, 128, shape, np.int8), Quant.per_tensor(0.01))
        bias = b.const(np.zeros(channels or c, np.int32), Quant.per_tensor(0.0005))
        options = {"padding": int(Padding.SAME), "strideH": stride, "strideW": stride, "dilationHFactor": 1,
                   "dilationWFactor": 1, "fusedActivationFunction": int(Activation.RELU)}  # fmt: skip
        kind = Builtin.CONV_2D if channels else Builtin.DEPTHWISE_CONV_2D
        options |= {} if channels else {"depthMultiplier": 1}
        out = (n, h // stride, w // stride, channels or c)
        x = b.op(kind, [x, weights, bias], out, Quant.per_tensor(0.05, -128), options=options)
    return b.graph([x])


def test_a_picture_that_is_most_of_the_memory_leaves_little_for_the_rest():
    """48 KiB of picture; the rows between the layers, 30 KiB of them if whole, take half of that."""
    inputs = [np.random.default_rng(1).integers(-128, 128, (1, 128, 128, 3), np.int8)]
    striped = check_equal(stem(), inputs, oracle=True, cycle_budget=0.25)
    assert bands(striped) > 1
    assert striped.reserve_bytes < 63 * 1024, striped.reserve_bytes
    assert striped.cycles <= 1.25 * compiled(stem()).cycles
    rows = [b for b in striped.buffers if ", band " in b.name]
    assert all(a.offset + a.nbytes <= striped.scratch_bytes for a in rows)
    for a in rows:  # what is there at the same time is apart
        for b in striped.buffers:
            together = b.first_call <= a.last_call and a.first_call <= b.last_call
            if together and b is not a and b.rows:
                assert a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset


def picture() -> list[np.ndarray]:
    return [np.random.default_rng(1).integers(-128, 128, (1, 32, 32, 3), np.int8)]


def test_every_build_of_the_runtime_gives_the_same_bits():
    whole, striped = compiled(tower()), compiled(tower(), optimise="size", cycle_budget=ANY)
    (wanted,) = run(whole, picture())
    for library in libraries().values():
        np.testing.assert_array_equal(run(striped, picture(), library)[0], wanted)


def test_the_budget_of_cycles_holds():
    whole = compiled(tower())
    before = whole.reserve_bytes + 1
    for budget in (0.0, 0.02, 0.05, 0.2, 1.0):
        program = compiled(tower(), optimise="size", cycle_budget=budget)
        assert program.cycles <= whole.cycles * (1 + budget)
        assert program.cycles == sum(info.cost.cycles for info in program.calls)
        assert program.reserve_bytes <= before
        before = program.reserve_bytes
    assert before < whole.reserve_bytes / 4


def test_the_same_graph_gives_the_same_bytes():
    first, second = (compiled(tower(), optimise="size") for _ in range(2))
    assert first.microcode == second.microcode and first.weights == second.weights


def test_what_is_said_about_a_cascade():
    program = compiled(tower(), optimise="size", cycle_budget=0.5)
    (cascade,) = cascades(program)
    index = program.program.calls.index(cascade)
    info, stages = program.calls[index], program.calls[index + 1 : index + 1 + cascade.stages]
    assert info.operator == "CASCADE" and cascade.stages > 1
    assert set(info.origin) == {name for stage in stages for name in stage.origin}
    assert info.writes == stages[-1].writes and info.reads == stages[0].reads
    rings = {buffer.name: buffer for buffer in program.buffers if buffer.rows}
    assert rings, "maps inside a cascade roll"
    for buffer in rings.values():
        assert (buffer.first_call, buffer.last_call) == (index, index + cascade.stages)
    assert mc.Kernel.CASCADE in program.kernels and mc.Kernel.CONV_2D in program.kernels
    text = mc.disassemble(program.program)
    assert any("cascade" in line and f"stages={cascade.stages}" in line for line in text)
    called = NativeModel(program.microcode, program.weights, library=LIBRARY).profile(picture())
    assert [kernel for kernel, _ in called] == [call.kernel for call in program.program.calls]
    assert all(seconds > 0 for _, seconds in called)


def test_performance_mode_takes_stripes_only_to_fit():
    whole = compiled(tower())
    assert not cascades(whole)
    limit = whole.scratch_bytes // 2 + len(whole.weights)
    program = compiled(tower(), sram_bytes=limit)
    assert cascades(program) and program.sram_bytes <= limit
    np.testing.assert_array_equal(run(program, picture())[0], run(whole, picture())[0])
    tighter = compiled(tower(), sram_bytes=whole.scratch_bytes // 4 + len(whole.weights))
    assert tighter.scratch_bytes < program.scratch_bytes and tighter.cycles >= program.cycles


def test_what_does_not_fit_even_in_stripes_says_the_least():
    whole = compiled(tower())
    with pytest.raises(OpenNeutronError) as caught:
        compiled(tower(), sram_bytes=len(whole.weights) + 64)
    problem = caught.value.diagnostic.problem
    assert caught.value.diagnostic.code == "ON403"
    assert "at least" in problem
    least = int(re.findall(r"[\d,]+", problem)[0].replace(",", ""))
    assert 64 < least < whole.scratch_bytes / 4
    assert compiled(tower(), sram_bytes=len(whole.weights) + least).scratch_bytes == least


@pytest.mark.parametrize("optimise", ["performance", "size"])
def test_weights_are_streamed_to_cascades(optimise):
    whole = compiled(tower())
    program = compiled(
        tower(), optimise=optimise, sram_bytes=whole.scratch_bytes // 2, fetch_constants_to_sram=True
    )
    assert cascades(program) and program.sram_bytes <= whole.scratch_bytes // 2
    np.testing.assert_array_equal(run(program, picture())[0], run(whole, picture())[0])


def test_a_map_wanted_outside_is_whole():
    """A program output in the middle of a cascade, and a map that a later operator reads as a whole."""
    graph = tower()
    middle = graph.ops[1].output
    both = Graph(graph.inputs, [middle, *graph.outputs], graph.ops)
    whole, striped = compiled(both), compiled(both, optimise="size", cycle_budget=ANY)
    for a, b in zip(run(whole, picture()), run(striped, picture()), strict=True):
        np.testing.assert_array_equal(a, b)
    assert cascades(striped)


def joined(way: str) -> Graph:
    """A small map made large by one of the operators that do so, and small again."""
    b, rng = Builder(), np.random.default_rng(0)
    quant = Quant.per_tensor(0.05, -128)
    plain = {"padding": int(Padding.SAME), "strideH": 1, "strideW": 1, "dilationHFactor": 1,
             "dilationWFactor": 1, "fusedActivationFunction": int(Activation.RELU)}  # fmt: skip

    def weights(*shape: int) -> list[Tensor]:
        values = b.const(rng.integers(-127, 128, shape, np.int8), Quant.per_tensor(0.01))
        return [values, b.const(np.zeros(shape[0], np.int32), Quant.per_tensor(0.0005))]

    def conv(x: Tensor, channels: int) -> Tensor:
        inputs = [x, *weights(channels, 3, 3, x.shape[3])]
        return b.op(Builtin.CONV_2D, inputs, (*x.shape[:3], channels), quant, options=plain)

    x = conv(b.input("x", (1, 16, 16, 4), quant=Quant.per_tensor(0.05, 3)), 8)
    n, h, w, c = x.shape
    large = (n, 2 * h, 2 * w, 16)
    if way == "concatenation":
        parts = [conv(x, 24), conv(x, 24), x]
        x = b.op(
            Builtin.CONCATENATION,
            parts,
            (n, h, w, 56),
            quant,
            options={"axis": 3, "fusedActivationFunction": 0},
        )
    elif way == "transposed convolution":
        values, bias = weights(16, 3, 3, c)
        options = {"padding": 0, "strideH": 2, "strideW": 2, "fusedActivationFunction": 0}
        x = b.op(Builtin.TRANSPOSE_CONV, [b.ints(large), values, x, bias], large, quant, options=options)
    elif way == "depth to space":
        x = b.op(Builtin.DEPTH_TO_SPACE, [conv(x, 64)], large, quant, options={"blockSize": 2})
    else:
        x = conv(x, 16)
        kind = Builtin.RESIZE_BILINEAR if way == "bilinear" else Builtin.RESIZE_NEAREST_NEIGHBOR
        options = {"alignCorners": False, "halfPixelCenters": True}
        x = b.op(kind, [x, b.ints(large[1:3])], large, quant, options=options)
    x = conv(x, 2)
    n, h, w, c = x.shape
    return b.graph([b.op(Builtin.TRANSPOSE, [x, b.ints((0, 3, 1, 2))], (n, c, h, w), quant)])


@pytest.mark.parametrize(
    "way", ["concatenation", "transposed convolution", "depth to space", "nearest", "bilinear"]
)
def test_what_makes_a_map_large_is_never_whole(way):
    graph = read(write(joined(way)))
    striped = check_equal(graph, random_inputs(graph, 0), oracle=True, cycle_budget=ANY)
    largest = max(op.output.nbytes for op in graph.ops)
    ports = sum(t.nbytes for t in (*graph.inputs, *graph.outputs))
    assert striped.reserve_bytes < largest / 2 + ports, (striped.reserve_bytes, largest, ports)


def test_networks_along_one_axis_roll_whatever_their_shapes():
    """Element-wise operators in three dimensions between convolutions in four share rows with them."""
    b, rng = Builder(), np.random.default_rng(0)
    quant = Quant.per_tensor(0.05, 3)
    x = b.input("x", (1, 200, 4), quant=quant)
    options = {"padding": int(Padding.SAME), "strideH": 1, "strideW": 1, "dilationHFactor": 1,
               "dilationWFactor": 1, "fusedActivationFunction": 0}  # fmt: skip
    for channels in (32, 32, 4):
        flat = b.reshape(x, (1, 1, *x.shape[1:]))
        shape = (channels, 1, 3, x.shape[2])
        weights = b.const(rng.integers(-127, 128, shape, np.int8), Quant.per_tensor(0.01))
        bias = b.const(np.zeros(channels, np.int32), Quant.per_tensor(0.0005))
        y = b.op(Builtin.CONV_2D, [flat, weights, bias], (1, 1, 200, channels), quant, options=options)
        y = b.reshape(y, (1, 200, channels))
        x = b.op(Builtin.LOGISTIC, [y], y.shape, Quant.per_tensor(1 / 256, -128))
    graph = b.graph([x])
    striped = check_equal(graph, random_inputs(graph, 0), oracle=True, cycle_budget=ANY)
    assert striped.reserve_bytes < 200 * 32 / 2
