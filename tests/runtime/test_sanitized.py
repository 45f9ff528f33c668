"""The delegate's C++ and the host's cortex_m kernels under the address and undefined-behaviour sanitizers.

What runs is `neutron_rehearse`, built with its libraries for that: it needs no Python, and takes any program.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch

from openneutron.environment.versions import executorch_folder
from openneutron.options import CompileOptions
from openneutron.package.pte import inspect_program
from openneutron.pipeline import compile_model
from tests.cortex_m.cases import CASES, Maker
from tests.cortex_m.program import Call, compile_calls
from tests.hostile import mutate_pte
from tests.native import ROOT, RUNTIME

FLAGS = "-O1 -g1 -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"
REPORTS = "AddressSanitizer", "runtime error", "LeakSanitizer"
pytestmark = pytest.mark.slow  # the runtime is built with sanitizers


@cache
def rehearse() -> Path:
    """The sanitized program; CMake keeps it up to date."""
    folder = ROOT / "build" / "sanitized"
    cmake = shutil.which("cmake")
    assert cmake, "make setup installs it"
    settings = {
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_CXX_FLAGS": FLAGS,  # the C files have a fuzzer of their own: test_fuzz.py
        "OPENNEUTRON_EXECUTORCH_DIR": executorch_folder(),
        "NEUTRON_WERROR": "ON",
    }
    configure = [cmake, "-S", ROOT, "-B", folder, *(f"-D{key}={value}" for key, value in settings.items())]
    for command in (configure, [cmake, "--build", folder, "--target", "neutron_rehearse", "-j", "2"]):
        subprocess.run([str(c) for c in command], check=True, capture_output=True)
    (program,) = folder.rglob("neutron_rehearse")
    return program


def run(file: Path) -> int:
    """The exit code; whatever a sanitizer says of our own code is an error."""
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run(
        [rehearse(), file, "60"], env={**os.environ, **options}, capture_output=True, text=True, timeout=300
    )
    if any(word in done.stderr for word in REPORTS):
        # ExecuTorch itself reads where a hostile program says; that is why there is a rehearsal.
        frames = [line for line in done.stderr.splitlines() if line.lstrip().startswith("#")]
        top = next((line for line in frames if "libasan" not in line and "libc.so" not in line), "")
        assert "/runtime/" not in top or "executorch/runtime" in top, f"{file.name}: {done.stderr[-4000:]}"
    return done.returncode


def test_cortex_m_kernels(tmp_path):
    """Some calls of every operator, in one program."""
    calls = [
        Call(operator, arguments)
        for operator, cases in CASES.items()
        for arguments in islice(cases(Maker(0)), 0, None, 3)
    ]
    file = tmp_path / "program.pte"
    file.write_bytes(compile_calls(calls))
    assert run(file) == 0


def test_the_delegate(tmp_path):
    """A program with a delegate runs; its payload changed anywhere gets a status, and no fault of ours."""
    good = mutate_pte.small_programs()[0]
    file = tmp_path / "good.pte"
    file.write_bytes(good)
    assert run(file) == 0
    (payload,) = inspect_program(good).payloads()
    start = good.index(payload.microcode[:64]) - 64  # the payload's own words come first
    rng = random.Random(5)
    changed = []
    for i in range(40):
        raw = bytearray(good)
        for _ in range(rng.choice((1, 2, 4))):
            at = start + 4 * rng.randrange(80)
            raw[at : at + 4] = rng.choice(mutate_pte.EDGES).to_bytes(4, "little")
        changed.append(tmp_path / f"{i}.pte")
        changed[-1].write_bytes(raw)
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(run, changed))
    assert set(codes) <= {0, 3} and codes.count(3) > 20, codes  # 3: loaded, but the delegate refused


@cache
def fail_allocations() -> Path:
    """The program that lets each allocation fail once, linked to the sanitized libraries."""
    libraries = sorted({file.parent for file in rehearse().parent.rglob("libneutron_*.so")})
    executorch = Path(executorch_folder())
    program = rehearse().parent / "fail_allocations"
    command = [
        "g++",
        "-std=c++17",
        *FLAGS.split(),
        "-Wall",
        "-Wextra",
        "-Werror",
        "-DC10_USING_CUSTOM_GENERATED_MACROS",
        *(f"-isystem{executorch / 'include' / d}" for d in ("", "executorch/runtime/core/portable_type/c10")),
        *(f"-I{RUNTIME / d}" for d in ("executorch", "include", "generated")),
        Path(__file__).with_name("fail_allocations.cpp"),
        "-Wl,--no-as-needed",
        *(
            flag
            for folder in (*libraries, executorch / "lib")
            for flag in (f"-L{folder}", f"-Wl,-rpath,{folder}")
        ),
        *("-lneutron_backend", "-lneutron_cortex_m", "-lexecutorch_kernels_quantized", "-lexecutorch"),
        "-o",
        program,
    ]
    subprocess.run([str(c) for c in command], check=True)
    return program


def each_allocation_fails(file: Path, *how: str) -> tuple[int, int]:
    """How many allocations there are when a program is loaded and when it runs; each was made to fail."""
    done = subprocess.run([fail_allocations(), file, *how], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    loading, running = (int(word) for word in done.stdout.split() if word.isdigit())
    return loading, running


def test_each_allocation_of_the_delegate_fails_once(tmp_path):
    """Copies of what is not aligned, activations, prefetched weights and transposed inputs are among them."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)).eval()
    inputs = (torch.randn(1, 3, 8, 8),)
    options = CompileOptions(fetch_constants_to_sram=True, use_neutron_for_format_conversion=False)
    file = tmp_path / "program.pte"
    file.write_bytes(compile_model(net, inputs, calibration=[inputs], options=options, int8_io=True).pte)
    loading, running = each_allocation_fails(file)
    assert loading >= 5 and running >= 3, (loading, running)


def test_each_allocation_of_the_cortex_m_kernels_fails_once(tmp_path):
    calls = [
        Call(operator, arguments)
        for operator, cases in CASES.items()
        for arguments in islice(cases(Maker(0)), 0, 4)
    ]
    file = tmp_path / "program.pte"
    file.write_bytes(compile_calls(calls))
    assert each_allocation_fails(file, "run")[1] >= 4
