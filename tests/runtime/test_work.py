"""Work has a bound: it is counted before anything runs, refused above a limit, and a run can be stopped."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from openneutron.compiler.microcode import driver
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Program, Ref, Region, decode, descriptor, encode
from openneutron.diagnostics import OpenNeutronError
from openneutron.package.payload import pack, parse
from openneutron.package.seal import seal
from openneutron.run.native import NativeModel
from openneutron.run.program import load_program
from tests.hostile import mutate_pte
from tests.runtime.programs import loop_program, programs


def bomb(times: int, copies: int = 1, size: int = 1 << 20, apart: int = 1) -> bytes:
    """A few hundred bytes that copy `size` bytes, each so far from the next, `times * copies` times."""
    dims, strides = (1, 1, 1, 1, 1, size), (0, 0, 0, 0, 0, apart)
    copy = mc.Copy(Ref(Region.SCRATCH), Ref(Region.SCRATCH, offset=size * apart), 1, dims, strides, strides)
    port = (descriptor("int8", (1,)),)
    calls = (mc.Loop(copies, times, 0, ()), *[copy] * copies)
    return encode(Program(calls, port, port, 0, 2 * size * apart))


def slow() -> bytes:
    """Byte by byte, just below the limit: minutes on the fastest machine."""
    return bomb(200_000, 4, 1 << 19, 3)


def refused(microcode: bytes, weights: bytes = b"", most_work: int = 0) -> str:
    with pytest.raises(OpenNeutronError) as raised:
        NativeModel(microcode, weights, most_work=most_work)
    assert raised.value.diagnostic.code == "ON521"
    return raised.value.diagnostic.problem


def test_a_few_hundred_bytes_that_ask_for_days_are_refused():
    microcode = bomb(0xFFFFFF, 4, 1 << 23)
    assert len(microcode) < 800
    problem = "the microcode asks for more work than the caller allows (call 0, kernel LOOP)"
    assert refused(microcode) == problem


def test_the_limit_is_the_callers():
    microcode = bomb(100)
    work = NativeModel(microcode, b"").work
    assert 100 << 20 <= work < 1000 << 20
    NativeModel(microcode, b"", most_work=work)
    refused(microcode, most_work=work - 1)
    with pytest.raises(OpenNeutronError, match="ON104"):
        NativeModel(microcode, b"", most_work=-1)


def test_loops_multiply():
    one, eight, sixteen = (NativeModel(*loop_program(times=n)).work for n in (1, 8, 16))
    assert eight == 8 * one and sixteen == 16 * one
    assert NativeModel(*loop_program(rolled=False)).work == eight


def test_numbers_saturate():
    library = driver.load()
    most = (1 << 64) - 1
    for function, exact in ((library.neutron_times, int.__mul__), (library.neutron_plus, int.__add__)):
        function.restype = ctypes.c_uint64
        for a in (0, 1, 3, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 33) + 1, 1 << 63, most):
            for b in (0, 1, 2, 5, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 63, most):
                assert function(ctypes.c_uint64(a), ctypes.c_uint64(b)) == min(exact(a, b), most), (a, b)


def test_every_kernel_counts_what_it_does():
    """No less than the multiplications of its record, nor half of its bytes: one is read, one written."""
    array = SimpleNamespace(pipes=1, depth=1)
    seen = set()
    for microcode, weights in programs(4):
        calls = decode(microcode).calls
        times = [call.times for call in calls if isinstance(call, mc.Loop)] or [1]
        macs, moved = (sum(n) for n in zip(*((c.work(array).macs, c.moved()) for c in calls), strict=True))
        least = max(macs, moved // 2) * times[0]
        seen |= {call.kernel for call in calls}
        assert NativeModel(microcode, weights).work >= least, calls
    assert seen == set(mc.Kernel)


@cache
def small_program() -> bytes:
    return mutate_pte.small_programs()[0]


def test_a_program_is_refused_by_name_and_loads_with_a_larger_limit():
    """In the process that rehearses it, too: it is given the same limit."""
    with pytest.raises(OpenNeutronError, match="asks for more work than the caller allows") as raised:
        load_program(small_program(), most_work=1000).run([np.zeros((1, 3, 6, 6), np.float32)])
    assert raised.value.diagnostic.code == "ON521"
    for most_work in (1 << 30, 0):
        assert load_program(small_program(), most_work=most_work).run([np.zeros((1, 3, 6, 6), np.float32)])


RUN = """
import numpy as np
from openneutron.run.native import NativeModel
from tests.runtime.test_work import slow
model = NativeModel(slow(), b"", threads={threads})
assert model.work > 1 << 41
print("begins", flush=True)
model.run([np.zeros(1, np.int8)])
"""
DELEGATE = """
import numpy as np
from openneutron.run.program import load_program
from tests.runtime.test_work import endless
program = load_program(endless(), trust=True)
print("begins", flush=True)
program.run([np.zeros((1, 3, 6, 6), np.float32)])
"""


def endless() -> bytes:
    """A good program whose delegate first copies for many minutes."""
    from executorch.exir._serialize._program import PTEFile, deserialize_pte_binary, serialize_pte_binary

    program = deserialize_pte_binary(small_program()).program
    ((index, data),) = [(i, d.data) for i, d in enumerate(program.backend_delegate_data)]
    payload = parse(bytes(data))
    found, copying = decode(payload.microcode), decode(slow())
    room = max(found.scratch_bytes, copying.scratch_bytes)
    longer = replace(found, calls=(*copying.calls, *found.calls), scratch_bytes=room)
    program.backend_delegate_data[index].data = pack(replace(payload, microcode=encode(longer)))
    return seal(bytes(serialize_pte_binary(PTEFile(program=program))))


def interrupted(script: str) -> str:
    """What a script says that is interrupted in the middle of its run; one that does not end, fails."""
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where a suite runs in the background, a shell has Ctrl-C ignored, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "begins\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        return child.communicate(timeout=100)[1]
    finally:
        child.kill()


@pytest.mark.parametrize("threads", [1, 4])
def test_ctrl_c_ends_a_run_that_would_take_minutes(threads):
    assert "KeyboardInterrupt" in interrupted(RUN.format(threads=threads))


def test_ctrl_c_ends_a_delegate_that_would_take_minutes():
    assert "KeyboardInterrupt" in interrupted(DELEGATE)
