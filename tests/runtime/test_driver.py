"""The driver's statuses: what is wrong is named, before anything runs."""

from __future__ import annotations

import ctypes
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openneutron.compiler.microcode import driver
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import (
    Kernel,
    Program,
    Ref,
    Region,
    decode,
    descriptor,
    encode,
    with_checksum,
)
from openneutron.diagnostics import OpenNeutronError
from openneutron.run import native
from tests.native import build, libraries
from tests.runtime.programs import cascade_program, loop_program, programs, streamed_program

LIBRARY = libraries()["portable"]


def words(raw: bytes, **changes: int) -> bytes:
    """The microcode with header fields changed and the checksum repaired."""
    header = mc.unpack(mc.Header, raw)
    return with_checksum(mc.pack(replace(header, **changes)) + raw[mc.format_of(mc.Header).size :])


def refuse(microcode: bytes, weights: bytes, library: Path = LIBRARY) -> str:
    with pytest.raises(OpenNeutronError) as caught:
        native.NativeModel(microcode, weights, library=library)
    return caught.value.diagnostic.problem


def test_runs_and_prefetches():
    microcode, weights = streamed_program()
    model = native.NativeModel(microcode, weights, library=LIBRARY)
    x = np.arange(-16, 16, dtype=np.int8)
    (y,) = model.run([x])
    np.testing.assert_array_equal(x, y)  # the table reverses, twice
    assert (model.scratch_bytes, model.prefetch_bytes) == (32, 256)
    assert [k for k, _ in model.profile([x])] == [Kernel.PREFETCH, Kernel.WAIT, Kernel.TABLE, Kernel.TABLE]


def test_every_kernel_is_called_by_a_program_of_the_tests():
    """They are what is fuzzed, and what an emulated Cortex-M is compared on."""
    called = {kernel for microcode, _ in programs() for kernel in decode(microcode).kernels}
    assert not (missing := set(Kernel) - called), f"no case in tests/kernels calls {missing}"


def test_a_cascade_equals_its_stages_whole():
    x = np.random.default_rng(1).integers(-128, 128, (1, 8, 5, 4), np.int8)
    models = [native.NativeModel(*cascade_program(striped), library=LIBRARY) for striped in (True, False)]
    (striped,), (whole,) = (model.run([x]) for model in models)
    np.testing.assert_array_equal(striped, whole)
    assert [m.scratch_bytes for m in models] == [104, 320]
    kernels = [Kernel.CASCADE, Kernel.CONV_2D, Kernel.TABLE, Kernel.ADD]
    assert [k for k, _ in models[0].profile([x])] == kernels


def _cascade(
    steps: list[tuple[int, int, int]], stages: int = 3, count: int = 0, drop: int = 0, ring: int = 0
) -> bytes:
    microcode, _ = cascade_program()
    program = decode(microcode)
    call = mc.Cascade(stages, count or len(steps), tuple(mc.Step(*s) for s in steps))
    _, conv, *others = program.calls
    source = replace(conv.input, ref=replace(conv.input.ref, rows=ring))
    calls = (call, replace(conv, input=source), *others)
    return encode(replace(program, calls=calls[: len(calls) - drop]))


@pytest.mark.parametrize(
    ("microcode", "message"),
    [
        (_cascade([(3, 0, 1)]), "kernel's range (call 0, kernel CASCADE)"),
        (_cascade([(0, 0, 9)]), "kernel's range (call 0"),
        (_cascade([(1, 0, 9)]), "kernel's range (call 0"),
        (_cascade([(0, 2, 2)]), "kernel's range (call 0"),
        (_cascade([(0, 0, 4)]), "memory region (call 0"),  # four rows in a ring of three
        (_cascade([(0, 1, 2)], ring=2), "memory region (call 0"),  # a window of three rows on a ring of two
        (_cascade([(1, 0, 3)]), "memory region (call 0"),  # three in one of two, by a table
        (_cascade([(2, 0, 3)]), "memory region (call 0"),  # and by a sum
        (_cascade([(0, 0, 1)], stages=0), "kernel's range (call 0"),
        (_cascade([(0, 0, 1)], stages=4), "kernel"),
        (_cascade([(0, 0, 1)], count=2), "kernel's range (call 0"),
        (_cascade([(0, 0, 1)], drop=1), "(call 0, kernel CASCADE)"),
        (_cascade([(0, 0, 1)], drop=3), "(call 0, kernel CASCADE)"),
    ],
)
def test_cascade_errors(microcode, message):
    assert message in refuse(microcode, cascade_program()[1])


def test_preparing_a_long_cascade_is_quick():
    """A step is checked in constant time however its rows lie in rings; a record has 8,000 at most."""
    weights = cascade_program()[1]

    def seconds(count: int) -> float:
        code = _cascade([(i % 3, i % 7, i % 7 + 2) for i in range(count)])
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            native.NativeModel(code, weights, library=LIBRARY)
            best = min(best, time.perf_counter() - start)
        return best

    few, many = seconds(1000), seconds(8000)
    assert many < 20 * few and many < 0.1


def test_a_loop_equals_its_turns_one_by_one():
    x = np.random.default_rng(1).integers(-128, 128, (8, 4), np.int8)
    models = [native.NativeModel(*loop_program(rolled), library=LIBRARY) for rolled in (True, False)]
    for model in models:
        (y,) = model.run([x])
        np.testing.assert_array_equal(y, (-1 - x)[::-1])
    assert [k for k, _ in models[0].profile([x])] == [Kernel.LOOP, Kernel.TABLE, Kernel.COPY]


def _loop(*moves: tuple[int, int, int], body: int = 2, times: int = 8, count: int | None = None,
          drop: int = 0, inside: mc.Params | None = None) -> bytes:  # fmt: skip
    program = decode(loop_program()[0])
    call = mc.Loop(body, times, len(moves) if count is None else count, tuple(mc.Move(*m) for m in moves))
    calls = (inside, *program.calls[2:]) if inside else program.calls[1 : len(program.calls) - drop]
    return encode(replace(program, calls=(call, *calls)))


@pytest.mark.parametrize(
    ("microcode", "message"),
    [
        (_loop((0, 0, 4), (1, 8, -4), times=9), "memory region (call 0, kernel LOOP)"),
        (_loop((0, 0, 5), (1, 8, -4)), "memory region (call 0"),
        (_loop((0, 0, 4), (1, 8, -5)), "memory region (call 0"),
        (_loop((0, 0, 1 << 29), times=9), "memory region (call 0"),  # round the 32 bits to where it began
        (_loop((0, 0, (1 << 31) - 1), times=0xFFFFFF), "memory region (call 0"),
        (_loop((0, 8, 1 << 30), times=5), "memory region (call 0"),
        (_loop((0, 16, 0)), "kernel's range (call 0"),  # the table, a constant
        (_loop((0, 4, 4)), "kernel's range (call 0"),  # the offset in an address, not the address
        (_loop((0, 24, 4)), "kernel's range (call 0"),  # a count
        (_loop((0, 3, 4)), "kernel's range (call 0"),
        (_loop((0, 0xFFFC, 4)), "kernel's range (call 0"),
        (_loop((1, 8, -4), (0, 0, 4)), "kernel's range (call 0"),  # not in order
        (_loop((0, 0, 2), (0, 0, 2)), "kernel's range (call 0"),
        (_loop((2, 0, 4)), "kernel's range (call 0"),
        (_loop((0, 0, 4), count=2), "kernel's range (call 0"),
        (_loop((0, 0, 4), count=0), "kernel's range (call 0"),
        (_loop(body=0), "kernel's range (call 0"),
        (_loop(body=129), "kernel's range (call 0"),
        (_loop(times=0), "kernel's range (call 0"),
        (_loop(times=1 << 24), "kernel's range (call 0"),
        (_loop(body=3), "(call 0, kernel LOOP)"),
        (_loop(drop=1), "(call 0, kernel LOOP)"),
        (_loop(drop=2), "(call 0, kernel LOOP)"),
        (_loop(inside=mc.Loop(1, 2, 0, ())), "kernel's range (call 0"),
        (_loop(inside=mc.Cascade(1, 1, (mc.Step(0, 0, 1),))), "kernel's range (call 0"),
    ],
)
def test_loop_errors(microcode, message):
    assert message in refuse(microcode, loop_program()[1])


def test_preparing_a_long_loop_is_quick():
    begun = time.perf_counter()
    native.NativeModel(_loop(times=0xFFFFFF), loop_program()[1], library=LIBRARY)
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": 0x64434D6E}, "not an OpenNeutron microcode"),
        ({"format_version": 99}, "another format version"),
        ({"target": 77}, "another target"),
        ({"header_bytes": 64}, "header contradicts itself"),
        ({"inputs": 300}, "header contradicts itself"),
        ({"calls_offset": 8}, "header contradicts itself"),
        ({"weights_bytes": 1 << 20}, "weights are shorter"),
        ({"weights_crc": 1}, "weights are damaged"),
        ({"calls": 9}, "malformed (call 4"),
        ({"scratch_bytes": 8}, "outside its memory region (call 2, kernel TABLE)"),
        ({"prefetch_bytes": 16}, "outside its memory region (call 0, kernel PREFETCH)"),
        ({"channels": 0}, "outside the kernel's range (call 0, kernel PREFETCH)"),
        ({"required_kernels": (0, 1 << 30, 0, 0)}, "does not know"),
    ],
)
def test_header_errors(change, message):
    microcode, weights = streamed_program()
    assert message in refuse(words(microcode, **change), weights)


def test_every_truncation_is_noticed():
    microcode, weights = streamed_program()
    for size in range(len(microcode)):
        problem = refuse(microcode[:size], weights)
        assert "shorter" in problem or "null" in problem, (size, problem)
    refuse(microcode, weights[:100])


def test_every_flipped_bit_is_noticed():
    microcode, weights = streamed_program()
    for bit in range(len(microcode) * 8):
        damaged = bytearray(microcode)
        damaged[bit // 8] ^= 1 << bit % 8
        refuse(bytes(damaged), weights)


def _calls(*calls: mc.Params, **changes: int) -> bytes:
    shape = (descriptor("int8", (32,)),)
    program = Program(calls, shape, shape, 256, 32)
    return words(encode(program), **changes) if changes else encode(program)


_IN, _OUT, _WEIGHTS = Ref(Region.INPUT), Ref(Region.OUTPUT), Ref(Region.WEIGHTS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (mc.Table(_IN, _IN, _WEIGHTS, 1, 32, 32, 32), "write to an input"),
        (mc.Table(_IN, _WEIGHTS, _WEIGHTS, 1, 32, 32, 32), "write to an input"),
        (mc.Table(Ref(Region.INPUT, 1), _OUT, _WEIGHTS, 1, 1, 1, 1), "memory region"),
        (mc.Table(Ref(9), _OUT, _WEIGHTS, 1, 1, 1, 1), "memory region"),
        (mc.Table(_IN, Ref(Region.OUTPUT, offset=1), _WEIGHTS, 1, 32, 32, 32), "memory"),
        (mc.Table(_IN, _OUT, _WEIGHTS, 0, 32, 32, 32), "kernel's range"),
        (mc.Softmax(_IN, _OUT, 1, 32, 1, 31, -1), "kernel's range"),
        (mc.Dequantize(_IN, Ref(Region.OUTPUT, offset=2), 4, 1.0, 0), "not aligned"),
    ],
)
def test_call_errors(call, message):
    assert message in refuse(words(_calls(call), weights_crc=0x0D968558), bytes(256))


def test_wrong_inputs_are_named():
    microcode, weights = streamed_program()
    model = native.NativeModel(microcode, weights, library=LIBRARY)
    with pytest.raises(OpenNeutronError, match=r"0 inputs given, the model has 1"):
        model.run([])
    with pytest.raises(OpenNeutronError, match=r"input 0 is int8\[31\], the model takes int8\[32\]"):
        model.run([np.zeros(31, np.int8)])


def test_run_checks_its_buffers():
    """Statuses that Python's own checks would hide."""
    microcode, weights = streamed_program()
    model = native.NativeModel(microcode, weights, library=LIBRARY)
    library = driver.load(LIBRARY)
    data = np.zeros(512, np.uint8)
    at = data.ctypes.data + -data.ctypes.data % 16

    def status(size_in=32, size_out=32, scratch=(at, 32), prefetch=(at + 64, 256), count=1, out=at) -> str:
        ins, outs = driver.Buffer(at, size_in), driver.Buffer(out, size_out)
        run = native._Run(ctypes.pointer(ins), count, ctypes.pointer(outs), count, driver.Buffer(*scratch),
                          driver.Buffer(*prefetch), None)  # fmt: skip
        return driver.message(
            library, model._model, library.neutron_run(ctypes.byref(model._model), ctypes.byref(run))
        )

    assert status() == "no error"
    assert "input buffer is smaller" in status(size_in=31)
    assert "output buffer is smaller" in status(size_out=31)
    assert "scratch buffer is smaller" in status(scratch=(at, 31))
    assert "not aligned" in status(scratch=(at + 1, 32))
    assert "prefetch buffer is smaller" in status(prefetch=(at + 64, 255))
    assert "number of inputs" in status(count=0)
    assert "pointer is null" in status(out=None)
    empty = driver.Model()
    run = native._Run()
    code = library.neutron_run(ctypes.byref(empty), ctypes.byref(run))
    assert "not prepared" in driver.message(library, empty, code)
    assert "null" in driver.message(library, empty, library.neutron_prepare(None, None))


def test_every_status_and_kernel_has_words():
    library = driver.load(LIBRARY)
    library.neutron_status_message.restype = library.neutron_kernel_name.restype = ctypes.c_char_p
    messages = [library.neutron_status_message(i) for i in range(29)]
    assert len(set(messages)) == 29 and b"unknown status" not in messages
    assert library.neutron_status_message(29) == b"unknown status"
    assert [library.neutron_kernel_name(k).decode() for k in Kernel] == [k.name for k in Kernel]


SELECTION = """
#include "neutron.h"
int32_t (*const neutronKernels[NEUTRON_KERNEL_KINDS])(const struct NeutronMachine *, const void *) = {
    [NEUTRON_KERNEL_PREFETCH] = neutron_prefetch, [NEUTRON_KERNEL_WAIT] = neutron_wait, %s
};
"""


def test_missing_kernel_is_named(tmp_path):
    """A strong table replaces the weak one; a kernel it lacks is refused by name."""
    microcode, weights = streamed_program()
    flags = ("-O1", "-fPIC", "-shared")
    (tmp_path / "without.c").write_text(SELECTION % "")
    without = build("libneutron_without.so", *flags, extra=(tmp_path / "without.c",))
    problem = refuse(microcode, weights, without)
    assert problem == "the microcode needs a kernel that is not linked into this firmware (kernel TABLE)"
    (tmp_path / "with.c").write_text(SELECTION % "[NEUTRON_KERNEL_TABLE] = neutron_table,")
    enough = build("libneutron_with.so", *flags, extra=(tmp_path / "with.c",))
    x = np.arange(32, dtype=np.int8)
    np.testing.assert_array_equal(native.NativeModel(microcode, weights, library=enough).run([x])[0], x)


def test_callbacks_get_the_copies():
    """The application's copy and wait are called in order, with the channel; their failure ends the run."""
    microcode, weights = streamed_program()
    model = native.NativeModel(microcode, weights, library=LIBRARY)
    log: list[tuple[str, int]] = []

    @native._COPY
    def copy(_context, destination, source, size, channel):
        ctypes.memmove(destination, source, size)
        log.append(("copy", channel))
        return 0

    @native._WAIT
    def wait(_context, channel):
        log.append(("wait", channel))
        return 0 if len(log) < 4 else 5

    hooks = native._Hooks(None, copy, wait, native._TRACE())
    x = np.arange(32, dtype=np.int8)
    np.testing.assert_array_equal(model._run_with(hooks, [x])[0], x)
    assert log == [("copy", 0), ("wait", 0)]
    with pytest.raises(OpenNeutronError, match="callback reported an error"):
        model._run_with(hooks, [x])


def test_python_decodes_what_the_driver_takes():
    microcode, _ = streamed_program()
    assert encode(decode(microcode)) == microcode
    assert struct.unpack_from("<13I", microcode)[6] == len(microcode)
