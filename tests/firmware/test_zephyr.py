"""The exported application in a real workspace of Zephyr (ZEPHYR_BASE), run by QEMU.

ExecuTorch's source must be whole here, with the submodules that the exported CMakeLists.txt names.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from openneutron.firmware.export_sdk import export_zephyr
from openneutron.firmware.toolchain import find_tool
from tests.firmware.whole import build_measured, compiled

pytestmark = [pytest.mark.firmware, pytest.mark.slow]  # Zephyr is built
# Board, QEMU's name for it, core, network and recipe: the NPU's kernels alone, and cortex_m ones beside them.
BOARDS = [
    ("mps2/an521/cpu0", "mps2-an521", "cortex-m33", "dscnn", "neutron"),
    ("mps3/corstone300/an547", "mps3-an547", "cortex-m55", "middle", "imxrt700"),
]


def west(folder: Path, *words: object) -> None:
    """Run `west build` in the workspace."""
    workspace = Path(os.environ["ZEPHYR_BASE"]).parent
    command = ["west", "build", "-d", folder, *words]
    done = subprocess.run([str(w) for w in command], cwd=workspace, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def run(machine: str, image: Path) -> list[str]:
    """What the application prints until it is done."""
    command = [find_tool("qemu-system-arm"), "-M", machine, "-display", "none", "-monitor", "none",
               "-serial", "stdio", "-kernel", str(image)]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == "done":
                break
    finally:
        process.kill()
        process.communicate()
    return lines


@pytest.mark.parametrize(("board", "machine", "core", "network", "recipe"), BOARDS)
def test_built_and_run(sources, tmp_path, board, machine, core, network, recipe):
    firmware = build_measured(compiled(network, recipe, core), tmp_path / "image", sources, core)
    export_zephyr(firmware, tmp_path / "module", sources)
    app, out = tmp_path / "module/app", tmp_path / "build"
    modules = f"{sources.include / 'executorch'};{tmp_path / 'module'}"
    given = [f"-DZEPHYR_EXTRA_MODULES={modules}", f"-DCMSIS_NN_SOURCE={sources.cmsis_nn}"]
    if os.environ.get("ZEPHYR_TOOLCHAIN_VARIANT", "zephyr") != "zephyr":
        # Zephyr wants a C library with locks, and a distribution's may be built for one thread.
        given += [f"-DEXTRA_{kind}FLAGS=-D_RETARGETABLE_LOCKING=1" for kind in ("C", "CXX")]
    west(out, "-b", board, app, "--", *given)
    said = run(machine, out / "zephyr/zephyr.elf")
    outputs = [line for line in said if line.startswith("output ")]
    assert len(outputs) == len(firmware.program.info.methods["forward"].outputs), said
    assert all("is the host's" in line for line in outputs), said
    # And it would say so if they were not.
    sample = app / "src/sample_outputs.bin"
    data = bytearray(sample.read_bytes())
    data[3] ^= 0x40
    sample.write_bytes(data)
    (app / "src/sample.S").touch()
    west(out)
    assert any("output 0: differs" in line for line in run(machine, out / "zephyr/zephyr.elf"))
