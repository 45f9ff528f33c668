"""Builds of the C runtime for tests: straight from the sources with the C compiler, cached by content."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import get_ident

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = ROOT / "runtime"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
INCLUDES = tuple(f"-I{RUNTIME / d}" for d in ("include", "src", "generated"))
COMMON = ("-std=c11", "-ffp-contract=off", *WARNINGS, *INCLUDES)
AVX512 = ("-mavx2", "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512vnni")
VECTOR_FLAGS = {
    "avx2.c": ("-mavx2",),
    "table_avx2.c": ("-mavx2",),
    "table_vbmi.c": ("-mavx512f", "-mavx512bw", "-mavx512vbmi"),
    "vnni.c": AVX512,
    "vnni_tiles.c": AVX512,
    "vnni_narrow.c": AVX512,
    "vnni_few_rows.c": AVX512,
    "depthwise_vnni.c": AVX512,
    "depthwise_narrow_vnni.c": AVX512,
    "add_avx512.c": AVX512,
    "scale_doubles_avx512.c": AVX512,
    "avx_vnni.c": ("-mavx2", "-mavxvnni"),
    "product_dot.c": ("-march=armv8.2-a+dotprod",),
}


def portable_sources() -> list[Path]:
    """The C files every build has."""
    return sorted([*(RUNTIME / "src").glob("*.c"), *(RUNTIME / "kernels").glob("*.c")])


@cache
def knows_avx_vnni() -> bool:
    """Whether the compiler does; one that does not builds without, as CMake does it."""
    command = ["gcc", "-mavxvnni", "-E", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def vector_sources(machine: str = "x86") -> list[Path]:
    """The C files that only the build for a host has: `x86` (x86-64) or `aarch64`."""
    found = [*(RUNTIME / "src" / "vector").glob("*.c"), *(RUNTIME / "src" / machine).glob("*.c")]
    return sorted(path for path in found if path.name != "avx_vnni.c" or knows_avx_vnni())


@cache
def build(name: str, *flags: str, machine: str = "", extra: tuple[Path, ...] = ()) -> Path:
    """Compile the runtime with these flags; the file is reused while sources and flags are the same.

    `machine` names the vectorised code that goes in: `x86`, or `aarch64`, for which the compiler is another.
    """
    sources = [*portable_sources(), *extra, *(vector_sources(machine) if machine else [])]
    headers = [*RUNTIME.glob("*/*.h"), *RUNTIME.glob("src/*/*.h")]
    digest = hashlib.sha256(repr((machine, flags)).encode())
    for path in sorted([*sources, *headers]):
        digest.update(path.read_bytes())
    folder = ROOT / "build" / "tests" / f"{name}-{digest.hexdigest()[:16]}"
    result = folder / name
    if result.exists():
        return result
    define = ("-DNEUTRON_VECTOR",) if machine else ()
    if machine == "x86" and not knows_avx_vnni():
        define += ("-DNEUTRON_NO_AVX_VNNI",)
    compiler = "aarch64-linux-gnu-gcc" if machine == "aarch64" else "gcc"
    commands = []
    for source in sources:
        special = VECTOR_FLAGS.get(source.name, ())
        if "-DNEUTRON_VNNI_256" in flags and source.name == "avx_vnni.c":
            special = AVX512  # the same instruction, as this machine may have it
        commands.append((compiler, *COMMON, *define, *flags, *special, "-c", str(source)))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if not result.exists():
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(compile_object, commands))
            part = folder / f"{name}.{os.getpid()}"
            subprocess.run([compiler, *flags, *map(str, objects), "-o", str(part)], check=True)
            os.replace(part, result)
    return result


def compile_object(command: tuple[str, ...]) -> Path:
    """The object of a compiler's command: one for all builds in which the preprocessor leaves the same text.

    Most files look at few of the definitions by which builds differ.
    """
    text = subprocess.run([*command[:-2], "-E", command[-1]], check=True, stdout=subprocess.PIPE).stdout
    code_flags = [word for word in command if not word.startswith(("-D", "-I", "-pthread"))]
    digest = hashlib.sha256(repr(code_flags).encode() + text).hexdigest()[:32]
    result = ROOT / "build" / "tests" / "objects" / f"{digest}.o"
    if not result.exists():
        result.parent.mkdir(parents=True, exist_ok=True)
        part = result.with_suffix(f".{os.getpid()}-{get_ident()}")
        subprocess.run([*command, "-o", str(part)], check=True)
        os.replace(part, result)
    return result


def libraries() -> dict[str, Path]:
    """The portable runtime and, on x86-64, the vectorised ones: all must give the same bits."""
    found = {"portable": build("libneutron_portable.so", "-O2", "-fPIC", "-shared")}
    if platform.machine() == "x86_64" and vector_sources():
        found["vector"] = build("libneutron_vector.so", "-O2", "-fPIC", "-shared", machine="x86")
        flags = ("-O2", "-fPIC", "-shared", "-DNEUTRON_NO_VNNI")
        found["avx2"] = build("libneutron_avx2.so", *flags, machine="x86")
        flags = ("-O2", "-fPIC", "-shared", "-DNEUTRON_VNNI_256")
        found["avx vnni"] = build("libneutron_avx_vnni.so", *flags, machine="x86")
    return found
