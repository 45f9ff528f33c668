"""Arrays from .npy and .npz files of any origin: nothing is unpickled, and nothing unpacks without bound."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import MOST_BYTES, read_file

_SAVE = "Save it again with numpy.save or numpy.savez."


def load_arrays(file: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name, in the order in which they were saved; an .npy file's is called ''."""
    data = io.BytesIO(read_file(file, "ON605"))
    try:
        if data.getvalue()[:2] == b"PK":
            with zipfile.ZipFile(data) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > MOST_BYTES:
                fail("ON605", str(file), f"unpacks to {unpacked:,} bytes", "Give fewer samples.")
        loaded = np.load(data, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": _native(loaded)}
        return {name: _native(np.asarray(loaded[name])) for name in loaded.files}
    except OpenNeutronError:
        raise
    except Exception as error:  # NumPy, zipfile, zlib and lzma fail in as many ways as there are bytes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        fail("ON605", str(file), f"NumPy cannot read it: {reason}", _SAVE)


def _native(array: np.ndarray) -> np.ndarray:
    """The array as this machine has numbers: no other byte order, no float of more than 64 bits."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
