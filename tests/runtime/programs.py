"""Small valid programs that together use every kernel: material for the driver's tests and the fuzzer."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.graph.fuse_conv import PLANAR
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Program, Ref, Region, descriptor, encode
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.select.select import select
from openneutron.litert.ir import Builtin, Op
from openneutron.options import CompileOptions
from openneutron.targets.table import find_target
from tests.compiler.graphs import random_graph
from tests.compiler.test_islands import random_island
from tests.kernels import test_conv, test_elementwise, test_move, test_reduce
from tests.kernels.harness import Maker, program_of
from tests.kernels.test_move import looked_up, woven
from tests.kernels.test_rows import accumulated, takes_all_rows
from tests.stateful.graphs import adding_up, cache, changing_places, random_window


def planar(make: Maker) -> Op:
    """a convolution of an image in planes: an operator of the compiler's own, unknown to the oracle."""
    op = test_conv.conv(make)
    (_, h, w, _), weights = op.operand(0).shape, op.operand(1)
    image = make.tensor((1, weights.shape[3], h, w))
    out = make.tensor((1, *op.output.shape[1:]), op.output.quant)
    options = dict(op.options)
    return Op(Builtin.CUSTOM, [image, *op.inputs[1:]], [out], options, custom_name=PLANAR)


_MODULES = (test_conv, test_elementwise, test_move, test_reduce)
CASES = (planar, *(case for module in _MODULES for case, _ in module.CASES))


def streamed_program() -> tuple[bytes, bytes]:
    """A table that is prefetched before it is used."""
    pool = ConstPool()
    table = pool.add(np.arange(255, -1, -1, dtype=np.uint8))
    weights = pool.bytes()
    target = Ref(Region.PREFETCH)
    calls = (
        mc.Prefetch(table, target, 256, 0),
        mc.Wait(0),
        mc.Table(Ref(Region.INPUT), Ref(Region.SCRATCH), target, 1, 32, 32, 32),
        mc.Table(Ref(Region.SCRATCH), Ref(Region.OUTPUT), target, 2, 16, 16, 16),
    )
    shape = (descriptor("int8", (32,)),)
    program = Program(calls, shape, shape, len(weights), 32, 256, weights_crc=zlib.crc32(weights))
    return encode(program), weights


def cascade_program(striped: bool = True) -> tuple[bytes, bytes]:
    """Convolution, table and sum: in stripes of two rows, with rings of three and two rows, or whole."""
    make = Maker(np.random.default_rng(3))
    x, y = make.tensor((1, 8, 5, 4)), make.tensor((1, 8, 5, 4))
    pool = ConstPool()
    weights = make.weights((4, 3, 3, 4), 0)
    bias = make.bias(4, x, weights)
    options = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1,
               "fusedActivationFunction": 0}  # fmt: skip
    row, ring = 20, Ref(Region.SCRATCH, rows=3 if striped else 0)
    places = {x: Ref(Region.INPUT), y: ring}
    (conv,) = select(Op(Builtin.CONV_2D, [x, weights, bias], [y], options), places.__getitem__, pool)
    second = Ref(Region.SCRATCH, rows=2, offset=64) if striped else Ref(Region.SCRATCH, offset=160)
    table = mc.Table(ring, second, pool.add(np.arange(256, dtype=np.uint8)[::-1].copy()), 8, row, row, row)
    dims, strides = (8, 1, 1, 1, 1, row), (row, 0, 0, 0, 0, 1)
    walk = mc.Broadcast(Ref(Region.INPUT), second, Ref(Region.OUTPUT), dims, strides, strides, strides)
    one = 1 << 30
    add = mc.Add(walk, 20, 1, -2, 3, one, 0, one, 0, one, -19, -128, 127)
    steps: list[mc.Step] = []
    for y0 in range(0, 8, 2):
        steps += [mc.Step(stage, y0, y0 + 2) for stage in range(3)]
    calls: tuple[mc.Params, ...] = (conv, table, add)
    calls = (mc.Cascade(3, len(steps), tuple(steps)), *calls) if striped else calls
    shape = (descriptor("int8", x.shape),)
    raw = pool.bytes()
    program = Program(calls, shape, shape, len(raw), 104 if striped else 320, weights_crc=zlib.crc32(raw))
    return encode(program), raw


def loop_program(rolled: bool = True, times: int = 8) -> tuple[bytes, bytes]:
    """Reversed by a table, a row at a time, into the last row first; the rows stay in scratch in between."""
    pool = ConstPool()
    table = pool.add(np.arange(256, dtype=np.uint8)[::-1].copy())
    scratch, strides, end = Ref(Region.SCRATCH), (0, 0, 0, 0, 0, 1), 4 * (times - 1)
    turns = [
        (
            mc.Table(Ref(Region.INPUT, offset=4 * i), scratch, table, 1, 4, 4, 4),
            mc.Copy(scratch, Ref(Region.OUTPUT, offset=end - 4 * i), 1, (1, 1, 1, 1, 1, 4), strides, strides),
        )
        for i in range(times)
    ]
    moves = (mc.Move(0, 0, 4), mc.Move(1, 8, -4))
    calls = (mc.Loop(2, times, 2, moves), *turns[0]) if rolled else tuple(call for t in turns for call in t)
    shape = (descriptor("int8", (times, 4)),)
    raw = pool.bytes()
    return encode(Program(calls, shape, shape, len(raw), 16, weights_crc=zlib.crc32(raw))), raw


def accumulating_program(seed: int) -> tuple[bytes, bytes]:
    """A reduction or a fully connected layer that takes two rows at a time."""
    program, raw = accumulated(takes_all_rows(Maker(np.random.default_rng(seed))), 2)
    return encode(program), raw


def sequence_program() -> tuple[bytes, bytes]:
    """Two fully connected layers of a sequence, in stripes of two rows with rings of three and two."""
    make = Maker(np.random.default_rng(4))
    x, y, z = (make.tensor((1, 8, width)) for width in (5, 12, 7))
    first, second = Ref(Region.SCRATCH, rows=3), Ref(Region.SCRATCH, rows=2, offset=48)
    places, pool = {x: Ref(Region.INPUT), y: first, z: second}, ConstPool()
    calls: list[mc.Params] = []
    for source, out in ((x, y), (y, z)):
        weights = make.weights((out.shape[2], source.shape[2]), 0)
        options = {"fusedActivationFunction": 0, "keepNumDims": True}
        op = Op(
            Builtin.FULLY_CONNECTED,
            [source, weights, make.bias(out.shape[2], source, weights)],
            [out],
            options,
        )
        calls += select(op, places.__getitem__, pool)
    dims, strides = (8, 1, 1, 1, 1, 7), (7, 0, 0, 0, 0, 1)
    calls.append(mc.Copy(second, Ref(Region.OUTPUT), 1, dims, strides, strides))
    steps = [mc.Step(stage, row, row + 2) for row in range(0, 8, 2) for stage in range(3)]
    raw = pool.bytes()
    shapes = [(descriptor("int8", t.shape),) for t in (x, z)]
    cascade = mc.Cascade(3, len(steps), tuple(steps))
    program = Program((cascade, *calls), *shapes, len(raw), 64, weights_crc=zlib.crc32(raw))
    return encode(program), raw


def island_program(seed: int) -> tuple[bytes, bytes]:
    """A random float expression with reductions, some with a function behind it."""
    rng = np.random.default_rng(seed)
    compiled = compile_graph(random_island(rng), find_target("imxrt700"), CompileOptions())
    return compiled.microcode, compiled.weights


def arena_program(seed: int) -> tuple[bytes, bytes]:
    """A random network with its inputs and outputs in scratch."""
    options = CompileOptions(optimise="size", cycle_budget=2.0)
    compiled = compile_graph(random_graph(seed, 3), find_target("imxrt700"), options)
    assert any(d.place for d in compiled.program.inputs)
    return compiled.microcode, compiled.weights


def remembering(count: int) -> list[tuple[bytes, bytes]]:
    """Programs with states of all kinds, first a window that is shifted; in one memory mode each."""
    found, random = [], (random_window, adding_up, cache)
    for number in range(count):
        options = CompileOptions(optimise=("performance", "size")[number // 4 % 2])
        random = (random_window, adding_up, cache)
        graph = random[number % 4](number + 24) if number % 4 < 3 else changing_places()
        compiled = compile_graph(graph, find_target("imxrt700"), options)
        found.append((compiled.microcode, compiled.weights))
    return found


def programs(per_case: int = 4) -> list[tuple[bytes, bytes]]:
    """(microcode, weights) pairs, one op each."""
    make = Maker(np.random.default_rng(0))
    result = [streamed_program(), *[cascade_program(), loop_program()] * 2 * per_case]
    result += [arena_program(seed) for seed in range(2 * per_case)]
    result += [(encode(woven(3, 5, length)), b"") for length in (4, 300)] * per_case
    result += remembering(8 * per_case)
    table = bytes(range(256))
    result += [(encode(looked_up((4, 6, n, 80, 5), table)), table) for n in (3, 70)] * per_case
    result += [accumulating_program(seed) for seed in range(4 * per_case)] + [sequence_program()] * per_case
    for case in CASES:
        for _ in range(per_case):
            program, weights, _, _ = program_of([case(make)])
            result.append((encode(program), weights))
    return result + [island_program(seed) for seed in range(4 * per_case)]


def write_corpus(path: Path, per_case: int = 4, found: list[tuple[bytes, bytes]] | None = None) -> Path:
    """The programs, or those given, as the file the fuzzer reads."""
    found = programs(per_case) if found is None else found
    path.write_bytes(b"".join(struct.pack("<II", len(m), len(w)) + m + w for m, w in found))
    return path
