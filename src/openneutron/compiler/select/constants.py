"""The constants of a program: interned bytes that become the WEIGHTS region."""

from __future__ import annotations

import numpy as np

from openneutron.compiler.microcode.format import ALIGNMENT, Ref, Region


class ConstPool:
    """Interns constant bytes: equal bytes are stored once; every blob starts at a multiple of 16."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._known: dict[bytes, Ref] = {}
        self._size = 0

    def add(self, data: np.ndarray | bytes) -> Ref:
        """The place of these bytes in WEIGHTS."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        if raw not in self._known:
            self._known[raw] = Ref(Region.WEIGHTS, offset=self._size)
            padded = raw + bytes(-len(raw) % ALIGNMENT)
            self._chunks.append(padded)
            self._size += len(padded)
        return self._known[raw]

    @property
    def size(self) -> int:
        """Bytes so far, padding included."""
        return self._size

    def bytes(self) -> bytes:
        """The WEIGHTS region."""
        return b"".join(self._chunks)
