"""The sources firmware with ExecuTorch's runtime is built of: a user's clones or tarballs of them.

An option names one, else a variable, else it is looked for in one place of the user's: `executorch` and
`cmsis-nn` (or tarballs whose names begin so) in ~/.local/share/openneutron/sources, or in XDG_DATA_HOME's.

They must belong to the installed executorch: a program is written by the one and read by the other. The
format of programs and the lists of operators are compared, byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import make_folder
from openneutron.firmware.toolchain import cache_folder, digest_of, run_tool

EXECUTORCH, CMSIS_NN = "EXECUTORCH_SOURCE", "CMSIS_NN_SOURCE"
CMSIS_NN_COMMIT = "dbf45dbfcc515421dd6099037d3e2637b90748c8"  # what ExecuTorch 1.5 pins
_MARKS = {EXECUTORCH: "runtime/executor/program.cpp", CMSIS_NN: "Include/arm_nnfunctions.h"}
_NAMES = {EXECUTORCH: "ExecuTorch", CMSIS_NN: "CMSIS-NN"}
_STEMS = {EXECUTORCH: "executorch", CMSIS_NN: "cmsis-nn"}
# What must be the same in the source and in the wheel.
_SHARED = (
    "schema/program.fbs",
    "schema/scalar_type.fbs",
    "kernels/portable/functions.yaml",
    "kernels/quantized/quantized.yaml",
    "backends/cortex_m/ops/operators.yaml",
)
_CODE = ("runtime", "kernels/portable", "kernels/prim_ops", "kernels/quantized", "schema",
         "codegen/templates", "backends/cortex_m/ops", "extension/data_loader")  # fmt: skip


@dataclass(frozen=True)
class Sources:
    """Both sources, found and compared with the wheel."""

    executorch: Path
    cmsis_nn: Path | None

    @cached_property
    def include(self) -> Path:
        """A folder in which ExecuTorch's is called `executorch`, as its includes want it."""
        name = hashlib.sha256(str(self.executorch).encode()).hexdigest()[:16]
        folder = cache_folder() / "include" / name
        make_folder(folder)
        link = folder / "executorch"
        if not link.is_symlink() or link.resolve() != self.executorch:
            link.unlink(missing_ok=True)
            link.symlink_to(self.executorch, target_is_directory=True)
        return folder

    @cached_property
    def flatbuffers(self) -> Path:
        """The headers of flatbuffers: a submodule of a clone, or beside the folder."""
        for folder in (self.executorch / "third-party/flatbuffers", self.executorch.parent / "flatbuffers"):
            if (folder / "include/flatbuffers/flatbuffers.h").exists():
                return folder / "include"
        fail("ON707", str(self.executorch), "has no third-party/flatbuffers: the submodule is not there",
             f"git -C {self.executorch} submodule update --init third-party/flatbuffers")  # fmt: skip

    @cached_property
    def generated(self) -> Path:
        """The C++ header of the program format, made of the schema by the wheel's own flatc."""
        folder = cache_folder() / "generated" / self.digest[:16]
        header = folder / "executorch/schema/program_generated.h"
        if not header.exists():
            make_folder(folder)
            schemas = [self.executorch / name for name in _SHARED[:2]]
            with tempfile.TemporaryDirectory(dir=folder) as name:
                options = ("--cpp", "--cpp-std", "c++11", "--gen-mutable", "--scoped-enums", "-o", name)
                run_tool([wheel_folder() / "data/bin/flatc", *options, *schemas])
                make_folder(header.parent)
                for file in Path(name).iterdir():
                    file.replace(header.parent / file.name)
        return folder

    @cached_property
    def digest(self) -> str:
        """Of all that is compiled or included."""
        files = [f for part in _CODE for f in (self.executorch / part).rglob("*")
                 if f.suffix in (".h", ".cpp", ".fbs", ".yaml", ".ini")]  # fmt: skip
        files += list(self.flatbuffers.rglob("*.h"))
        digests = digest_of(files)
        if self.cmsis_nn is not None:
            digests += digest_of(f for f in self.cmsis_nn.rglob("*.[ch]"))
        return hashlib.sha256(digests.encode()).hexdigest()


def package_folder(name: str) -> Path:
    """Where a package is installed."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        fail("ON707", name, "the package is not installed", "Install openneutron again.")
    return Path(next(iter(spec.submodule_search_locations)))


def wheel_folder() -> Path:
    """The installed executorch package."""
    return package_folder("executorch")


def sources_folder() -> Path:
    """The one place of the user's where sources are looked for."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local/share") / "openneutron/sources"


def git_commands() -> tuple[str, str]:
    """How a user gets both sources, to where they are found."""
    tag, place = "v" + version("executorch").split("+")[0], shlex.quote(str(sources_folder()))
    return (
        f"git clone --depth 1 --branch {tag} --recurse-submodules=third-party/flatbuffers "
        f"https://github.com/pytorch/executorch.git {place}/executorch",
        f"git clone https://github.com/ARM-software/CMSIS-NN.git {place}/cmsis-nn && "
        f"git -C {place}/cmsis-nn checkout {CMSIS_NN_COMMIT}",
    )


def source_place(name: str) -> Path | None:
    """Where a source is by its variable or in the user's place; None if it is in neither."""
    if named := os.environ.get(name):
        return Path(named)
    stem, folder = _STEMS[name], sources_folder()
    try:
        entries = sorted(p for p in folder.iterdir() if p.name.lower().startswith(stem))
    except OSError:
        return None
    kept = [p for p in entries if p.is_dir() or ".tar" in p.suffixes or p.suffix in (".tgz", ".txz")]
    # A folder before a tarball, and the plain name before one with a version.
    return min(kept, key=lambda p: (not p.is_dir(), len(p.name)), default=None)


def find_sources(
    executorch: str | Path | None = None, cmsis_nn: str | Path | None = None, *, needs_cmsis_nn: bool = True
) -> Sources:
    """The sources an option or the environment names; what is missing or does not fit is a diagnostic."""
    first = _locate(EXECUTORCH, executorch)
    _compare(first)
    return Sources(first, find_cmsis_nn(cmsis_nn) if needs_cmsis_nn else None)


def find_cmsis_nn(given: str | Path | None = None) -> Path:
    """CMSIS-NN's source alone, at the commit ExecuTorch pins."""
    folder = _locate(CMSIS_NN, given)
    _check_cmsis_nn(folder)
    return folder


def _locate(name: str, given: str | Path | None) -> Path:
    where = given or source_place(name)
    command = git_commands()[0 if name == EXECUTORCH else 1]
    option = "--" + name.lower().replace("_", "-")
    if not where:
        fail("ON707", _NAMES[name], f"its source is needed: neither {option} nor {name} says where it is, "
             f"and it is not in {sources_folder()}", f"Get it: {command}")  # fmt: skip
    path = Path(where).expanduser().resolve()
    if path.is_file():
        path = _unpack(path)
    elif not path.is_dir():
        fail("ON707", str(where), "there is no such folder or tarball", f"Get it: {command}")
    mark = _MARKS[name]
    folders = [path, *sorted(p for p in path.iterdir() if p.is_dir())]
    for folder in folders:
        if (folder / mark).exists():
            return folder
    fail("ON707", str(where), f"is no source of {_NAMES[name]}: it has no {mark}", f"Get it: {command}")


def _unpack(archive: Path) -> Path:
    name = hashlib.sha256(archive.read_bytes()).hexdigest()[:16]
    folder = cache_folder() / "sources" / name
    if not folder.exists():
        make_folder(folder.parent)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            inside = Path(unfinished) / "all"
            try:
                with tarfile.open(archive) as file:
                    file.extractall(inside, filter="data")
            except (tarfile.TarError, OSError, EOFError) as error:
                fail(
                    "ON707", str(archive), f"cannot be unpacked: {error}", "Give a .tar, .tar.gz or .tar.xz."
                )
            if not folder.exists():  # another process may have been quicker
                inside.rename(folder)
    return folder


def _compare(source: Path) -> None:
    wheel, here = wheel_folder(), version("executorch").split("+")[0]
    for name in _SHARED:
        theirs, ours = source / name, wheel / name
        if not theirs.exists() or theirs.read_bytes() != ours.read_bytes():
            file = source / "version.txt"
            named = file.read_text().strip() if file.exists() else "unknown"
            problem = f"its {name} is not the installed package's" if theirs.exists() else f"it has no {name}"
            fail(
                "ON708",
                str(source),
                problem,
                f"The installed executorch is {here}, the source says {named}. Get the one of that version: "
                f"{git_commands()[0]}",
            )
    templates = source / "codegen/templates/RegisterCodegenUnboxedKernels.cpp"
    if not templates.exists():
        fail("ON707", str(source), "it has no codegen/templates", f"Get it: {git_commands()[0]}")


def _check_cmsis_nn(source: Path) -> None:
    """A clone knows its commit; of a tarball it is believed."""
    if not (source / ".git").exists():
        return
    done = subprocess.run(["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True)
    commit = done.stdout.strip()
    if re.fullmatch(r"[0-9a-f]{40}", commit) and commit != CMSIS_NN_COMMIT:
        fail("ON708", str(source), f"is at commit {commit[:12]}; ExecuTorch pins {CMSIS_NN_COMMIT[:12]}",
             f"git -C {source} checkout {CMSIS_NN_COMMIT}")  # fmt: skip


@dataclass(frozen=True)
class SourceState:
    """One source as a user should know it: where it is, what is wrong with it, how to get it."""

    name: str
    place: Path | None
    problem: str
    command: str


def source_states() -> tuple[SourceState, ...]:
    """Both sources: whether they are there and belong to the installed executorch."""
    states = []
    for name, command in zip((EXECUTORCH, CMSIS_NN), git_commands(), strict=True):
        place, problem = source_place(name), ""
        if place is None:
            problem = f"{name} is not set, and it is not in {sources_folder()}"
        else:
            try:
                sources = find_sources(needs_cmsis_nn=False) if name == EXECUTORCH else None
                place = sources.executorch if sources is not None else find_cmsis_nn()
                if sources is not None:
                    _ = sources.flatbuffers
            except OpenNeutronError as error:
                problem, command = error.diagnostic.problem, error.diagnostic.hint or command
        states.append(SourceState(_NAMES[name], place, problem, command))
    return tuple(states)
