"""Firmware that runs delegates alone: the runtime, an application, a program, a kernel selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openneutron.converter.kernel_selection import check_unedited, kernel_selection_code, read_selection
from openneutron.diagnostics import fail
from openneutron.files import make_folder, write_atomically
from openneutron.firmware.cores import Core, find_firmware_core
from openneutron.firmware.program import ASSEMBLY, FirmwareProgram
from openneutron.firmware.sizes import ImageSize, read_map
from openneutron.firmware.toolchain import (
    PREFIX,
    WARNINGS,
    C,
    Unit,
    check_tools,
    compile_units,
    digest_of,
    find_tool,
    run_tool,
)

OPTIMIZE = "-O2"
STACK_BYTES = 8 * 1024
APPLICATION = ("board", "main", "semihosting")
SELECTION = "kernel_selection.c"


@dataclass(frozen=True)
class Firmware:
    """A linked image."""

    program: FirmwareProgram
    folder: Path
    image: Path
    size: ImageSize
    core: Core
    objects: tuple[Path, ...]


def runtime_folder() -> Path:
    """The C sources: in the repository, or inside an installed package."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parents[1] / "runtime", package / "_runtime"):
        if (folder / "include" / "neutron.h").exists():
            return folder
    fail("ON504", "runtime", "the C sources of the runtime are not beside the package", "Install it again.")


def neutron_units(core: Core, optimize: str = OPTIMIZE, defines: Sequence[str] = ()) -> list[Unit]:
    """The runtime's own files, for a core's chip alone; the group tells kernels from what they share."""
    runtime = runtime_folder()
    flags, includes = (*WARNINGS, *C, optimize, *defines), _includes(runtime)
    chip = (f"-DNEUTRON_TARGET={core.target}u",)
    headers = digest_of(f for folder in includes for f in folder.glob("*.h"))
    sources = [("kernel", s) for s in sorted((runtime / "kernels").glob("*.c"))]
    sources += [("src", s) for s in sorted((runtime / "src").glob("*.c"))]
    return [
        Unit(group, source.stem, source, (*flags, *chip) if group == "src" else flags, includes, headers)
        for group, source in sources
    ]


def build_firmware(
    program: FirmwareProgram,
    folder: Path,
    *,
    core: Core | None = None,
    selection: Path | None = None,
    select: bool = False,
    sram_bytes: int | None = None,
    optimize: str = OPTIMIZE,
    defines: Sequence[str] = (),
) -> Firmware:
    """Build the image of the delegates; kernels are a selection's, the program's own (`select`), or all."""
    core = core or find_firmware_core(target=program.target)
    _check_memory(program, core, sram_bytes)
    if selection is not None:
        check_selection(selection)
    check_tools()
    make_folder(folder)
    given, folder, runtime = folder, folder.resolve(), runtime_folder()
    program.write(folder)
    if selection is None and select:
        selection = folder / SELECTION
        write_atomically(
            selection, kernel_selection_code(program.kernels, program.converter, program.target).encode()
        )
    includes = (*_includes(runtime), runtime / "firmware", folder)
    flags = (*WARNINGS, *C, optimize, *defines)
    headers = digest_of(f for place in includes for f in place.glob("*.h"))
    sources = {name: runtime / "firmware" / f"{name}.c" for name in APPLICATION}
    if selection is not None:
        sources["kernel_selection"] = selection.resolve()
    units = neutron_units(core, optimize, [d for d in defines if "FIRMWARE_" not in d])
    units += [Unit("application", name, source, flags, includes, headers) for name, source in sources.items()]
    objects = compile_units(units, core)
    compiler = find_tool(f"{PREFIX}gcc")
    objects.append(folder / "application__program.o")
    run_tool([compiler, *core.flags, "-c", ASSEMBLY, "-o", objects[-1].name], folder)
    image, linker_map = folder / f"{program.name}.elf", folder / f"{program.name}.map"
    link = ("-nostartfiles", "-Wl,--gc-sections", "-Wl,--fatal-warnings",
            "-Xlinker", f"-Map={linker_map.name}",  # not -Wl: a name may have a comma
            f"-Wl,--defsym=__stack_bytes={STACK_BYTES}", f"-L{runtime / 'firmware'}",
            "-T", runtime / "firmware" / core.script)  # fmt: skip
    run_tool([compiler, *core.flags, *link, *objects, "-o", image.name], folder)
    return Firmware(program, given, given / image.name, read_map(linker_map), core, tuple(objects))


def check_selection(path: Path) -> None:
    """Refuse a kernel selection that cannot be read or was edited."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail("ON422", str(path), f"cannot be read: {error}", "Check the path.")
    check_unedited(text, read_selection(text, str(path)), str(path))


def _includes(runtime: Path) -> tuple[Path, ...]:
    return tuple(runtime / d for d in ("include", "generated", "src"))


def _check_memory(program: FirmwareProgram, core: Core, sram_bytes: int | None) -> None:
    need, pools = program.pools.delegates_bytes + STACK_BYTES, program.pools
    room = min(sram_bytes or core.sram_bytes, core.sram_bytes)
    if need > room:
        fail(
            "ON703",
            program.name,
            f"needs {need:,} bytes of SRAM (scratch {pools.scratch:,}, prefetch {pools.prefetch:,}, "
            f"inputs {pools.inputs:,}, outputs {pools.outputs:,}, stack {STACK_BYTES:,}); "
            f"there are {room:,}",
            "Compile it with a smaller --sram, or give the firmware more.",
        )
    if program.flash_bytes > core.flash_bytes:
        fail("ON703", program.name, f"microcode and weights have {program.flash_bytes:,} bytes; the emulated "
             f"board has {core.flash_bytes:,} of flash", "Use a smaller model.")  # fmt: skip
