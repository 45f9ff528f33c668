"""Programs whose single calls are hostile: what prepare accepts cannot leave its memory, on any machine."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Program, Ref, Region, decode, descriptor, encode
from openneutron.diagnostics import OpenNeutronError
from openneutron.run import native
from tests.kernels import test_conv, test_move
from tests.kernels.harness import Maker, program_of
from tests.native import libraries


def one_call(case) -> tuple[Program, bytes]:
    program, weights, _, _ = program_of([case(Maker(np.random.default_rng(0)))])
    return program, weights


def changed(program: Program, **fields) -> bytes:
    """The program with fields of its only call changed and room for them in its scratch."""
    (call,) = [c for c in program.calls if set(fields) <= set(vars(c))]
    calls = tuple(replace(c, **fields) if c is call else c for c in program.calls)
    return encode(replace(program, calls=calls, scratch_bytes=1 << 16))


def refuse(microcode: bytes, weights: bytes, word: str) -> None:
    for library in libraries().values():
        with pytest.raises(OpenNeutronError) as raised:
            native.NativeModel(microcode, weights, library=library)
        assert word in raised.value.diagnostic.problem


@pytest.mark.parametrize("case", [test_move.gather, test_move.resize], ids=["gather", "resize"])
@pytest.mark.parametrize("region", [Region.SCRATCH, Region.OUTPUT, Region.INPUT])
def test_a_table_lies_where_no_kernel_writes(case, region):
    """A table that the call itself overwrites would be checked and then read again."""
    program, weights = one_call(case)
    if not any(hasattr(c, "tables") for c in program.calls):
        pytest.skip("computed without a table")
    refuse(changed(program, tables=Ref(region)), weights, "parameters")


def test_tables_are_checked_where_they_are_used():
    """A table whose entries point outside the input is an error of the run, not an access."""
    weights = np.array([0, 4, 0, 0, 0, 0, 0], np.int32).tobytes()
    gather = mc.Gather(Ref(Region.INPUT), Ref(Region.OUTPUT), Ref(Region.WEIGHTS), (2, 1, 1, 1, 1, 1), 4, 8)
    shape = (descriptor("int8", (8,)),)
    x = np.arange(8, dtype=np.int8)
    for last, good in ((4, True), (5, False), (-1, False), (2**31 - 1, False)):
        raw = np.frombuffer(weights, np.int32).copy()
        raw[1] = last
        data = raw.tobytes()
        program = Program((gather,), shape, shape, len(data), 0, weights_crc=zlib.crc32(data))
        model = native.NativeModel(encode(program), data, library=libraries()["portable"])
        if good:
            np.testing.assert_array_equal(model.run([x])[0], x)
        else:
            with pytest.raises(OpenNeutronError, match="table"):
                model.run([x])


@pytest.mark.parametrize("case", [test_conv.conv, test_conv.fully_connected], ids=["conv", "dense"])
def test_packed_weights_are_aligned(case):
    """Cores with the DSP extension load whole groups, two at a time: an odd address is a fault there."""
    program, weights = one_call(case)
    (call,) = [c for c in program.calls if hasattr(c, "weights")]
    odd = replace(call.weights, offset=call.weights.offset + 1)
    refuse(changed(program, weights=odd), weights + bytes(64), "aligned")


def test_words_are_not_read_from_an_input_of_bytes():
    """The base of an int8 input may be odd, whatever the offset is."""
    program, weights = one_call(test_conv.conv)
    (call,) = [c for c in program.calls if hasattr(c, "channels")]
    large = (descriptor("int8", (1 << 16,)),)
    calls = tuple(replace(c, channels=Ref(Region.INPUT)) if c is call else c for c in program.calls)
    refuse(encode(replace(program, calls=calls, inputs=large)), weights, "aligned")


def test_an_average_of_millions_of_taps():
    """-128 times 2^24, less half of the count, is no int32."""
    h, w = 4096, 4095
    window = mc.Window(1, h, w, 1, 1, 1, 1, h, w, 1, 1, 1, 1, 0, 0, 0, 1)
    views = mc.View(Ref(Region.INPUT), 1, w), mc.View(Ref(Region.OUTPUT), 1, 1)
    pool = mc.AveragePool2D(*views, window, -128, 127)
    shapes = (descriptor("int8", (h, w)),), (descriptor("int8", (1, 1)),)
    microcode = encode(Program((pool,), *shapes, 0, 0))
    for library in libraries().values():
        model = native.NativeModel(microcode, b"", library=library)
        assert model.run([np.full((h, w), -128, np.int8)])[0].item() == -128


def test_a_program_still_decodes():
    """The helper that changes programs keeps them whole."""
    program, _ = one_call(test_conv.conv)
    assert decode(changed(program)).calls == program.calls
