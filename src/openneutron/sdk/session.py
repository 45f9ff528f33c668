"""The folder that a process (and those it starts) finds `eiq_neutron_sdk`, `nsys` and the runner in.

It is made when the session begins, reached by PYTHONPATH and PATH, and removed when it ends. A process that
is started inside a session joins it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from openneutron.converter.eiq_versions import DISTRIBUTION, STAND_IN_VERSION, installed_version
from openneutron.diagnostics import fail
from openneutron.environment.versions import executorch_folder, executorch_library
from openneutron.files import scratch_folder, write_scratch

SESSION = "OPENNEUTRON_SDK"  # the environment variable with the session's folder
_NATIVE = Path(__file__).resolve().parents[1] / "_native"
_RUNNER, _INI = "nxp_executor_runner", "neutron-imxrt700.ini"
_NOT_NXP = "OpenNeutron's stand-in: there is nothing of NXP in it.\n"
_MODULES = {
    "__init__.py": "from openneutron.sdk.library import merge_kernel_selection_files\n"
    f"__version__ = {STAND_IN_VERSION!r}\n",
    "neutron_converter.py": "from openneutron.sdk.converter import *\n",
    "neutron_library_utils/__init__.py": "from openneutron.sdk.library import *\n",
    "neutron_library_utils/merge_kernel_selection_code.py": "import sys\n"
    "from openneutron.sdk.library import merge_command\n"
    'if __name__ == "__main__":\n    sys.exit(merge_command())\n',
    "target/imxrt700/cmodel/NeutronFirmware.elf": _NOT_NXP,
}


class _Process:
    """The session of this process: threads may share it, the last that leaves ends it."""

    lock = threading.Lock()
    users = 0
    session: contextlib.ExitStack
    folder: Path


@contextlib.contextmanager
def open_sdk(*, quiet: bool = False) -> Iterator[Path]:
    """`import eiq_neutron_sdk` finds the open converter, here and in processes started here.

    Says so once on stderr, unless `quiet`. Another session, this process's or its parent's, is joined.
    """
    with _Process.lock:
        # One that has ended may have left its name to a process that it started.
        own = _Process.users > 0 or not Path(os.environ.get(SESSION, ""), "modules").is_dir()
        if own and not _Process.users:
            _Process.session = contextlib.ExitStack()
            _Process.folder = _Process.session.enter_context(_begin(quiet))
        _Process.users += own
    try:
        yield _Process.folder if own else Path(os.environ[SESSION])
    finally:
        with _Process.lock:
            _Process.users -= own
            if own and not _Process.users:
                _Process.session.close()


@contextlib.contextmanager
def _begin(quiet: bool) -> Iterator[Path]:
    if DISTRIBUTION in sys.modules:
        fail(
            "ON430",
            DISTRIBUTION,
            "it is imported already",
            "Open the session before importing ExecuTorch's backend.",
        )
    before, announcement, owner = dict(os.environ), _announcement(), os.getpid()
    with scratch_folder() as folder:
        modules = folder / "modules"
        _write_modules(modules)
        _write_programs(folder / "bin")
        os.environ |= {
            SESSION: str(folder),
            "PYTHONPATH": _first(modules, "PYTHONPATH"),
            # `python` and `pytest` are those of this environment, active or not.
            "PATH": _first(folder / "bin", "PATH", Path(sys.executable).parent),
            "NXP_RUNNER_PATH": str(folder / "bin" / _RUNNER),
        }
        sys.path.insert(0, str(modules))
        importlib.invalidate_caches()
        if not quiet:
            print(announcement, file=sys.stderr, flush=True)
        try:
            yield folder
        finally:
            refused = dict.fromkeys(_lines(folder))
            _restore(before, str(modules))
            if not quiet and os.getpid() == owner:
                for line in refused:
                    print(f"openneutron.sdk: {line}", file=sys.stderr)


def project_folder(folder: Path) -> Path:
    """ExecuTorch's files as its tests expect them: the wheel's, and the simulator's settings."""
    project = folder / "project"
    if not project.exists():
        _link_all(executorch_folder(), project, ("backends", "nxp", "tests"))
        (project / "backends" / "nxp" / "tests" / _INI).write_text(f"; {_NOT_NXP}")
        _begin_history(project)
    return project


def _begin_history(project: Path) -> None:
    """Its tests write down a branch and a commit: of a repository with nothing in it, where git is there."""
    if not (git := shutil.which("git")):
        return
    author = ("-c", "user.name=openneutron", "-c", "user.email=openneutron@localhost")
    for words in (
        ("init", "-q", "-b", "installed"),
        (*author, "commit", "-q", "--allow-empty", "-m", "installed"),
    ):
        subprocess.run([git, "-C", str(project), *words], check=False, capture_output=True)


def tell(message: str) -> None:
    """Say something to the user of the session, who may not see this process's standard error."""
    with (_session_folder() / "said").open("a") as file:
        file.write(f"{message}\n")


def said() -> list[str]:
    """What was told in this session so far."""
    return _lines(_session_folder())


def _lines(folder: Path) -> list[str]:
    file = folder / "said"
    return file.read_text().splitlines() if file.exists() else []


def _session_folder() -> Path:
    folder = os.environ.get(SESSION)
    if not folder or not Path(folder).is_dir():
        fail(
            "ON430",
            DISTRIBUTION,
            "the session it belongs to has ended",
            "Run inside `python -m openneutron.sdk`.",
        )
    return Path(folder)


def _write_modules(modules: Path) -> None:
    for name, text in _MODULES.items():
        _write(modules / DISTRIBUTION / name, text)
    for name in (DISTRIBUTION, "eiq_nsys"):
        _write(
            modules / f"{name}-{STAND_IN_VERSION}.dist-info" / "METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {STAND_IN_VERSION}\nSummary: {_NOT_NXP}",
        )


def _write_programs(folder: Path) -> None:
    libraries = shlex.quote(str(executorch_library("")))
    runner = shlex.quote(str(_NATIVE / "neutron_runner"))
    _write(
        folder / _RUNNER,
        f'#!/bin/sh\nLD_LIBRARY_PATH={libraries}:"$LD_LIBRARY_PATH" exec {runner} "$@"\n',
        mode=0o700,
    )
    _write(
        folder / "nsys",
        f"#!/bin/sh\necho 'nsys: OpenNeutron answers in {_RUNNER}, which needs no nsys' >&2\nexit 1\n",
        mode=0o700,
    )


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_scratch(path, text.encode())
    path.chmod(mode)


def _first(folder: Path, variable: str, *more: Path) -> str:
    return os.pathsep.join(filter(None, (*map(str, (folder, *more)), os.environ.get(variable))))


def _announcement() -> str:
    real = installed_version()
    also = f" NXP's installed {real} is not used." if real else ""
    return (
        f"openneutron.sdk: {DISTRIBUTION} is answered by OpenNeutron's open converter in this process and "
        f"those it starts. What it makes runs on OpenNeutron's firmware and simulator, not NXP silicon.{also}"
    )


def _restore(before: dict[str, str], modules: str) -> None:
    os.environ.clear()
    os.environ.update(before)
    sys.path[:] = [place for place in sys.path if place != modules]
    for name in [name for name in sys.modules if name.partition(".")[0] == DISTRIBUTION]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _link_all(source: Path, target: Path, open_path: tuple[str, ...]) -> None:
    """A folder of links to what is in another, real folders along one path in it."""
    target.mkdir()
    for entry in source.iterdir():
        if open_path and entry.name == open_path[0]:
            _link_all(entry, target / entry.name, open_path[1:])
        else:
            (target / entry.name).symlink_to(entry)
