"""A program with an application of the user's own: built, run under QEMU, measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from openneutron.diagnostics import fail
from openneutron.firmware.build import runtime_folder
from openneutron.firmware.cores import Core, find_firmware_core
from openneutron.firmware.emulator import emulate
from openneutron.firmware.pools import WholePools
from openneutron.firmware.sources import Sources
from openneutron.firmware.toolchain import CXX, WARNINGS, C, Unit, digest_of
from openneutron.firmware.whole import WholeFirmware, WholeProgram, build_whole
from openneutron.firmware.whole_run import relinked

FLAGS = {".c": (*WARNINGS, *C), ".cpp": (*WARNINGS, *CXX)}
SPEED = "-O2"
_LINE = re.compile(r"^(ran|application|pools|stack) (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class ApplicationRun:
    """What an application did under QEMU."""

    text: str = field(repr=False)  # what it printed
    runs: Mapping[str, int]  # by method
    instructions: Mapping[str, int]  # of all runs of a method
    own_instructions: int  # of the application itself
    pools: WholePools  # what was in use at most


def build_application(
    program: WholeProgram,
    files: Sequence[Path],
    folder: Path,
    sources: Sources,
    *,
    core: Core | None = None,
    sram_bytes: int | None = None,
) -> WholeFirmware:
    """Build the image of a program and the C and C++ files of an application, with pools for measuring."""
    for file in files:
        if file.suffix not in FLAGS:
            fail("ON104", str(file), "is no .c or .cpp file", "Give the sources of an application.")
        if not file.is_file():
            fail("ON422", str(file), "cannot be read: no such file", "Check the path.")
    if program.remembers_beside_delegates and len(program.info.methods) > 1:
        fail("ON709", program.name, "a method remembers in memory that the others work in",
             "Let it remember on the NPU, or build an application for it alone.")  # fmt: skip
    core = core or find_firmware_core(target=program.target)
    runtime = runtime_folder() / "firmware"
    includes = (*dict.fromkeys(file.parent for file in files), runtime / "executorch", runtime)
    headers = digest_of(f for place in includes for f in place.glob("*.h"))
    units = [
        Unit("application", f"own_{f.stem}", f, (*FLAGS[f.suffix], SPEED), includes, headers) for f in files
    ]
    return build_whole(program, folder, sources, core=core, sram_bytes=sram_bytes, application=units)


def run_application(firmware: WholeFirmware, timeout: float = 900.0) -> ApplicationRun:
    """Run the image: it reads and writes files of its folder."""
    report = emulate(firmware.core, firmware.image, firmware.folder, timeout)
    runs: dict[str, int] = {}
    took: dict[str, int] = {}
    own, pools, tick = 0, WholePools(), firmware.core.tick
    for what, rest in _LINE.findall(report):
        words = rest.split()
        if what == "ran":
            runs[words[0]], took[words[0]] = int(words[1]), round(int(words[2]) * tick)
        elif what == "application":
            own = round(int(words[0]) * tick)
        elif what == "pools":
            pools = WholePools(*(int(word) for word in words))
        else:
            pools = replace(pools, stack=int(words[0]))
    text = "\n".join(line for line in report.splitlines() if not _LINE.match(line) and line != "done")
    return ApplicationRun(text.strip(), runs, took, own, pools)


def measure_application(
    firmware: WholeFirmware, sram_bytes: int | None = None, timeout: float = 900.0
) -> tuple[WholeFirmware, ApplicationRun]:
    """The image with pools of exactly the sizes that a run was seen to need, and its run."""
    seen = run_application(firmware, timeout)
    exact = relinked(firmware, seen.pools, sram_bytes)
    return exact, run_application(exact, timeout)
