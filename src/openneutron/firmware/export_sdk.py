"""A program as a project of NXP's MCUXpresso SDK, or as a module and an application of Zephyr."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from openneutron.board.arrays import to_memory
from openneutron.board.limits import KIB, temporary_need
from openneutron.diagnostics import fail
from openneutron.files import make_folder, write_atomically
from openneutron.firmware.build import SELECTION, runtime_folder
from openneutron.firmware.cores import find_firmware_core
from openneutron.firmware.export import (
    copy_code,
    definitions,
    fill_template,
    main_code,
    prim_properties,
    quoted,
    runtime_files,
    source_groups,
)
from openneutron.firmware.operators import find_kernels, prim_defines, uses_cmsis_nn
from openneutron.firmware.pools import WholePools
from openneutron.firmware.sizes import ImageSize
from openneutron.firmware.sources import Sources, find_sources, git_commands, sources_folder
from openneutron.firmware.toolchain import CXX
from openneutron.firmware.whole import (
    ASSEMBLY,
    CPU_KERNEL_SPEED,
    KERNEL_SPEED,
    POOLS_HEADER,
    WholeFirmware,
    WholeProgram,
)
from openneutron.firmware.whole_run import host_runs, random_runs
from openneutron.package.pte import check_program, parse_program, read_program
from openneutron.targets.table import DEFAULT_TARGET, find_target

NXP_TEMPORARY = 96 * KIB  # NXP: with less the NPU's output is wrong without a word
NXP_METHOD = 64 * KIB  # not measured: no emulator has the NPU; the application prints what was used


def is_stock_program(path: Path) -> bool:
    """Whether NXP's converter made the delegates of a program."""
    data, where = read_program(path)
    info = parse_program(data, where, check_program(data, where))
    payloads = [d.known_payload() for d in info.delegates]
    return any(payload is not None and not payload.is_open for payload in payloads)


def stock_firmware(
    path: Path, executorch: str | None = None, target: str = DEFAULT_TARGET
) -> tuple[WholeFirmware, Sources]:
    """What is known of a program of NXP's converter without running it: operators and memory."""
    data, where = read_program(path)
    info = parse_program(data, where, check_program(data, where))
    others = sorted({d.backend for d in info.delegates if not d.is_neutron})
    if others:
        fail("ON709", where, f"there is no backend {', '.join(others)} in the firmware",
             "Compile the model for NeutronBackend and the CPU alone.")  # fmt: skip
    program = WholeProgram(path.stem, data, info, (), "eiq", target)
    if uses_cmsis_nn(program.operators):
        fail("ON709", where, "the library in NXP's SDK has no cortex_m kernels",
             "Compile the model with --recipe neutron.")  # fmt: skip
    sources = find_sources(executorch, needs_cmsis_nn=False)
    need = max((temporary_need(m) for m in info.methods.values()), default=0)
    pools = replace(WholePools.known(info), method=NXP_METHOD, temporary=max(need, NXP_TEMPORARY))
    kernels = find_kernels(program.operators, sources)
    empty = ImageSize(())
    return WholeFirmware(
        program, find_firmware_core(target=target), path.parent, path, empty, kernels, pools, ()
    ), sources


def export_mcux(firmware: WholeFirmware, folder: Path, sources: Sources) -> None:
    """Write an example of the MCUXpresso SDK."""
    chip = find_target(firmware.program.target)
    if not chip.nxp_board:
        fail("ON104", "option --format", f"NXP's SDK has no example of ExecuTorch for {chip.chip}",
             "Export with --format cmake or zephyr.")  # fmt: skip
    make_folder(folder)
    program, ours = firmware.program, bool(firmware.program.delegates)
    stock = program.converter == "eiq"
    _write(folder / "model_pte.h", _array(program.data, program.name))
    _write(folder / POOLS_HEADER, firmware.pools.header(program.name))
    _registrations(firmware, folder)
    driver = '\nextern "C" {\n#include "NeutronDriver.h"\n}\n' if stock else ""
    main = main_code(firmware, "mcux_main.cpp").replace("@DRIVER@", driver)
    main = main.replace("@INIT@", _START_NPU if stock else "")
    _write(folder / "main.cpp", main.replace("@DEINIT@", "  neutronDeinit();" if stock else ""))
    if ours:
        _runtime(firmware, folder)
    if not stock:
        copy_code(sources.generated / "executorch/schema", folder / "generated/executorch/schema")
    names = [f"registrations/{library}" for library, _ in firmware.kernels.registrations]
    cpu = _cpu_kernels(firmware, folder)
    includes = [*names, *(["generated"] if not stock else []), *_OURS * ours]
    includes += ["openneutron/cpu_kernels"] if cpu else []
    files = ["main.cpp", "model_pte.h", POOLS_HEADER]
    files += [f"{name}/RegisterCodegenUnboxedKernelsEverything.cpp" for name in names]
    files += cpu
    common = {"NAME": program.name, "PROJECT": _identifier(program.name), "CHIP": chip.chip,
              "BOARD": chip.nxp_board, "CORE": chip.nxp_core}  # fmt: skip
    _write(folder / "CMakeLists.txt", fill_template(
        "mcux_CMakeLists.txt", **common, INCLUDES=" ".join(includes), FILES="\n  ".join(files),
        CPU_KERNELS=_speed([f"${{HERE}}/{file}" for file in cpu])))  # fmt: skip
    _write(folder / "example.yml", fill_template("mcux_example.yml", **common))
    _write(folder / "reconfig.cmake", _reconfig(firmware, sources, stock))
    pools = "planned exactly, temporary as NXP wants it, method guessed" if stock else "measured under QEMU"
    linked = "NXP's libraries of ExecuTorch and the NPU" if stock else "ExecuTorch's source and OpenNeutron's"
    operators = ", ".join(f"`{op}`" for op in program.operators) or "none"
    _write(folder / "readme.md", fill_template(
        "mcux_readme.md", **common, POOLS=pools, LINKED=linked, OPERATORS=operators))  # fmt: skip


def export_zephyr(firmware: WholeFirmware, folder: Path, sources: Sources) -> None:
    """Write a module of Zephyr, and an application that uses it and ExecuTorch's."""
    program, app = firmware.program, folder / "app"
    make_folder(app / "src")
    make_folder(folder / "zephyr")
    groups = source_groups(firmware, sources)
    _write(folder / "zephyr/module.yml", fill_template("zephyr_module.yml"))
    _write(folder / "zephyr/Kconfig", fill_template("zephyr_Kconfig"))
    neutron_files = {"NEUTRON_FILES": groups.pop("NEUTRON_FILES")}
    module = fill_template("zephyr_CMakeLists.txt", SOURCES=_sets(neutron_files), KERNEL_SPEED=KERNEL_SPEED,
                           TARGET=str(firmware.core.target))  # fmt: skip
    _write(folder / "zephyr/CMakeLists.txt", module)
    if program.delegates:
        _runtime(firmware, folder, app / "src")
    groups.pop("EXECUTORCH_FILES")  # the module of ExecuTorch has them
    cpu = _cpu_kernels(firmware, folder)
    common = {"NAME": program.name, "PROJECT": _identifier(program.name)}
    _write(app / "CMakeLists.txt", fill_template(
        "zephyr_app_CMakeLists.txt", **common, SOURCES=_sets(groups), EXECUTORCH_COMMAND=git_commands()[0],
        CPU_KERNELS=_speed([f"${{CMAKE_CURRENT_SOURCE_DIR}}/../{file}" for file in cpu]),
        SUBMODULES_COMMAND=zephyr_submodules(), PRIM=prim_properties(firmware.kernels)))  # fmt: skip
    _write(app / "Kconfig", fill_template("zephyr_app_Kconfig"))
    wanted = "CONFIG_OPENNEUTRON=y\n" if program.delegates else ""
    stack = str(-(-firmware.pools.stack // 1024) * 1024 + 2048)  # interrupts and Zephyr's own come on top
    _write(app / "prj.conf", fill_template("zephyr_prj.conf", OPENNEUTRON=wanted, STACK=stack))
    write_atomically(app / "src/program.pte", program.data)
    assembly = program.assembly().replace(".section .program,", ".section .rodata.program,")
    _write(app / "src" / ASSEMBLY, assembly)
    _write(app / "src" / POOLS_HEADER, firmware.pools.header(program.name))
    _write(app / "src/main.cpp", main_code(firmware, "zephyr_main.cpp"))
    _sample(program, app / "src")
    _registrations(firmware, app / "src")


def zephyr_submodules() -> str:
    """How a clone of ExecuTorch gets what its module of Zephyr is built with."""
    names = ("flatbuffers", "flatcc", "gflags", "json")
    folders = (*(f"third-party/{name}" for name in names), "backends/xnnpack/third-party/FXdiv")
    place = shlex.quote(str(sources_folder() / "executorch"))
    return f"git -C {place} submodule update --init --depth 1 {' '.join(folders)}"


def _sample(program: WholeProgram, folder: Path) -> None:
    """Inputs of the first method and what the host computes of them, as a device has them in memory."""
    inputs = random_runs(program, 1)
    name, method = next(iter(program.info.methods.items()))
    outputs = host_runs(program, {name: inputs[name]})
    parts = (("inputs", inputs, method.inputs), ("outputs", outputs, method.outputs))
    text = "/* A sample. Generated by `openneutron firmware`; do not edit. */\n"
    for what, arrays, specs in parts:
        data = b"".join(to_memory(np.asarray(a), s) for a, s in zip(arrays[name][0], specs, strict=True))
        write_atomically(folder / f"sample_{what}.bin", data)
        text += (
            f'    .section .rodata.sample_{what}, "a"\n    .balign 16\n    .global sample_{what}\n'
            f'sample_{what}:\n    .incbin "sample_{what}.bin"\n'
        )
    _write(folder / "sample.S", text)


_START_NPU = """  if (neutronInit() != 0) {
    PRINTF("the NPU does not start\\r\\n");
  }"""
_OURS = tuple(f"openneutron/{name}" for name in ("include", "generated", "src", "executorch"))


def _reconfig(firmware: WholeFirmware, sources: Sources, stock: bool) -> str:
    if stock:
        libraries = find_target(firmware.program.target).nxp_libraries
        return fill_template("mcux_reconfig_eiq.cmake", LIBRARIES=libraries)
    groups, commands = source_groups(firmware, sources), git_commands()
    for name in ("REGISTRATIONS", "CPU_KERNEL_FILES"):
        groups.pop(name)  # CMakeLists.txt has them
    prim = firmware.kernels.prim
    return fill_template(
        "mcux_reconfig_open.cmake",
        EXECUTORCH_COMMAND=commands[0],
        CMSIS_NN_COMMAND=commands[1],
        SOURCES=_sets(groups),
        KERNEL_SPEED=KERNEL_SPEED,
        CXX_FLAGS=" ".join(CXX),
        DEFINES=" ".join(definitions(firmware)),
        KERNELS=str(firmware.kernels.count),
        PRIM="".join(f" {d.removeprefix('-D')}" for d in prim_defines(prim)) if prim else "",
    )


def _sets(groups: dict[str, list[str]]) -> str:
    return "\n".join(f"set({name}\n  {quoted(files)})" for name, files in groups.items())


def _registrations(firmware: WholeFirmware, folder: Path) -> None:
    for library, place in firmware.kernels.registrations:
        copy_code(place, folder / "registrations" / library)


def _runtime(firmware: WholeFirmware, folder: Path, selection: Path | None = None) -> None:
    """The sources of this project that a program's delegates need."""
    runtime = runtime_folder()
    folders = ("include", "generated", "src", "kernels", "executorch")
    headers = [file for name in folders for file in (runtime / name).glob("*.h")]
    for file in [*runtime_files(), *headers]:
        target = folder / "openneutron" / file.relative_to(runtime)
        make_folder(target.parent)
        shutil.copyfile(file, target)
    shutil.copyfile(firmware.folder / SELECTION, (selection or folder) / SELECTION)


def _cpu_kernels(firmware: WholeFirmware, folder: Path) -> list[str]:
    """Our CPU kernels that a program needs, copied into the folder; their names in it."""
    runtime, files = runtime_folder(), firmware.kernels.ours
    own = runtime / "cpu_kernels"
    headers = [*own.glob("*.h"), *own.glob("executorch/*.h")] if files else []
    for file in (*files, *headers):
        target = folder / "openneutron" / file.relative_to(runtime)
        make_folder(target.parent)
        shutil.copyfile(file, target)
    return [f"openneutron/{file.relative_to(runtime).as_posix()}" for file in files]


def _speed(files: list[str]) -> str:
    """Our CPU kernels are always optimized."""
    options = ";".join(CPU_KERNEL_SPEED)
    listing = "\n  ".join(files)
    return (
        f'set_source_files_properties(\n  {listing}\n  PROPERTIES COMPILE_OPTIONS "{options}")'
        if files
        else ""
    )


def _array(data: bytes, name: str) -> str:
    rows = (", ".join(f"0x{b:02x}" for b in data[at : at + 20]) for at in range(0, len(data), 20))
    body = ",\n  ".join(rows)
    return (
        f"/* {name}.pte. Generated by `openneutron firmware`; do not edit. */\n#pragma once\n\n"
        f"#include <stdint.h>\n\nalignas(16) static const uint8_t model_pte[] = {{\n  {body}}};\n"
    )


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
