"""How many threads a run on this machine uses."""

from __future__ import annotations

import os

from openneutron.diagnostics import fail

VARIABLE = "OPENNEUTRON_THREADS"
MOST = 64


def thread_count(given: int | None = None) -> int:
    """The number given, else that of OPENNEUTRON_THREADS, else 1. Results never depend on it."""
    if given is not None:
        count, where = str(given), "threads"
    else:
        count, where = os.environ.get(VARIABLE, "1"), VARIABLE
    if not count.isdecimal() or not 1 <= int(count) <= MOST:
        fail("ON518", where, f"'{count}' is not a number of threads", f"Give a number from 1 to {MOST}.")
    return int(count)
