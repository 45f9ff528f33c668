"""The driver survives any bytes: a seeded fuzzer under the address and undefined-behaviour sanitizers.

Portable and vectorised, and as a 32-bit program where the compiler can make one (Debian:
gcc-12-multilib, for gcc 12); with 2 to 8 real threads, under the thread sanitizer too. A program that
takes too long is a fault as any other. What a fuzzer has found is in tests/hostile/corpus and run again
each time. The long run, after a change to checks:
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

from tests.native import ROOT, RUNTIME, build
from tests.runtime.programs import write_corpus

COMMON = ("-O1", "-g1", "-D_POSIX_C_SOURCE=200809L", "-DNEUTRON_PATCH_BYTES=64")
SANITIZE = (*COMMON, "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
POOL = ("-DFUZZ_POOL", "-DNEUTRON_LEAST_WORK=1", "-pthread", f"-I{RUNTIME / 'host'}")
"""Real threads, which share every call that can be split."""
THREADED = {"threads": (*SANITIZE, *POOL), "thread sanitizer": (*COMMON, *POOL, "-fsanitize=thread")}
NARROW = ("-m32", "-idirafter", "/usr/include/x86_64-linux-gnu")
"""A 32-bit program. Debian's gcc-multilib, which would put the kernel's headers in reach, is not used: it
cannot be installed beside the compiler for AArch64."""
KINDS = ("portable", "vector", "32-bit", *THREADED)
# Parts of a hostile call may write to the same bytes: results are wrong then, but not what threads tell each
# other.
KERNELS = "".join(f"race:{name}\n" for name in ("neutron_run_part", "call_whole", "call_together"))
FOUND = ROOT / "tests" / "hostile" / "corpus"


@cache
def has_32_bits() -> bool:
    """Whether the compiler makes 32-bit programs with the sanitizers, and this machine runs them."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "a.c"), Path(folder, "a")
        source.write_text("#include <errno.h>\nint main(void) { return 0; }\n")
        command = ["gcc", *NARROW, "-fsanitize=address,undefined", str(source), "-o", str(program)]
        made = subprocess.run(command, capture_output=True).returncode == 0
        return made and subprocess.run([str(program)], capture_output=True).returncode == 0


def builder(kind: str) -> Path:
    """The fuzzer, in one of its KINDS."""
    if kind in ("vector", *THREADED) and platform.machine() != "x86_64":
        pytest.skip("vector code is for x86-64")
    if kind == "32-bit" and not has_32_bits():
        pytest.skip("no 32-bit compiler (Debian: apt-get install gcc-12-multilib, for gcc 12)")
    flags = (*NARROW, *SANITIZE) if kind == "32-bit" else THREADED.get(kind, SANITIZE)
    extra = (Path(__file__).with_name("fuzz.c"), *([RUNTIME / "host" / "pool.c"] if kind in THREADED else []))
    machine = "x86" if kind in ("vector", "threads") else ""
    return build(f"fuzz-{kind.replace(' ', '-')}", *flags, extra=extra, machine=machine)


def fuzz(
    program: Path, corpus: Path, seconds: int, seed: int, *more: str, suppressed: str = KERNELS
) -> tuple[int, int, int]:
    """Rounds survived, programs accepted and run to the end; a fault raises."""
    with tempfile.TemporaryDirectory() as folder:
        suppressions = Path(folder, "suppressions")
        suppressions.write_text(suppressed)
        options = f"suppressions={suppressions} halt_on_error=1 report_thread_leaks=0 print_suppressions=0"
        command = [str(program), str(corpus), str(seconds), str(seed), *more]
        environment = {**os.environ, "TSAN_OPTIONS": options}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 300, cwd=folder, env=environment
        )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.strip())
    rounds, accepted, finished = (int(w) for w in done.stdout.replace(",", "").split() if w.isdigit())
    return rounds, accepted, finished


@pytest.mark.parametrize("kind", KINDS)
def test_fuzz_briefly(tmp_path, kind):
    rounds, accepted, finished = fuzz(builder(kind), write_corpus(tmp_path / "corpus.bin"), 3, 1)
    assert rounds > (500 if kind in THREADED else 5_000)
    assert accepted > rounds / 1000 and finished > 0  # else it would test nothing behind prepare


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_found_stays_mended(kind):
    files = sorted(FOUND.glob("*.bin"))
    assert files
    for file in files:
        fuzz(builder(kind), file, 0, 1)


def test_threads_of_good_programs_write_to_different_places(tmp_path):
    corpus = write_corpus(tmp_path / "corpus.bin", 1)
    _, accepted, finished = fuzz(builder("thread sanitizer"), corpus, 0, 1, "APART", suppressed="")
    assert accepted > finished > 0  # some are stopped


@pytest.mark.slow  # half a minute of fuzzing
@pytest.mark.timeout(0)  # as long as it was asked to run
@pytest.mark.parametrize("kind", KINDS)
def test_fuzz_longer(tmp_path, kind):
    seconds = int(os.environ.get("OPENNEUTRON_FUZZ_SECONDS", "30"))
    seed = int(os.environ.get("OPENNEUTRON_FUZZ_SEED", "2"))
    fuzz(builder(kind), write_corpus(tmp_path / "corpus.bin"), seconds // len(KINDS), seed)
