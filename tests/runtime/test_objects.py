"""What the object files show: no heap, no writable globals, no warnings, on the host and the Cortex-M33."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native import COMMON, VECTOR_FLAGS, portable_sources, vector_sources

CROSS = "arm-none-eabi-"
CORTEX_M33 = ("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=softfp", "-mfpu=fpv5-sp-d16", "-Os")
# What the compiler itself may call: moving memory, and arithmetic a core lacks.
ALLOWED_ON_ARM = ("memcpy", "memmove", "memset", "__aeabi_")


def compile_all(folder: Path, prefix: str, flags: tuple[str, ...], sources: list[Path]) -> list[Path]:
    """Object files; a warning is an error."""
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        special = VECTOR_FLAGS.get(source.name, ())
        command = [f"{prefix}gcc", *COMMON, *flags, *special, "-c", source, "-o", objects[-1]]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
    return objects


def symbols(prefix: str, objects: list[Path]) -> set[tuple[str, str]]:
    """(type, name) of every symbol."""
    command = [f"{prefix}nm", *map(str, objects)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in text.splitlines() if not line.endswith(":")]
    return {(row[-2], row[-1]) for row in rows if len(row) >= 2}


def check_symbols(found: set[tuple[str, str]]) -> None:
    writable = sorted(name for kind, name in found if kind in "bBdDcCsSgG")
    assert not writable, f"writable globals: {writable}"
    defined = {name for kind, name in found if kind != "U"}
    called = {name for kind, name in found if kind == "U"} - defined
    heap = called & {"malloc", "calloc", "realloc", "free", "printf", "abort", "exit", "__assert_fail"}
    assert not heap, f"the runtime calls {heap}"


def test_host_objects(tmp_path):
    sources = portable_sources() + vector_sources()
    check_symbols(symbols("", compile_all(tmp_path, "", ("-O2", "-fno-pic", "-DNEUTRON_VECTOR"), sources)))


@pytest.mark.firmware
def test_cortex_m33_objects(tmp_path):
    found = symbols(CROSS, compile_all(tmp_path, CROSS, CORTEX_M33, portable_sources()))
    check_symbols(found)
    defined = {name for kind, name in found if kind != "U"}
    foreign = {n for k, n in found if k == "U"} - defined
    assert all(name.startswith(ALLOWED_ON_ARM) for name in foreign), sorted(foreign)


@pytest.mark.firmware
def test_unused_kernels_are_dropped(tmp_path):
    """A selection table that names one kernel leaves the others out of the linked image."""
    sections = (*CORTEX_M33, "-ffunction-sections", "-fdata-sections")
    library = tmp_path / "libneutron.a"
    objects = compile_all(tmp_path, CROSS, sections, portable_sources())
    subprocess.run([f"{CROSS}ar", "rcs", str(library), *map(str, objects)], check=True)
    main = tmp_path / "main.c"
    main.write_text(
        '#include "neutron.h"\n'
        "int32_t (*const neutronKernels[NEUTRON_KERNEL_KINDS])\n"
        "    (const struct NeutronMachine *, const void *) = {[NEUTRON_KERNEL_TABLE] = neutron_table};\n"
        "NeutronModel model; NeutronImage image; NeutronRun request;\n"
        "int main(void) { return neutron_prepare(&model, &image) || neutron_run(&model, &request); }\n"
    )
    image = tmp_path / "main.elf"
    link = ("--specs=nosys.specs", "-Wl,--gc-sections")
    command = [f"{CROSS}gcc", *COMMON, *sections, *link, main, library, "-o", image]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {name for _, name in symbols(CROSS, [image])}
    assert {"neutron_table", "neutron_prepare", "neutron_run"} <= names
    assert not names & {"neutron_conv_2d", "neutron_softmax", "neutron_gemm"}
