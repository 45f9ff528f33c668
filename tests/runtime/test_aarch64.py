"""The runtime of an AArch64 host under QEMU gives the bytes of this machine (the kernel tests do so too)."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from openneutron.compiler.microcode.format import encode
from openneutron.run.native import NativeModel
from tests.emulated import CORES, EMULATOR, models, request, serve_program
from tests.kernels import test_conv
from tests.kernels.harness import Maker, program_of
from tests.native import libraries, portable_sources, vector_sources
from tests.runtime.programs import arena_program, cascade_program, island_program, streamed_program
from tests.runtime.test_objects import check_symbols, compile_all, symbols

pytestmark = pytest.mark.aarch64


def test_whole_programs():
    """Cascades, expressions, prefetched weights and memory shared with inputs, in each of the builds."""
    rng = np.random.default_rng(5)
    programs = [streamed_program(), cascade_program(), *map(island_program, range(4))]
    for program in [*programs, *map(arena_program, range(4))]:
        shapes = NativeModel(*program, library=libraries()["portable"]).inputs
        values = [rng.integers(-128, 128, shape).astype(dtype) for shape, dtype in shapes]
        builds = models(*program)
        assert len(builds) >= 1 + len(CORES)
        wanted = builds["portable"].run(values)
        for name, model in builds.items():
            for want, got in zip(wanted, model.run(values), strict=True):
                np.testing.assert_array_equal(want, got, name)


@pytest.mark.parametrize(("core", "used"), [("cortex-a53", False), ("neoverse-n1", True)])
def test_the_core_decides(tmp_path, core, used):
    """Dot products run where the core has them, and nowhere else."""
    make = Maker(np.random.default_rng(2))
    program, weights, inputs, _ = program_of([test_conv.conv(make) for _ in range(8)])
    sent = request((encode(program), weights), [make.values(t) for t in inputs])
    log = tmp_path / "log"
    command = [EMULATOR, "-cpu", core, "-d", "in_asm", "-D", str(log), str(serve_program())]
    subprocess.run(command, input=sent, check=True, stdout=subprocess.DEVNULL)
    codes = [int(line.split()[1], 16) for line in log.read_text().splitlines() if line.startswith("0x")]
    assert any(code & 0xFFC0F400 == 0x4F80E000 for code in codes) == used  # SDOT by element


def test_objects(tmp_path):
    sources = portable_sources() + vector_sources("aarch64")
    prefix = "aarch64-linux-gnu-"
    check_symbols(
        symbols(prefix, compile_all(tmp_path, prefix, ("-O2", "-fno-pic", "-DNEUTRON_VECTOR"), sources))
    )
