"""Writing files so that nothing half-written is ever seen under the final name."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from openneutron.diagnostics import fail


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, then rename; a failure leaves the old file as it was."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        fail("ON601", str(path), f"cannot be written: {error.strerror}", "Choose another place with -o.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            fail("ON601", str(path), f"cannot be written: {error.strerror}", "Choose another place with -o.")
        raise
