"""Small valid programs that together use every kernel: material for the driver's tests and the fuzzer."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from openneutron.compiler import microcode as mc
from openneutron.compiler.constants import ConstPool
from openneutron.compiler.microcode import Program, Ref, Region, descriptor, encode
from tests.kernels import test_conv, test_elementwise, test_move, test_reduce
from tests.kernels.harness import Maker, program_of

CASES = (
    test_conv.conv, test_conv.grouped, test_conv.depthwise, test_conv.transpose_conv,
    test_conv.fully_connected, test_conv.batch_matmul, test_conv.pool, test_elementwise.add,
    test_elementwise.sub, test_elementwise.mul,
    test_elementwise.extremum, test_elementwise.squared_difference, test_elementwise.prelu,
    test_elementwise.softmax, test_elementwise.quantize, test_elementwise.requantize,
    test_elementwise.dequantize,
    test_move.transpose, test_move.strided_slice, test_move.concat, test_move.pad, test_move.mirror_pad,
    test_move.gather, test_move.resize, test_reduce.mean, test_reduce.extremum, test_reduce.arg_max,
)  # fmt: skip


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


def programs(per_case: int = 4) -> list[tuple[bytes, bytes]]:
    """(microcode, weights) pairs, one op each."""
    make = Maker(np.random.default_rng(0))
    result = [streamed_program()]
    for case in CASES:
        for _ in range(per_case):
            program, weights, _, _ = program_of([case(make)])
            result.append((encode(program), weights))
    return result


def write_corpus(path: Path) -> Path:
    """The programs as the file the fuzzer reads."""
    path.write_bytes(b"".join(struct.pack("<II", len(m), len(w)) + m + w for m, w in programs()))
    return path
