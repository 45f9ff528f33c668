"""The file that a study is kept in: Optuna's journal, one operation a line, as a killed process may leave it.

Each line has the sum of all up to it: Optuna would go on with a line that is missing, doubled or changed.

Whoever opens it holds the lock of the folder, so that Optuna needs none. Its own lock is a file that
stays when a process is killed, and whoever comes next would wait for it for ever.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any, NoReturn

from openneutron.diagnostics import fail
from openneutron.files import read_file

_SUM = "sum"  # of a line and all before it, as its last value
AFRESH = "Start afresh: remove the folder, or choose another with -o."


def open_journal(optuna: Any, path: Path) -> tuple[Any, str]:
    """Optuna's storage in this file, and what had to be mended; any damage but a torn end is a diagnostic."""
    total, note = _mended(path)

    class Summed(optuna.storages.journal.JournalFileBackend):
        """Writes the sum with each line, which Optuna passes over when it reads."""

        total: int

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            summed = []
            for log in logs:
                self.total = line_sum(log, self.total)
                summed.append({**log, _SUM: self.total})
            try:
                super().append_logs(summed)
            except OSError as error:
                _not_written(path, error)

    try:
        backend = Summed(str(path), lock_obj=_Held())
    except OSError as error:
        _not_written(path, error)
    backend.total = total
    return optuna.storages.JournalStorage(backend), note


def line_sum(operation: dict[str, Any], before: int) -> int:
    """A checksum of an operation and, with the sum of the line before it, of all that came before."""
    return zlib.crc32(json.dumps(operation, separators=(",", ":")).encode(), before)


class _Held:
    """A lock as Optuna wants one: the folder is locked already, with a lock that ends with its process."""

    def acquire(self) -> bool:
        """Nobody else may have it."""
        return True

    def release(self) -> None:
        """The folder's lock stays."""


def _mended(path: Path) -> tuple[int, str]:
    """The sum of all lines; cuts off a last one that was not written to its end, and says so in words."""
    if not path.exists() and not path.is_symlink():
        return 0, ""
    data = read_file(path, "ON801")
    whole = data[: data.rfind(b"\n") + 1]
    total = 0
    for number, line in enumerate(whole.splitlines(keepends=True), 1):
        try:
            operation = json.loads(line)
            checksum = operation.pop(_SUM)
            total = line_sum(operation, total)
            good = checksum == total
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            good = False
        if not good:
            fail("ON801", str(path), f"line {number} is damaged, or one before it is missing", AFRESH)
    if whole == data:
        return total, ""
    try:
        os.truncate(path, len(whole))
    except OSError as error:
        _not_written(path, error)
    note = f"{path.name}: its last line was not written to its end and is dropped; that trial is run again"
    return total, note


def _not_written(path: Path, error: OSError) -> NoReturn:
    """What is there is whole but for its last line: the disk is full, or read-only."""
    hint = "Make room, and start it again: it goes on where it was. Or choose another folder with -o."
    fail("ON601", str(path), f"cannot be written: {error.strerror}", hint)
