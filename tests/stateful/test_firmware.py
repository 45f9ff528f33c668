"""A sequence on both emulated cores: every output as on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from openneutron.firmware.build import build_firmware
from openneutron.firmware.cores import CORES
from openneutron.firmware.emulator import run_firmware_sequence
from openneutron.firmware.program import read_firmware_program
from openneutron.pipeline import compile_model
from openneutron.run.native import NativeModel
from tests.stateful.networks import Ring, frames
from tests.stateful.test_caches import ROWS, Cached, steps


@pytest.mark.parametrize("core", CORES.values(), ids=lambda core: core.name)
def test_a_sequence(core, tmp_path):
    torch.manual_seed(0)
    sequences = [frames(16, seed) for seed in range(2)]
    compiled = compile_model(Ring().eval(), sequences[0][0], calibration=sequences)
    program = read_firmware_program(compiled.pte)
    assert program.pools.state == 32 and "NEUTRON_STATE_BYTES 32u" in program.pools_header()
    rng = np.random.default_rng(0)
    ((shape, dtype),) = program.delegates[0].inputs
    given = [[[rng.integers(-128, 128, shape).astype(dtype)]] for _ in range(30)]
    host = NativeModel(program.delegates[0].microcode, program.delegates[0].weights)
    found = run_firmware_sequence(build_firmware(program, tmp_path, core=core), given)
    for frame, outputs in zip(given, found, strict=True):
        np.testing.assert_array_equal(outputs[0][0], host.run(frame[0])[0])


@pytest.mark.parametrize("core", CORES.values(), ids=lambda core: core.name)
def test_a_cache_with_a_position(core, tmp_path):
    torch.manual_seed(0)
    compiled = compile_model(
        Cached("index_copy", "where").eval(), steps(0)[0], calibration=[steps(s) for s in range(3)]
    )
    program = read_firmware_program(compiled.pte)
    (delegate,) = program.delegates
    host = NativeModel(delegate.microcode, delegate.weights)
    rng, given = np.random.default_rng(0), []
    for place in rng.integers(0, ROWS, 30):
        arrays = [rng.integers(-128, 128, shape).astype(dtype) for shape, dtype in delegate.inputs]
        given.append([[np.full_like(a, place) if a.dtype == np.int64 else a for a in arrays]])
    found = run_firmware_sequence(build_firmware(program, tmp_path, core=core), given)
    for frame, outputs in zip(given, found, strict=True):
        np.testing.assert_array_equal(outputs[0][0], host.run(frame[0])[0])
