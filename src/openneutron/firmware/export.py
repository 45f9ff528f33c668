"""A program for an application of one's own: its bytes, pools and kernels, and a CMake project of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from openneutron.files import make_folder, write_atomically
from openneutron.firmware.build import SELECTION, runtime_folder
from openneutron.firmware.operators import Kernels, prim_defines
from openneutron.firmware.sources import CMSIS_NN_COMMIT, Sources, git_commands
from openneutron.firmware.toolchain import CXX
from openneutron.firmware.whole import (
    ASSEMBLY,
    CMSIS_NN_SPEED,
    CORE_FILES,
    CPU_KERNEL_SPEED,
    DEFINES,
    KERNEL_SPEED,
    POOLS_HEADER,
    SIZE,
    WholeFirmware,
)


def export_program(firmware: WholeFirmware, folder: Path, sources: Sources) -> None:
    """Write the folder: nothing in it is of the emulator."""
    make_folder(folder)
    program = firmware.program
    write_atomically(folder / "program.pte", program.data)
    write_atomically(folder / ASSEMBLY, program.assembly().encode())
    write_atomically(folder / POOLS_HEADER, firmware.pools.header(program.name).encode())
    if program.delegates:
        shutil.copyfile(firmware.folder / SELECTION, folder / SELECTION)
    for library, place in firmware.kernels.registrations:
        copy_code(place, folder / "registrations" / library)
    copy_code(sources.generated / "executorch/schema", folder / "generated/executorch/schema")
    write_atomically(folder / "main.cpp", main_code(firmware).encode())
    write_atomically(folder / "CMakeLists.txt", _cmake(firmware, sources).encode())


def copy_code(place: Path, folder: Path) -> None:
    """Copy the headers and the registrations of a folder."""
    make_folder(folder)
    for file in sorted(place.iterdir()):
        if file.suffix == ".h" or file.name == "RegisterCodegenUnboxedKernelsEverything.cpp":
            shutil.copyfile(file, folder / file.name)


def main_code(firmware: WholeFirmware, template: str = "main.cpp") -> str:
    """An application that loads the program and runs its first method once."""
    name, method = next(iter(firmware.program.info.methods.items()))
    spans, at = [], 0
    for size in method.planned_buffers:
        spans.append(f"{{planned_pool + {at}, {size}}}")
        at += -(-size // 16) * 16
    inputs = [
        f"  void* input_{i} = method->mutable_input({i}).toTensor().mutable_data_ptr();\n"
        f"  (void)input_{i};  // write {spec} here"
        for i, spec in enumerate(method.inputs)
        if spec is not None
    ]
    return fill_template(
        template,
        METHOD=name,
        BUFFERS=f"  Span<uint8_t> buffers[] = {{{', '.join(spans) or '{}'}}};",
        COUNT=str(len(spans)),
        INPUTS="\n".join(inputs),
    )


def runtime_files() -> list[Path]:
    """The sources of the driver, its kernels and the delegate."""
    runtime = runtime_folder()
    sources = [*sorted((runtime / "src").glob("*.c")), *sorted((runtime / "kernels").glob("*.c"))]
    return [*sources, runtime / "executorch/neutron_backend.cpp", runtime / "executorch/payload.cpp"]


def source_groups(firmware: WholeFirmware, sources: Sources) -> dict[str, list[str]]:
    """What an application of the program is compiled of, with CMake's variables for the folders."""
    kernels, runtime = firmware.kernels, runtime_folder()
    neutron: list[str] = []
    if firmware.program.delegates:
        neutron = [f"${{OPENNEUTRON_RUNTIME}}/{file.relative_to(runtime)}" for file in runtime_files()]
        neutron.append(f"${{HERE}}/{SELECTION}")
    return {
        "EXECUTORCH_FILES": [f"${{EXECUTORCH_SOURCE}}/{f}.cpp" for f in (*CORE_FILES, _PLATFORM)],
        "KERNEL_FILES": [
            f"${{EXECUTORCH_SOURCE}}/{f.relative_to(sources.executorch)}" for _, f in kernels.files
        ],
        "CMSIS_NN_FILES": [
            f"${{CMSIS_NN_SOURCE}}/{f.relative_to(sources.cmsis_nn)}"
            for f in kernels.cmsis_nn
            if sources.cmsis_nn is not None
        ],
        "REGISTRATIONS": [
            f"${{HERE}}/registrations/{library}/RegisterCodegenUnboxedKernelsEverything.cpp"
            for library, _ in kernels.registrations
        ],
        "CPU_KERNEL_FILES": [f"${{OPENNEUTRON_RUNTIME}}/{f.relative_to(runtime)}" for f in kernels.ours],
        "NEUTRON_FILES": neutron,
    }


def _cmake(firmware: WholeFirmware, sources: Sources) -> str:
    kernels, runtime, groups = firmware.kernels, runtime_folder(), source_groups(firmware, sources)
    neutron, commands = groups["NEUTRON_FILES"], git_commands()
    includes: tuple[str, ...] = ("include", "generated", "src", "executorch") if neutron else ()
    includes += ("cpu_kernels",) if kernels.ours else ()
    return fill_template(
        "CMakeLists.txt",
        NAME=firmware.program.name,
        PROJECT=re.sub(r"[^A-Za-z0-9]", "_", firmware.program.name),
        CORE=firmware.core.name,
        EXECUTORCH_COMMAND=commands[0],
        CMSIS_NN_COMMAND=commands[1],
        CMSIS_NN_COMMIT=CMSIS_NN_COMMIT[:12],
        RUNTIME=re.sub(r'(["\\$;@])', r"\\\1", runtime.as_posix()),  # in quotes
        CORE_FLAGS=" ".join(firmware.core.flags),
        CHECK_CMSIS_NN=_CHECK_CMSIS_NN.replace("@COMMAND@", commands[1]) if groups["CMSIS_NN_FILES"] else "",
        SOURCES="\n".join(f"set({name}\n  {quoted(files)})" for name, files in groups.items()),
        CXX_FLAGS=";".join(CXX),
        DEFINES=" ".join(definitions(firmware)),
        NEUTRON_INCLUDES=" ".join(f'"${{OPENNEUTRON_RUNTIME}}/{d}"' for d in includes),
        SIZE=SIZE,
        CMSIS_NN_SPEED=CMSIS_NN_SPEED,
        KERNEL_SPEED=KERNEL_SPEED,
        CPU_KERNEL_SPEED=";".join(CPU_KERNEL_SPEED),
        KERNELS=str(kernels.count),
        PRIM=prim_properties(kernels),
    )


_PLATFORM = "runtime/platform/default/minimal"  # weak: an application's own functions replace it
_CHECK_CMSIS_NN = """if(NOT EXISTS "${CMSIS_NN_SOURCE}/Include/arm_nnfunctions.h")
  message(FATAL_ERROR "CMSIS_NN_SOURCE is no source of CMSIS-NN: @COMMAND@")
endif()"""


def prim_properties(kernels: Kernels) -> str:
    """Of ExecuTorch's own operators, those that the program calls, in CMake's words."""
    if not kernels.prim:
        return ""
    options = ";".join((SIZE, *prim_defines(kernels.prim)))
    return (
        'set_source_files_properties("${EXECUTORCH_SOURCE}/kernels/prim_ops/register_prim_ops.cpp"\n'
        f'  PROPERTIES COMPILE_OPTIONS "{options}")\n'
    )


def definitions(firmware: WholeFirmware) -> list[str]:
    """What every file is compiled with: ExecuTorch's definitions, and the chip whose microcode is taken."""
    return [*(d.removeprefix("-D") for d in DEFINES), f"NEUTRON_TARGET={firmware.core.target}u"]


def quoted(files: list[str]) -> str:
    """Files one below the other, for CMake."""
    return "\n  ".join(f'"{file}"' for file in files)


def fill_template(name: str, **values: str) -> str:
    """A template of runtime/firmware/export with its values."""
    template = (runtime_folder() / "firmware/export" / f"{name}.in").read_text()
    for key, value in values.items():
        template = template.replace(f"@{key}@", value)
    return template.rstrip() + "\n"
