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
from openneutron.firmware.toolchain import CXX, WARNINGS, C, Unit, preprocessed_digest
from openneutron.firmware.whole import WholeFirmware, WholeProgram, build_whole
from openneutron.firmware.whole_run import relinked

FLAGS = {".c": (*WARNINGS, *C), ".cpp": (*WARNINGS, *CXX)}
SPEED = "-O2"
# The last lines of a report; an application may print what begins as they do.
_REPORT = re.compile(
    r"^(?P<runs>(?:ran \S+ \d+ \d+\n)*)application (?P<own>\d+)\npools (?P<pools>\d+(?: \d+){3})\n"
    r"stack (?P<stack>\d+)\ndone\n",
    re.MULTILINE,
)


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
    if program.overwrites_states:
        fail("ON709", program.name, "a method remembers in memory that the others work in",
             "Let it remember on the NPU, or build an application for it alone.")  # fmt: skip
    core = core or find_firmware_core(target=program.target)
    runtime = runtime_folder() / "firmware"
    includes = (*dict.fromkeys(file.resolve().parent for file in files), runtime / "executorch", runtime)
    units = []
    for file in files:
        flags = (*FLAGS[file.suffix], SPEED)
        unit = Unit("application", f"own_{file.stem}", file.resolve(), flags, includes, "")
        # What it includes may have any name and lie anywhere.
        units.append(replace(unit, headers=preprocessed_digest(unit, core)))
    return build_whole(program, folder, sources, core=core, sram_bytes=sram_bytes, application=units)


def run_application(firmware: WholeFirmware, timeout: float = 900.0) -> ApplicationRun:
    """Run the image: it reads and writes files of its folder."""
    text = emulate(firmware.core, firmware.image, firmware.folder, timeout)
    report = next(iter(reversed([*_REPORT.finditer(text)])), None)
    if report is None:
        fail("ON704", str(firmware.image), "it ended without the figures of its run",
             "Return from application() instead of leaving the program.")  # fmt: skip
    tick = firmware.core.tick
    runs: dict[str, int] = {}
    took: dict[str, int] = {}
    for line in report["runs"].splitlines():
        _, name, count, ticks = line.split()
        runs[name], took[name] = int(count), round(int(ticks) * tick)
    pools = replace(WholePools(*map(int, report["pools"].split())), stack=int(report["stack"]))
    return ApplicationRun(text[: report.start()].strip(), runs, took, round(int(report["own"]) * tick), pools)


def measure_application(
    firmware: WholeFirmware, sram_bytes: int | None = None, timeout: float = 900.0
) -> tuple[WholeFirmware, ApplicationRun]:
    """The image with pools of exactly the sizes that a run was seen to need, and its run."""
    seen = run_application(firmware, timeout)
    exact = relinked(firmware, seen.pools, sram_bytes)
    return exact, run_application(exact, timeout)
