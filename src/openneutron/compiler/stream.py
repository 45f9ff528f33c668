"""Weight streaming: constants stay in flash and are copied to SRAM just before the operator that needs them.

While an operator computes, the constants of the next one are copied, on two channels in turn:

    prefetch 0 | wait 0, prefetch 1, compute 0 | wait 1, prefetch 2, compute 1 | ...

A copy occupies its place from the moment it starts until its operator is done. Where two neighbours together
exceed the budget, the second is copied only when the first is done: slower, but it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openneutron.compiler.emit import map_refs
from openneutron.compiler.microcode import KernelCall, Prefetch, Ref, Region, Wait
from openneutron.compiler.place import Block, Placement, aligned, place
from openneutron.diagnostics import fail

CHANNELS = 2


@dataclass(frozen=True)
class Chunk:
    """The constants of one step: where they lie in WEIGHTS, and whose they are."""

    step: int
    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Stream:
    """The chunks in order, whether each is copied ahead of its turn, and their places in PREFETCH."""

    chunks: tuple[Chunk, ...]
    ahead: tuple[bool, ...]
    placement: Placement

    @property
    def nbytes(self) -> int:
        """The PREFETCH area."""
        return self.placement.nbytes


def plan_stream(chunks: Sequence[Chunk], budget: int) -> Stream:
    """Decide which copies overlap with computing, and place them within `budget` bytes."""
    for chunk in chunks:
        if aligned(chunk.nbytes) > budget:
            fail(
                "ON403",
                chunk.name,
                f"its constants have {chunk.nbytes:,} bytes, {budget:,} bytes of SRAM are left "
                "to prefetch them to",
                "Give the program more SRAM (sram_bytes), or split the layer.",
            )
    # Nothing runs before the first; the others start while their predecessor computes, if both fit.
    ahead = [
        index > 0 and aligned(chunks[index - 1].nbytes) + aligned(chunk.nbytes) <= budget
        for index, chunk in enumerate(chunks)
    ]
    while True:
        placement = place([Block(c.nbytes, i - ahead[i], i) for i, c in enumerate(chunks)])
        if placement.nbytes <= budget:
            return Stream(tuple(chunks), tuple(ahead), placement)
        # Fragmentation: the copy that reaches highest waits for its turn.
        tops = [(placement.offsets[i] + c.nbytes, i) for i, c in enumerate(chunks) if ahead[i]]
        ahead[max(tops)[1]] = False


def stream_calls(
    steps: Sequence[Sequence[KernelCall]], stream: Stream
) -> tuple[list[list[KernelCall]], list[tuple[int, int]]]:
    """The calls of every step with the copies they need before them, and (first, last) step of each chunk.

    Addresses in WEIGHTS become addresses in PREFETCH.
    """
    result: list[list[KernelCall]] = [[] for _ in steps]
    lives: list[tuple[int, int]] = []
    place_of = {chunk.step: index for index, chunk in enumerate(stream.chunks)}
    for step, calls in enumerate(steps):
        index = place_of.get(step)
        if index is None:
            result[step] = list(calls)
            continue
        chunk = stream.chunks[index]
        if not stream.ahead[index]:
            result[step].append(_copy(stream, index))
        result[step].append(Wait(index % CHANNELS))
        if index + 1 < len(stream.chunks) and stream.ahead[index + 1]:
            result[step].append(_copy(stream, index + 1))
        at = stream.placement.offsets[index]

        def moved(ref: Ref, chunk: Chunk = chunk, at: int = at) -> Ref:
            if ref.region != Region.WEIGHTS:
                return ref
            return Ref(Region.PREFETCH, offset=at + ref.offset - chunk.offset)

        result[step] += [map_refs(call, moved) for call in calls]
        first = stream.chunks[index - 1].step if stream.ahead[index] else step
        lives.append((first, step))
    return result, lives


def _copy(stream: Stream, index: int) -> KernelCall:
    chunk = stream.chunks[index]
    source = Ref(Region.WEIGHTS, offset=chunk.offset)
    target = Ref(Region.PREFETCH, offset=stream.placement.offsets[index])
    return Prefetch(source, target, chunk.nbytes, index % CHANNELS)
