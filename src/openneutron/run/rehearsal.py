"""The rehearsal: a program of unknown origin is run in a process of its own before it is run in this one.

ExecuTorch trusts the programs it runs: in a damaged or hostile one a kernel asserts, an address is wild, a
loop has no end. What ends the rehearsal would have ended this process. A program that passed is remembered by
its digest and that of the libraries it passed with, so that loading it again costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from functools import cache
from pathlib import Path
from typing import NoReturn

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.environment.versions import executorch_library
from openneutron.files import cache_base, is_own_file, replace_file, scratch_folder, write_scratch
from openneutron.run.delegate import CORTEX_M, CPU_KERNELS, DELEGATE, REHEARSE

SECONDS = 60  # the most a rehearsal may take
_REFUSED, _FAILED = 1, 3  # exit codes of rehearse.cpp: not loaded; loaded, but a method did not run
_NOT_STARTED = 127  # the loader's own exit code: a library is missing
_KEPT = 1000  # digests in the cache
_DAMAGED = "The file is damaged or hostile: copy it again, or compile the model again."


def rehearse(data: bytes, where: str, most_work: int = 0) -> None:
    """Let another process load and run a program; what happens to that is a diagnostic here."""
    if not REHEARSE.exists():
        return  # built with the delegate; only a partial build lacks it
    kept = _cached(data)
    if kept is not None and is_own_file(kept):
        return
    with scratch_folder() as folder:
        file = folder / "program.pte"
        write_scratch(file, data)
        command = [str(REHEARSE), str(file), str(SECONDS), str(most_work)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=SECONDS + 5,
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        except subprocess.TimeoutExpired:
            _too_slow(where)
        except OSError as error:
            fail("ON504", REHEARSE.name, f"cannot be started: {error.strerror}", "Install the package again.")
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    said = lines[-1].strip() if lines else "it said nothing"
    if done.returncode == 0:
        _keep(kept)
    elif -done.returncode == signal.SIGXCPU:
        _too_slow(where)
    elif done.returncode < 0:
        fail("ON512", where, f"the program ended the process that rehearsed it: {said}", _DAMAGED)
    elif done.returncode == _REFUSED:
        fail("ON512", where, f"ExecuTorch refuses the program: {said}", _DAMAGED)
    elif done.returncode == _NOT_STARTED:
        fail("ON504", REHEARSE.name, f"cannot be started: {said}", "Install the package again.")
    # A method that loads and reports an error does so here too, where the error can be explained.


def _environment() -> dict[str, str]:
    """Where the loader finds executorch's libraries, wherever that is installed."""
    places = [str(executorch_library("")), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, places))}


def _too_slow(where: str) -> NoReturn:
    fail(
        "ON519",
        where,
        f"the program did not come to an end within {SECONDS} seconds when it was rehearsed",
        "If you know where it comes from, run it with --trust (`load_program(..., trust=True)`).",
    )


@cache
def _libraries() -> bytes:
    """What a rehearsal depends on besides the program."""
    digest = hashlib.sha256()
    portable = executorch_library("libexecutorch_kernels_quantized.so")
    for library in (REHEARSE, DELEGATE, CORTEX_M, CPU_KERNELS, portable):
        if library.exists():
            status = library.stat()
            digest.update(f"{library} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.digest()


def _cached(data: bytes) -> Path | None:
    """The file whose being there says that the program passed; None if there is nowhere to keep it."""
    base = cache_base()
    if base is None:
        return None
    return base / "rehearsed" / hashlib.sha256(_libraries() + data).hexdigest()


def _keep(file: Path | None) -> None:
    if file is None:
        return
    with contextlib.suppress(OSError, OpenNeutronError):  # a cache that cannot be written only costs time
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, b"")
        entries = sorted(file.parent.iterdir(), key=lambda f: f.lstat().st_mtime)
        for old in entries[:-_KEPT]:
            with contextlib.suppress(IsADirectoryError):
                old.unlink(missing_ok=True)
