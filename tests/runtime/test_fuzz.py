"""The driver survives any bytes: a seeded fuzzer under the address and undefined-behaviour sanitizers.

Portable and vectorised, and as a 32-bit program where the compiler can make one (Debian: gcc-multilib). What
a fuzzer has found is in tests/hostile/corpus and run again each time. The long run, after a change to checks:
`OPENNEUTRON_FUZZ_SECONDS=3600 OPENNEUTRON_FUZZ_SEED=$RANDOM pytest tests/runtime/test_fuzz.py -m slow -s`
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.native import ROOT, build
from tests.runtime.programs import write_corpus

SANITIZE = (
    "-O1", "-g", "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all",
    "-D_POSIX_C_SOURCE=200809L", "-DNEUTRON_PATCH_BYTES=64",
)  # fmt: skip
FOUND = ROOT / "tests" / "hostile" / "corpus"


@cache
def has_32_bits() -> bool:
    """Whether the compiler makes 32-bit programs with the sanitizers, and this machine runs them."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "a.c"), Path(folder, "a")
        source.write_text("int main(void) { return 0; }\n")
        command = ["gcc", "-m32", "-fsanitize=address,undefined", str(source), "-o", str(program)]
        made = subprocess.run(command, capture_output=True).returncode == 0
        return made and subprocess.run([str(program)], capture_output=True).returncode == 0


def builder(kind: str) -> Path:
    """The fuzzer: portable, vector or 32-bit."""
    if kind == "vector" and platform.machine() != "x86_64":
        pytest.skip("vector code is for x86-64")
    if kind == "32-bit" and not has_32_bits():
        pytest.skip("no 32-bit compiler (Debian: apt-get install gcc-multilib)")
    flags = ("-m32", *SANITIZE) if kind == "32-bit" else SANITIZE
    extra = (Path(__file__).with_name("fuzz.c"),)
    return build(f"fuzz-{kind}", *flags, extra=extra, machine="x86" if kind == "vector" else "")


def fuzz(program: Path, corpus: Path, seconds: int, seed: int) -> tuple[int, int, int]:
    """Rounds survived, programs accepted and run to the end; a fault raises."""
    command = [str(program), str(corpus), str(seconds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.strip())
    rounds, accepted, finished = (int(w) for w in done.stdout.replace(",", "").split() if w.isdigit())
    return rounds, accepted, finished


@pytest.mark.parametrize("kind", ["portable", "vector", "32-bit"])
def test_fuzz_briefly(tmp_path, kind):
    rounds, accepted, finished = fuzz(builder(kind), write_corpus(tmp_path / "corpus.bin"), 3, 1)
    assert rounds > 5_000
    assert accepted > rounds / 1000 and finished > 0  # else it would test nothing behind prepare


@pytest.mark.parametrize("kind", ["portable", "vector", "32-bit"])
def test_what_was_found_stays_mended(kind):
    files = sorted(FOUND.glob("*.bin"))
    assert files
    for file in files:
        fuzz(builder(kind), file, 0, 1)


@pytest.mark.slow
@pytest.mark.timeout(0)  # as long as it was asked to run
@pytest.mark.parametrize("kind", ["portable", "vector", "32-bit"])
def test_fuzz_for_a_minute(tmp_path, kind):
    seconds = int(os.environ.get("OPENNEUTRON_FUZZ_SECONDS", "60"))
    seed = int(os.environ.get("OPENNEUTRON_FUZZ_SEED", "2"))
    fuzz(builder(kind), write_corpus(tmp_path / "corpus.bin"), seconds // 3, seed)
