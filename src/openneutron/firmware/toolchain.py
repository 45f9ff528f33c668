"""The cross compiler, and a cache of what it has compiled.

An object is known by all that makes it: the compiler, its flags, the source and every header it may include.
Objects are used again by any firmware that wants the same; the cache may be wiped at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from openneutron.diagnostics import fail
from openneutron.files import cache_base, make_folder, scratch_folder

PREFIX = "arm-none-eabi-"
PACKAGES = "gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-newlib qemu-system-arm"
# No contraction: a fused multiply-add rounds once where the definition rounds twice.
COMMON = ("-ffp-contract=off", "-ffunction-sections", "-fdata-sections")
WARNINGS = ("-Wall", "-Wextra", "-Werror")
C = ("-std=c11", "-Wconversion")
_COMPILERS = {".c": "gcc", ".S": "gcc", ".cpp": "g++"}
CXX = ("-std=c++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-use-cxa-atexit")


class Processor(Protocol):
    """What code is compiled for: a `Core`, or the machine of a test."""

    @property
    def name(self) -> str:
        """A folder of the cache is called so."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's."""


@dataclass(frozen=True)
class Unit:
    """One file to compile. `group` and `name` are the object's, by which sizes are told apart."""

    group: str
    name: str
    source: Path
    flags: tuple[str, ...] = ()
    includes: tuple[Path, ...] = ()
    headers: str = ""  # a digest of what the includes hold


def cache_folder() -> Path:
    """Where objects and unpacked sources are kept: OPENNEUTRON_CACHE, else the user's cache folder."""
    own = os.environ.get("OPENNEUTRON_CACHE")
    return Path(own) if own else (cache_base() or Path.home() / ".cache" / "openneutron") / "firmware"


def find_tool(name: str) -> str:
    """A cross tool's path; a missing one is a diagnostic that says what to install."""
    path = shutil.which(name)
    if path is None:
        fail("ON701", name, "is not installed or not in the PATH",
             f"Debian and Ubuntu: apt-get install {PACKAGES}")  # fmt: skip
    return path


def check_tools(*, cxx: bool = False, emulator: bool = False) -> None:
    """Every tool a build needs, before it begins."""
    compiler = find_tool(f"{PREFIX}gcc")
    libraries = [("libc.a", "newlib", "the C library")]
    if cxx:
        find_tool(f"{PREFIX}g++")
        libraries.append(("libstdc++.a", "libstdc++", "the C++ library"))
    if emulator:
        find_tool("qemu-system-arm")
    for file, name, what in libraries:
        done = subprocess.run(
            [compiler, f"-print-file-name={file}"], capture_output=True, text=True, check=True
        )
        if not Path(done.stdout.strip()).is_absolute():  # the bare name comes back when there is none
            fail("ON701", name, f"{what} for the cross compiler is not installed",
                 f"Debian and Ubuntu: apt-get install {PACKAGES}")  # fmt: skip


def digest_of(files: Iterable[Path], root: Path | None = None) -> str:
    """A digest of files, their names included."""
    digest = hashlib.sha256()
    for path in sorted(files):
        name = path.relative_to(root) if root else Path(path.name)
        digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def preprocessed_digest(unit: Unit, core: Processor, prefix: str = PREFIX) -> str:
    """A digest of a source with all that it includes."""
    compiler = find_tool(f"{prefix}{_COMPILERS[unit.source.suffix]}")
    includes = [f"-I{path}" for path in unit.includes]
    with scratch_folder() as folder:
        text = folder / "preprocessed"
        run_tool([compiler, *core.flags, *COMMON, *unit.flags, *includes, "-E", unit.source, "-o", text])
        return hashlib.sha256(text.read_bytes()).hexdigest()


def compile_units(units: Sequence[Unit], core: Processor, prefix: str = PREFIX) -> list[Path]:
    """Their objects, in order; those that are not in the cache are compiled."""
    compilers = {suffix: find_tool(f"{prefix}{tool}") for suffix, tool in _COMPILERS.items()}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda unit: _compile(unit, core, compilers[unit.source.suffix]), units))


def run_tool(command: Sequence[object], folder: Path | None = None) -> None:
    """Run a tool of the compiler; an error is a diagnostic with its last lines."""
    done = subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        marks = ("error:", "undefined reference", "multiple definition", "will not fit", "overflowed")
        named = [line for line in lines if any(m in line for m in marks) and "collect2" not in line] or lines[
            -6:
        ]
        what = " | ".join(dict.fromkeys(named[:6])) or f"exit code {done.returncode}"
        fail("ON702", Path(str(command[0])).name, what)


def _compile(unit: Unit, core: Processor, compiler: str) -> Path:
    flags = (*core.flags, *COMMON, *unit.flags)
    key = hashlib.sha256(repr((flags, _version(compiler), unit.headers)).encode())
    key.update(unit.source.read_bytes())
    folder = cache_folder() / "objects" / core.name / key.hexdigest()[:24]
    result = folder / f"{unit.group}__{unit.name}.o"
    if result.exists():
        return result
    make_folder(folder)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may want the same: it is compiled once
        if result.exists():
            return result
        unfinished = folder / "unfinished.o"
        try:
            includes = [f"-I{path}" for path in unit.includes]
            run_tool([compiler, *flags, *includes, "-c", unit.source, "-o", unfinished])
            unfinished.replace(result)
        finally:
            unfinished.unlink(missing_ok=True)
    return result


@cache
def _version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
