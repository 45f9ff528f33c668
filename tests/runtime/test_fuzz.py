"""The driver survives any bytes: a seeded fuzzer under the address and undefined-behaviour sanitizers.

The long run, for a change to the checks (an hour, a seed of its own):
`OPENNEUTRON_FUZZ_SECONDS=3600 OPENNEUTRON_FUZZ_SEED=$RANDOM pytest tests/runtime/test_fuzz.py -m slow -s`
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from tests.native import build
from tests.runtime.programs import write_corpus

SANITIZE = (
    "-O1", "-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all",
    "-D_POSIX_C_SOURCE=200809L", "-DNEUTRON_PATCH_BYTES=64",
)  # fmt: skip


def fuzz(folder: Path, seconds: int, seed: int, vector: bool) -> int:
    """Rounds survived; a fault raises."""
    corpus = write_corpus(folder / "corpus.bin")
    program = build("fuzz", *SANITIZE, extra=(Path(__file__).with_name("fuzz.c"),), vector=vector)
    command = [str(program), str(corpus), str(seconds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.strip())
    rounds, accepted, finished = (int(w) for w in done.stdout.replace(",", "").split() if w.isdigit())
    assert accepted > rounds / 1000 and finished > 0, done.stdout  # else it would test nothing behind prepare
    return rounds


VECTOR = platform.machine() == "x86_64"
BUILDS = [False, pytest.param(True, marks=pytest.mark.skipif(not VECTOR, reason="vector code is for x86-64"))]


@pytest.mark.parametrize("vector", BUILDS, ids=["portable", "vector"])
def test_fuzz_briefly(tmp_path, vector):
    assert fuzz(tmp_path, 3, 1, vector) > 5_000


@pytest.mark.slow
def test_fuzz_for_a_minute(tmp_path):
    seconds = int(os.environ.get("OPENNEUTRON_FUZZ_SECONDS", "60"))
    fuzz(tmp_path, seconds, int(os.environ.get("OPENNEUTRON_FUZZ_SEED", "2")), VECTOR)
