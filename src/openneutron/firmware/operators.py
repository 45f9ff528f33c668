"""From the operators a program calls to the kernels that compute them: source files and registrations.

The lists are ExecuTorch's own (functions.yaml and the like), and so is the generator of the registrations.
Which files an operator needs is read off the sources: the one that defines its function, and what that
includes or calls.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from openneutron.diagnostics import fail
from openneutron.files import make_folder
from openneutron.firmware.build import runtime_folder
from openneutron.firmware.sources import Sources, package_folder, wheel_folder
from openneutron.firmware.toolchain import cache_folder, digest_of, run_tool

PRIM = "executorch_prim::"
_PRIM_FILES = ("et_view", "et_copy_index", "register_prim_ops")
_FUNCTION = re.compile(r"^[\w\s*]*?\b(arm_\w+)\s*\(", re.MULTILINE)
_INCLUDE = re.compile(r"#include <executorch/(kernels/(?:portable|quantized)/cpu/[\w/]+)\.h>")
# Their kernels ask an operating system for a random seed, and a bare board has none.
_RANDOM = ("aten::native_dropout.out", "aten::rand.out", "aten::randn.out")
_BESIDE = re.compile(r'#include "(\w+)\.h"')


@dataclass(frozen=True)
class Library:
    """One list of operators: their kernels' functions, and the folder of their sources."""

    name: str
    list: str
    option: str  # of ExecuTorch's generator
    folder: str
    ours: bool = False  # in runtime/cpu_kernels, not in ExecuTorch's source

    def root(self, sources: Sources) -> Path:
        """Where the list and the folder are."""
        return runtime_folder() / "cpu_kernels" if self.ours else sources.executorch


LIBRARIES = (
    Library("portable", "kernels/portable/functions.yaml", "--functions-yaml-path", "kernels/portable/cpu"),
    Library("quantized", "kernels/quantized/quantized.yaml", "--custom-ops-yaml-path",
            "kernels/quantized/cpu"),
    Library("cortex_m", "backends/cortex_m/ops/operators.yaml", "--custom-ops-yaml-path",
            "backends/cortex_m/ops"),
)  # fmt: skip
# Ours, in place of the portable ones, which they call for what they are not made for.
CPU_KERNELS = (
    Library("cpu_aten", "aten.yaml", "--functions-yaml-path", "executorch", ours=True),
    Library("cpu_quantized", "quantized.yaml", "--custom-ops-yaml-path", "executorch", ours=True),
    Library("cpu_cortex_m", "cortex_m.yaml", "--custom-ops-yaml-path", "executorch", ours=True),
)


@dataclass(frozen=True)
class Kernels:
    """What computes a program's operators."""

    operators: tuple[str, ...]
    files: tuple[tuple[str, Path], ...]  # (group, source): cpu kernels and what they share
    cmsis_nn: tuple[Path, ...]
    registrations: tuple[tuple[str, Path], ...]  # (library, folder of generated files)
    ours: tuple[Path, ...] = ()  # of runtime/cpu_kernels

    @property
    def prim(self) -> tuple[str, ...]:
        """The operators of ExecuTorch itself: views, numbers."""
        return tuple(op for op in self.operators if op.startswith(PRIM))

    @cached_property
    def count(self) -> int:
        """Rows the registry needs; rounded up, so that programs share its object."""
        return max(8, 1 << (len(self.operators) - 1).bit_length()) if self.operators else 1


def uses_cmsis_nn(operators: Iterable[str]) -> bool:
    """Whether a program calls kernels that are built on CMSIS-NN."""
    return any(op.startswith("cortex_m::") for op in operators)


def wheel_operators() -> set[str]:
    """Every operator that ExecuTorch has a portable, quantized or Cortex-M kernel for."""
    return {op for library in LIBRARIES for op in _functions(wheel_folder() / library.list)}


def fast_operators() -> frozenset[str]:
    """Every operator that `runtime/cpu_kernels` has a kernel for."""
    root = runtime_folder() / "cpu_kernels"
    return frozenset(op for library in CPU_KERNELS for op in _functions(root / library.list))


def find_kernels(operators: Sequence[str], sources: Sources, *, portable: bool = False) -> Kernels:
    """The kernels of these operators; one without a kernel for the target is a diagnostic.

    `portable`: ExecuTorch's alone, none of `runtime/cpu_kernels`.
    """
    names = sorted(set(operators))
    left = {op for op in names if not op.startswith(PRIM)}
    files: dict[Path, str] = {}
    missing: list[str] = []
    cmsis_nn: list[Path] = []
    folders, ours, fast = ([], [], set()) if portable else _fast_kernels(left, sources)
    for library in LIBRARIES:
        functions = _functions(sources.executorch / library.list)
        provided = sorted(left & set(functions))
        left -= set(provided)
        if not provided:
            continue
        texts = {f: f.read_text() for f in sorted((sources.executorch / library.folder).glob("op_*.cpp"))}
        for op in provided:
            source = _defining(functions[op], texts)
            if source is None:
                missing.append(op)
            else:
                files[source] = "cpu"
        if registered := [op for op in provided if op not in fast]:
            folders.append((library.name, _generate(library, registered, sources)))
    if missing or left:
        listing = ", ".join(sorted({*missing, *left}))
        fail("ON709", "program", f"there is no kernel for the target for {listing}",
             "Compile the model so that it is not needed, or give a source that has it.")  # fmt: skip
    for source in list(files):
        _follow_includes(source, sources.executorch, files)
    if sources.cmsis_nn is not None:
        calling = [f.read_text() for f in files if f.parent.name == "ops"]
        cmsis_nn = _follow_calls(calling, sources.cmsis_nn)
    if any(op.startswith(PRIM) for op in names):
        files |= {sources.executorch / f"kernels/prim_ops/{name}.cpp": "cpu" for name in _PRIM_FILES}
    grouped = tuple((group, file) for file, group in files.items())
    return Kernels(tuple(names), grouped, tuple(cmsis_nn), tuple(folders), tuple(ours))


def _fast_kernels(
    operators: set[str], sources: Sources
) -> tuple[list[tuple[str, Path]], list[Path], set[str]]:
    """Of `runtime/cpu_kernels`: the folders that are generated, the files, and which operators they have."""
    folders: list[tuple[str, Path]] = []
    ours: list[Path] = []
    fast: set[str] = set()
    for library in CPU_KERNELS:
        root = library.root(sources)
        functions = _functions(root / library.list)
        provided = sorted(operators & set(functions))
        if provided:
            fast |= set(provided)
            texts = {f: f.read_text() for f in sorted((root / library.folder).glob("adapt_*.cpp"))}
            words = re.compile(rf"\b({'|'.join(functions[op] for op in provided)})\b")
            ours += [file for file, text in texts.items() if words.search(text)]
            folders.append((library.name, _generate(library, provided, sources)))
    if ours:
        ours = sorted({*ours, *(runtime_folder() / "cpu_kernels").glob("*.c")})
    return folders, ours, fast


def prim_defines(operators: Iterable[str]) -> tuple[str, ...]:
    """Select these of ExecuTorch's own operators."""
    names = (re.sub(r"\W+|_+", "_", op).upper() for op in operators)
    return ("-DEXECUTORCH_ENABLE_PRIM_OPS_SELECTIVE_BUILD", *(f"-DINCLUDE_{name}" for name in names))


def _functions(path: Path) -> dict[str, str]:
    """Of a list: the function of every operator that a board can have, by its full name."""
    import yaml  # type: ignore[import-untyped]

    result = {}
    for entry in yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or ():
        name = entry.get("op") or entry["func"].split("(")[0]
        name = name if "::" in name else f"aten::{name}"
        if name not in _RANDOM:
            result[name] = entry["kernels"][0]["kernel_name"].split("::")[-1]
    return result


def _defining(function: str, texts: dict[Path, str]) -> Path | None:
    word = re.compile(rf"\b{function}\b")
    candidates = [file for file, text in texts.items() if word.search(text)]
    # Some kernels call others: the one with the nearest name defines it.
    stem = function.removesuffix("_out")
    return min(candidates, key=lambda f: abs(len(f.stem.removeprefix("op_")) - len(stem)) if stem.startswith(
        f.stem.removeprefix("op_")) else 99, default=None)  # fmt: skip


def _follow_includes(source: Path, root: Path, files: dict[Path, str]) -> None:
    """Add what a file's headers declare: `x.cpp` beside `x.h`, and all of the patterns for theirs."""
    seen, todo = set(), [source]
    while todo:
        file = todo.pop()
        text = file.read_text()
        headers = [root / f"{name}.h" for name in _INCLUDE.findall(text)]
        headers += [file.parent / f"{name}.h" for name in _BESIDE.findall(text)]
        for header in headers:
            if header in seen or not header.exists():
                continue
            seen.add(header)
            todo.append(header)
            beside = [header.with_suffix(".cpp")]
            if header.name == "pattern.h":
                beside = sorted(header.parent.glob("*.cpp"))
            for source in beside:
                if source.exists() and source not in files:
                    files[source] = "cpushared"
                    todo.append(source)


def _follow_calls(texts: Iterable[str], root: Path) -> list[Path]:
    """The files of CMSIS-NN that define the functions named in a text, and those these name."""
    sources = {file: file.read_text() for file in sorted((root / "Source").rglob("*.c"))}
    defines: dict[str, Path] = {}
    for file, text in sources.items():
        for name in _FUNCTION.findall(text):
            if file.stem == name or name not in defines:
                defines[name] = file
    names = {name for text in texts for name in re.findall(r"\barm_\w+", text)}
    result: set[Path] = set()
    while names:
        source = defines.get(names.pop())
        if source is not None and source not in result:
            result.add(source)
            names |= set(re.findall(r"\barm_\w+", sources[source]))
    # Tables are data: no call leads to them.
    tables = [file for file in sources if "tables" in file.stem.lower()]
    return sorted(result | set(tables))


def _generate(library: Library, operators: Sequence[str], sources: Sources) -> Path:
    """The registrations of these operators, written by ExecuTorch's own generator; kept in the cache."""
    listed = library.root(sources) / library.list
    made_of = (library, tuple(operators), sources.digest, digest_of([listed]))
    key = hashlib.sha256(repr(made_of).encode()).hexdigest()[:24]
    folder = cache_folder() / "registrations" / key
    if (folder / "done").exists():
        return folder
    make_folder(folder.parent)
    native = package_folder("torchgen") / "packaged/ATen/native"
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        unfinished = Path(name) / library.name
        unfinished.mkdir()
        selection = unfinished / "selected_operators.yaml"
        root_ops = ",".join(operators)
        tool = (sys.executable, "-m")
        run_tool([*tool, "executorch.codegen.tools.gen_oplist", f"--output_path={selection}",
                  f"--root_ops={root_ops}"])  # fmt: skip
        run_tool([*tool, "executorch.codegen.gen", f"--source-path={sources.executorch / 'codegen'}",
                  f"--install-dir={unfinished}", f"--tags-path={native / 'tags.yaml'}",
                  f"--aten-yaml-path={native / 'native_functions.yaml'}",
                  f"--op-selection-yaml-path={selection}",
                  f"{library.option}={listed}"])  # fmt: skip
        (unfinished / "done").touch()
        if not folder.exists():
            unfinished.rename(folder)
    return folder
