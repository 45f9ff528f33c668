"""Building a firmware: the runtime as a static library, the application, a program, a kernel selection."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openneutron.converter.kernel_selection import check_unedited, read_selection
from openneutron.diagnostics import fail
from openneutron.firmware.program import ASSEMBLY, FirmwareProgram
from openneutron.firmware.sizes import ImageSize, read_map

PREFIX = "arm-none-eabi-"
PACKAGES = "gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
CORE = ("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=soft")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
# No contraction: a fused multiply-add rounds once where the definition rounds twice.
COMPILE = (*CORE, *WARNINGS, "-std=c11", "-ffp-contract=off", "-ffunction-sections", "-fdata-sections")
OPTIMIZE = "-O2"
STACK_BYTES = 8 * 1024
FLASH_BYTES = 8 * 1024 * 1024  # of the emulated board: link.ld
SRAM_BYTES = 7680 * 1024
APPLICATION = ("board", "main", "semihosting")


@dataclass(frozen=True)
class Firmware:
    """A linked image."""

    program: FirmwareProgram
    folder: Path
    image: Path
    size: ImageSize


def runtime_folder() -> Path:
    """The C sources: in the repository, or inside an installed package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parents[1] / "runtime", package / "_runtime"):
        if (folder / "include" / "neutron.h").exists():
            return folder
    fail("ON504", "runtime", "the C sources of the runtime are not beside the package", "Install it again.")


def find_tool(name: str) -> str:
    """A cross tool's path; a missing one is a diagnostic that says what to install."""
    path = shutil.which(name)
    if path is None:
        fail("ON701", name, "is not installed or not in the PATH",
             f"Debian and Ubuntu: apt-get install {PACKAGES}")  # fmt: skip
    return path


def build_library(folder: Path, optimize: str = OPTIMIZE, defines: Sequence[str] = ()) -> Path:
    """The runtime as libneutron.a in `folder`; used again while the sources and flags are the same."""
    folder, runtime = folder.resolve(), runtime_folder()
    compiler, archiver = find_tool(f"{PREFIX}gcc"), find_tool(f"{PREFIX}ar")
    sources = [("kernel", s) for s in sorted((runtime / "kernels").glob("*.c"))]
    sources += [("src", s) for s in sorted((runtime / "src").glob("*.c"))]
    digest = hashlib.sha256(repr((COMPILE, optimize, tuple(defines))).encode())
    for path in [s for _, s in sources] + sorted(runtime.glob("*/*.h")):
        digest.update(path.name.encode() + path.read_bytes())
    library, stamp = folder / "libneutron.a", folder / "libneutron.stamp"
    if library.exists() and stamp.exists() and stamp.read_text() == digest.hexdigest():
        return library
    _make(folder)
    objects = []
    for kind, source in sources:
        # The prefix tells kernels from what they share; sizes.py reads it in the linker's map.
        objects.append(folder / f"{kind}_{source.stem}.o")
        flags = (*COMPILE, optimize, *defines, *_includes(runtime))
        _run([compiler, *flags, "-c", source, "-o", objects[-1]], folder)
    library.unlink(missing_ok=True)
    _run([archiver, "rcs", library, *objects], folder)
    stamp.write_text(digest.hexdigest())
    return library


def build_firmware(
    program: FirmwareProgram,
    folder: Path,
    *,
    selection: Path | None = None,
    library: Path | None = None,
    sram_bytes: int = SRAM_BYTES,
    optimize: str = OPTIMIZE,
    defines: Sequence[str] = (),
) -> Firmware:
    """Build the image of a program; without a selection all kernels are linked."""
    _check_memory(program, sram_bytes)
    if selection is not None:
        _check_selection(selection)
    _make(folder)
    given, folder, runtime = folder, folder.resolve(), runtime_folder()
    compiler = find_tool(f"{PREFIX}gcc")
    _check_newlib(compiler)
    library = library or build_library(folder / "library", optimize)
    program.write(folder)
    sources = {name: runtime / "firmware" / f"{name}.c" for name in APPLICATION}
    if selection is not None:
        sources["kernel_selection"] = selection.resolve()
    includes = (*_includes(runtime), f"-I{runtime / 'firmware'}", f"-I{folder}")
    objects = []
    for name, source in sources.items():
        objects.append(folder / f"{name}.o")
        _run(
            [compiler, *COMPILE, optimize, *defines, *includes, "-c", source, "-o", objects[-1].name], folder
        )
    objects.append(folder / "program.o")
    _run([compiler, *CORE, "-c", ASSEMBLY, "-o", "program.o"], folder)
    image, linker_map = folder / f"{program.name}.elf", folder / f"{program.name}.map"
    link = ("-nostartfiles", "-Wl,--gc-sections", "-Wl,--fatal-warnings",
            "-Xlinker", f"-Map={linker_map.name}",  # not -Wl: a name may have a comma
            f"-Wl,--defsym=__stack_bytes={STACK_BYTES}", "-T", runtime / "firmware" / "link.ld")  # fmt: skip
    names = [o.name for o in objects]
    _run([compiler, *CORE, *link, *names, library.resolve(), "-o", image.name], folder)
    return Firmware(program, given, given / image.name, read_map(linker_map))


def _includes(runtime: Path) -> tuple[str, ...]:
    return tuple(f"-I{runtime / d}" for d in ("include", "generated", "src"))


def _check_memory(program: FirmwareProgram, sram_bytes: int) -> None:
    need, pools = program.pools.delegates_bytes + STACK_BYTES, program.pools
    if need > min(sram_bytes, SRAM_BYTES):
        fail(
            "ON703",
            program.name,
            f"needs {need:,} bytes of SRAM (scratch {pools.scratch:,}, prefetch {pools.prefetch:,}, "
            f"inputs {pools.inputs:,}, outputs {pools.outputs:,}, stack {STACK_BYTES:,}); "
            f"there are {min(sram_bytes, SRAM_BYTES):,}",
            "Compile it with a smaller --sram, or give the firmware more.",
        )
    if program.flash_bytes > FLASH_BYTES:
        fail("ON703", program.name, f"microcode and weights have {program.flash_bytes:,} bytes; the emulated "
             f"board has {FLASH_BYTES:,} of flash", "Use a smaller model.")  # fmt: skip


def _check_selection(path: Path) -> None:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail("ON422", str(path), f"cannot be read: {error}", "Check the path.")
    check_unedited(text, read_selection(text, str(path)), str(path))


def _check_newlib(compiler: str) -> None:
    found = subprocess.run([compiler, "-print-file-name=libc.a"], capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_absolute():  # the bare name comes back when there is none
        fail("ON701", "newlib", "the C library for the cross compiler is not installed",
             f"Debian and Ubuntu: apt-get install {PACKAGES}")  # fmt: skip


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail("ON601", str(folder), f"cannot be made: {error.strerror}", "Choose another place with -o.")


def _run(command: Sequence[object], folder: Path) -> None:
    done = subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()][-6:]
        fail("ON702", Path(str(command[0])).name, " | ".join(lines) or f"exit code {done.returncode}")
