"""Threads that walk through a program together: whatever makes one of them leave, none waits for it for ever.

Each test runs in a process of its own, and taking too long is failing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60
"""Far more than any of these take, on a busy machine too."""

PROGRAM = '''
import ctypes, threading, time, zlib
import numpy as np
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import Program, Ref, Region, descriptor, encode
from openneutron.diagnostics import OpenNeutronError
from openneutron.run import native
from tests.run.test_threads import _RUN, _YIELD, _Threads

RUNS = 1 << 20

def program(bad):
    """A long GATHER, in which the `bad` entry (if any) is wrong, then a TABLE that is split."""
    entries = np.zeros(RUNS + 5, np.int32)
    if bad is not None:
        entries[bad] = 1 << 20
    weights = np.arange(256, dtype=np.uint8).tobytes() + entries.tobytes()
    calls = (
        mc.Gather(Ref(Region.INPUT), Ref(Region.SCRATCH), Ref(Region.WEIGHTS, offset=256),
                  (RUNS, 1, 1, 1, 1, 1), 1, 64),
        mc.Table(Ref(Region.SCRATCH), Ref(Region.OUTPUT), Ref(Region.WEIGHTS), 1, RUNS, RUNS, RUNS),
    )
    ports = (descriptor("int8", (64,)),), (descriptor("int8", (RUNS,)),)
    return encode(Program(calls, *ports, len(weights), RUNS, weights_crc=zlib.crc32(weights))), weights

def run(threads, bad):
    microcode, weights = program(bad)
    model = native.NativeModel(microcode, weights, threads=threads)
    try:
        model.run([np.zeros(64, np.int8)])
    except OpenNeutronError as error:
        assert "out of range" in str(error), error
    else:
        assert bad is None
'''

MEMBER_1_FIRST = '''
def in_order(context, parts, task, argument):
    """Thread 1 begins, takes the GATHER over from thread 0, and is still at it when that one comes."""
    other = threading.Thread(target=task, args=(argument, 1))
    other.start()
    time.sleep(0.002)
    task(argument, 0)
    other.join()

threads = _Threads(None, 2, _RUN(in_order), _YIELD(lambda: None))
native._threads = lambda library, count: ctypes.addressof(threads)
for _ in range(5):
    run(2, RUNS - 1)
    run(2, None)
'''

POOL = """
rng = np.random.default_rng(1)
for i in range(60):
    run(int({threads}), None if i % 6 == 0 else int(rng.integers(RUNS)))
"""


def limited(script: str) -> None:
    """Run the script; a fault fails the test, and so does taking too long."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM + script]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr


def test_a_thread_that_fails_in_what_it_took_over() -> None:
    limited(MEMBER_1_FIRST)


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_threads_of_a_run_that_fails(threads: int) -> None:
    limited(POOL.format(threads=threads))
