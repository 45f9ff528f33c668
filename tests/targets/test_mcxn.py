"""MCX N94x and N54x: half a megabyte of SRAM, weights that the NPU reads in flash, firmware of their size."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron import CompileOptions
from openneutron.compiler.compile import compile_graph
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.build import build_firmware
from openneutron.firmware.cores import find_firmware_core
from openneutron.firmware.emulator import compare, random_inputs, run_firmware, run_host
from openneutron.firmware.program import read_firmware_program
from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Quant
from openneutron.run.native import NativeModel
from openneutron.targets.spec import NeutronTargetSpec
from openneutron.targets.table import find_target
from tests.firmware.programs import TwoParts
from tests.programs import compiled_for

CHIPS = ("mcxn94x", "mcxn54x")


def layer(inputs: int, outputs: int) -> Graph:
    """One fully connected layer."""
    b, rng = Builder(), np.random.default_rng(0)
    x = b.input("x", (1, inputs), quant=Quant.per_tensor(0.1, 0))
    weights = b.const(rng.integers(-127, 128, (outputs, inputs)).astype(np.int8), Quant.per_tensor(0.01, 0))
    options = {"fusedActivationFunction": 0, "keepNumDims": False}
    y = b.op(Builtin.FULLY_CONNECTED, [x, weights], (1, outputs), Quant.per_tensor(0.1, 0), options=options)
    return b.graph([y])


@pytest.mark.parametrize("name", CHIPS)
def test_the_published_figures(name):
    spec = NeutronTargetSpec(name)
    assert (spec.hw_version, spec.pipes, spec.macs, spec.num_macs) == ("N1-16", 4, 4, 16)
    assert (spec.sram_bytes, spec.frequency_hz) == (524_288, 150_000_000)
    assert spec.get_hw_version().name == "N1"


def test_weights_count_for_the_flash_and_not_for_the_sram():
    graph, options = layer(1024, 1024), CompileOptions("mcxn94x")  # a MiB of weights
    assert compile_graph(graph, find_target("mcxn94x"), options).program.weights_bytes > 2**20
    with pytest.raises(OpenNeutronError, match=r"1,048,576 bytes, 524,288 bytes of SRAM"):
        compile_graph(graph, find_target("imxrt700"), CompileOptions(sram_bytes=524_288))
    with pytest.raises(OpenNeutronError, match=r"2,359,296 bytes, 2,097,152 bytes of flash on the chip"):
        compile_graph(layer(1536, 1536), find_target("mcxn94x"), options)


def test_prefetching_is_refused_where_it_has_no_effect():
    with pytest.raises(OpenNeutronError, match="MCX N54x reads weights where they lie in flash"):
        CompileOptions("mcxn54x", fetch_constants_to_sram=True)


def test_a_smaller_array_takes_longer():
    graph = layer(256, 256)
    small, large = (compile_graph(graph, find_target(n), CompileOptions(n)) for n in ("mcxn94x", "imxrt700"))
    assert small.cycles >= large.cycles
    assert small.weights == large.weights  # the format of weights does not depend on the array


def test_firmware_runs_its_own_chips_programs_alone(tmp_path):
    options = CompileOptions("mcxn94x", dump_kernel_selection_code=True)
    made = compiled_for(TwoParts(), [(1, 2, 10, 10)], options=options)
    assert "target: mcxn94x" in made.kernel_selections[0]
    program = read_firmware_program(made.pte)
    firmware = build_firmware(program, tmp_path / "own", select=True)
    assert (firmware.core.script, firmware.core.sram_bytes) == ("mcxn.ld", 524_288)
    inputs = random_inputs(program)
    assert compare(program, run_firmware(firmware, inputs).outputs, run_host(program, inputs)) > 0
    other = build_firmware(program, tmp_path / "other", core=find_firmware_core(target="imxrt700"))
    with pytest.raises(OpenNeutronError, match="target"):
        run_firmware(other, inputs)


def test_the_simulator_runs_every_chip():
    graph = layer(64, 32)
    x = np.random.default_rng(1).integers(-128, 128, (1, 64)).astype(np.int8)
    made = [compile_graph(graph, find_target(n), CompileOptions(n)) for n in (*CHIPS, "imxrt700")]
    first, *rest = (NativeModel(m.microcode, m.weights, "layer").run([x])[0] for m in made)
    assert all((first == y).all() for y in rest)
