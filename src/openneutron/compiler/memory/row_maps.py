"""Buffers as maps of rows: one feature map, views of it in other shapes, or maps side by side.

What holds for a map holds for all that share its rows: concatenated along the channels, they roll together.
"""

from __future__ import annotations

from openneutron.compiler.memory.storage import Buffer, Home, Place, Storage
from openneutron.compiler.select.by_rows import is_map, rows_of
from openneutron.litert.ir import Tensor

_ALL = (0, 1 << 62)


class RowMaps:
    """The buffers of a storage by number, the rows each consists of, and which channels a tensor takes."""

    def __init__(self, storage: Storage):
        self.buffers: list[Buffer] = storage.buffers
        numbers = {buffer: i for i, buffer in enumerate(self.buffers)}
        self.number: dict[Tensor, int] = {}
        self.span: dict[Tensor, tuple[int, int]] = {}
        self.tensors = [0] * len(self.buffers)  # how many are in each
        counts: list[set[int]] = [set() for _ in self.buffers]
        for tensor, place in storage.places.items():
            number = self.number[tensor] = numbers[place.buffer]
            self.span[tensor] = (place.offset, place.offset + tensor.shape[-1]) if place.pitch else _ALL
            counts[number] |= _counts(tensor, place)
            self.tensors[number] += 1
        self.rows = [next(iter(rows)) if len(rows) == 1 else 0 for rows in counts]
        """Of every buffer; 0 if it cannot be taken row by row."""

    def row_bytes(self, number: int) -> int:
        """Bytes from one row of a buffer to the next."""
        return self.buffers[number].nbytes // self.rows[number]

    def share(self, a: Tensor, b: Tensor) -> bool:
        """Whether two tensors of one buffer have bytes in common."""
        (begin_a, end_a), (begin_b, end_b) = self.span[a], self.span[b]
        return begin_a < end_b and begin_b < end_a


def _counts(tensor: Tensor, place: Place) -> set[int]:
    """How many rows a tensor divides its buffer into: nothing said, one number, or several for none."""
    if place.buffer.home is not Home.SCRATCH:
        return {0}
    if place.pitch:
        return {rows_of(tensor)} if is_map(tensor) and place.offset < place.pitch else {0}
    if place.offset or tensor.nbytes != place.buffer.nbytes:
        return {0}
    return {rows_of(tensor)} if is_map(tensor) else set()
