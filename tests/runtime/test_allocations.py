"""Each allocation fails once: that of a pool of threads here, those of the delegate in test_sanitized.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.native import RUNTIME, build
from tests.runtime.test_fuzz import SANITIZE


def test_a_pool_without_memory_or_threads():
    flags = (*SANITIZE, "-pthread", "-Wl,--wrap=calloc,--wrap=pthread_create", f"-I{RUNTIME / 'host'}")
    sources = (Path(__file__).with_name("fail_pool.c"), RUNTIME / "host" / "pool.c")
    done = subprocess.run(
        [build("fail_pool", *flags, extra=sources)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "2 without a pool, 3 with fewer threads\n"), done.stderr
