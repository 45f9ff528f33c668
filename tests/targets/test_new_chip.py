"""A chip is added by the steps of docs/targets.md, in a copy of the tree: a file and a linker script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHIP = '''
"""A made-up chip with an array of 16 x 8."""

from openneutron.targets.chip import KIB, MIB, Fact, Published, Target
from openneutron.targets.cores import cortex_m33
from openneutron.targets.cost import CostModel

TARGETS = (
    Target(
        name="nova",
        number=77,
        chip="Nova",
        generation="N5",
        units=1,
        pipes=16,
        macs_per_pipe=8,
        frequency_hz=200_000_000,
        sram_bytes=256 * KIB,
        flash_bytes=MIB,
        reads_flash=True,
        cost=CostModel(cpu_frequency_hz=200_000_000),
        cores=(cortex_m33("nova.ld", flash_bytes=MIB, sram_bytes=256 * KIB),),
        facts=(Fact("all of it", "a test", assumed=True),),
        published=(Published("dscnn", 1000, "a test"),),
    ),
)
'''
SCRIPT = """MEMORY {
    VECTORS (rx) : ORIGIN = 0x10000000, LENGTH = 1K
    CODE (rx)    : ORIGIN = 0x10000400, LENGTH = 1M
    FLASH (r)    : ORIGIN = 0x80000000, LENGTH = 1M
    SRAM (rw)    : ORIGIN = 0x80800000, LENGTH = 256K
}
INCLUDE sections.ld
"""
# An editable install finds the package in the clone, whatever the path says.
BEGIN = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
sys.path.insert(0, sys.argv[1])
import openneutron
assert openneutron.__file__.startswith(sys.argv[1]), openneutron.__file__
"""
GENERATE = (
    BEGIN
    + """
from openneutron.compiler.microcode.header import main
assert main(["--write"]) == 0
"""
)
USE = (
    BEGIN
    + """
import json
from pathlib import Path
import numpy as np
from openneutron import CompileOptions
from openneutron.bench.networks import NETWORKS
from openneutron.bench.published import table
from openneutron.cli import main
from openneutron.firmware.build import build_firmware
from openneutron.firmware.emulator import compare, random_inputs, run_firmware, run_host
from openneutron.firmware.program import read_firmware_program
from openneutron.litert.file import write
from openneutron.litert.reference import Reference
from openneutron.pipeline import compile_litert
from openneutron.sdk.targets import getNeutronTarget
from openneutron.targets.spec import NeutronTargetSpec

assert main(["targets", "nova"]) == 0
assert NeutronTargetSpec("nova").get_hw_version().name == "OTHER"  # NXP's SDK has no number for it
assert getNeutronTarget("nova").npu.numPipes == 16
data = write(NETWORKS["dscnn"]())
made = compile_litert(data, CompileOptions("nova"))
program = read_firmware_program(made.pte)
inputs = random_inputs(program)
host = run_host(program, inputs)
(exact,) = Reference(data).run(inputs[0])
firmware = build_firmware(program, Path("firmware"), select=True)
print(json.dumps({
    "npu": made.target.hw_version,
    "cycles": made.cycles(),
    "stored": [row.cycles for row in table() if row.target == "nova"],
    "exact": bool((np.asarray(exact) == host[0][0]).all()),
    "sram": firmware.core.sram_bytes,
    "equal": compare(program, run_firmware(firmware, inputs).outputs, host),
}))
"""
)


def python(code: str, tree: Path) -> str:
    """What a process prints that has the copy of the package."""
    command = [sys.executable, "-W", "ignore", "-c", code, str(tree / "src")]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow  # the simulator is built anew
@pytest.mark.firmware
def test_a_chip_is_a_file_and_a_linker_script(tmp_path):
    tree = tmp_path / "tree"
    for name in ("src", "runtime"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (tree / "docs").mkdir()
    (tree / "src/openneutron/targets/chips/nova.py").write_text(CHIP.lstrip())
    (tree / "runtime/firmware/nova.ld").write_text(SCRIPT)
    python(GENERATE, tree)
    assert "NEUTRON_TARGET_NOVA 77u" in (tree / "runtime/generated/neutron_microcode.h").read_text()
    native, build = tree / "src/openneutron/_native", str(tree / "build")
    native.mkdir(exist_ok=True)
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DOPENNEUTRON_NATIVE_DIR={native}"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (
        ["cmake", "-S", str(tree / "runtime"), "-B", build, *options],
        ["cmake", "--build", build, "--target", "neutron_shared"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
    (built,) = Path(build).rglob("libneutron.so")
    shutil.copy(built, native)
    data = json.loads(python(USE, tree).splitlines()[-1])
    assert data["npu"] == "N5-128" and data["cycles"] > 0 and data["stored"] == [data["cycles"]]
    assert data["exact"] and data["equal"] > 0 and data["sram"] == 262_144
