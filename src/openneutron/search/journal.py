"""The file that a study is kept in: Optuna's journal, one operation a line, as a killed process may leave it.

Whoever opens it holds the lock of the folder, so that Optuna needs none. Its own lock is a file that
stays when a process is killed, and whoever comes next would wait for it for ever.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from openneutron.diagnostics import fail
from openneutron.files import read_file

_CREATE_STUDY, _CREATE_TRIAL = 0, 4  # Optuna's numbers of these operations
AFRESH = "Start afresh: remove the folder, or choose another with -o."


def open_journal(optuna: Any, path: Path) -> tuple[Any, str]:
    """Optuna's storage in this file, and what had to be mended; any damage but a torn end is a diagnostic."""
    note = _mended(path)
    backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=_Held())
    return optuna.storages.JournalStorage(backend), note


class _Held:
    """A lock as Optuna wants one: the folder is locked already, with a lock that ends with its process."""

    def acquire(self) -> bool:
        """Nobody else may have it."""
        return True

    def release(self) -> None:
        """The folder's lock stays."""


def _mended(path: Path) -> str:
    """Cut off a last line that was not written to its end; in words what was done, if anything."""
    if not path.exists() and not path.is_symlink():
        return ""
    data = read_file(path, "ON801")
    whole = data[: data.rfind(b"\n") + 1]
    trials = 0
    for number, line in enumerate(whole.splitlines(keepends=True), 1):
        try:
            operation = json.loads(line)
            good = operation["op_code"] == _CREATE_STUDY or number > 1
            # Optuna passes over what is about a study or trial that is not there: its line was lost.
            good &= operation.get("study_id", 0) == 0
            good &= "trial_id" not in operation or 0 <= operation["trial_id"] < trials
            trials += operation["op_code"] == _CREATE_TRIAL
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            good = False
        if not good:
            fail("ON801", str(path), f"line {number} is damaged, or one before it is missing", AFRESH)
    if whole == data:
        return ""
    try:
        os.truncate(path, len(whole))
    except OSError as error:
        fail("ON801", str(path), f"cannot be written: {error.strerror}", "Choose another folder with -o.")
    return f"{path.name}: its last line was not written to its end and is dropped; that trial is run again"
