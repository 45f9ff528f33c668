"""Every kernel on an emulated Cortex-M33 gives the host's bytes, its DSP instructions included."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from openneutron.compiler.microcode.format import encode
from openneutron.run.native import NativeModel
from tests.kernels.harness import Maker, program_of
from tests.native import COMMON, libraries, portable_sources
from tests.runtime.programs import CASES, cascade_program, island_program, streamed_program

FOLDER = Path(__file__).parent / "cortex_m"
pytestmark = pytest.mark.firmware


def padded(*parts: bytes) -> bytes:
    return b"".join(p + bytes(-len(p) % 16) for p in parts)


def case(microcode: bytes, weights: bytes, inputs: list[np.ndarray]) -> bytes:
    """A program with inputs and the outputs of the host."""
    model = NativeModel(microcode, weights, library=libraries()["portable"])
    ins, outs = (padded(*(a.tobytes() for a in arrays)) for arrays in (inputs, model.run(inputs)))
    sizes = struct.pack("<IIII", len(microcode), len(weights), len(ins), len(outs))
    return sizes + padded(microcode, weights, ins, outs)


@pytest.mark.parametrize("flags", [("-O2",), ("-Os",), ("-O2", "-DNEUTRON_PORTABLE")])
def test_kernels_on_cortex_m33(tmp_path, flags):
    make = Maker(np.random.default_rng(21))
    cases = []
    for program in (streamed_program(), cascade_program(), *map(island_program, range(4))):
        model = NativeModel(*program, library=libraries()["portable"])
        inputs = [make.rng.integers(-128, 128, shape, np.int8) for shape, _ in model.inputs]
        cases.append(case(*program, inputs))
    for generate in CASES:
        for _ in range(6):
            program, weights, inputs, _ = program_of([generate(make)])
            cases.append(case(encode(program), weights, [make.values(tensor) for tensor in inputs]))
    (tmp_path / "cases.bin").write_bytes(b"".join(cases))
    image = tmp_path / "test.elf"
    link = ("--specs=rdimon.specs", "-T", FOLDER / "link.ld", "-o", image)
    core = ("-mcpu=cortex-m33", "-mthumb", *flags)
    command = ["arm-none-eabi-gcc", *core, *COMMON, FOLDER / "main.c", *portable_sources(), *link]
    subprocess.run([str(c) for c in command], check=True)
    machine = ("-M", "mps2-an505", "-cpu", "cortex-m33", "-nographic", "-semihosting", "-kernel", image)
    command = ["qemu-system-arm", *machine]
    run = subprocess.run([str(c) for c in command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.stdout.strip().endswith(f"{len(cases)} cases, 0 wrong"), run.stdout + run.stderr
    assert run.returncode == 0
