"""Weight streaming: constants stay in flash and are copied to SRAM just before the operator that needs them.

While an operator computes, the constants of the next one are copied, on two channels in turn:

    prefetch 0 | wait 0, prefetch 1, compute 0 | wait 1, prefetch 2, compute 1 | ...

A copy occupies its place from the step at which it starts until its operator is done, so starting early
costs memory. Copies start one step ahead; earlier, while the last operator with constants computes, where
that needs no more memory; and at their own step, without overlap, where the budget leaves no other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from openneutron.compiler.emit.emit import map_refs
from openneutron.compiler.memory.place import Block, Placement, aligned, place
from openneutron.compiler.microcode.format import KernelCall, Prefetch, Ref, Region, Wait
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
    """The chunks in order, the step at which the copy of each starts, and their places in PREFETCH."""

    chunks: tuple[Chunk, ...]
    starts: tuple[int, ...]
    placement: Placement

    @property
    def nbytes(self) -> int:
        """The PREFETCH area."""
        return self.placement.nbytes


def plan_stream(chunks: Sequence[Chunk], budget: int) -> Stream:
    """Decide when each copy starts, and place them within `budget` bytes."""
    for chunk in chunks:
        if aligned(chunk.nbytes) > budget:
            fail(
                "ON403",
                chunk.name,
                f"its constants have {chunk.nbytes:,} bytes; {budget:,} bytes of SRAM are left for them",
                "Give the program more SRAM (sram_bytes), or split the layer.",
            )
    starts = [max(chunk.step - 1, 0) for chunk in chunks]
    while (placement := _placed(chunks, starts)).nbytes > budget:
        starts = _latest_at_peak(chunks, starts)
    for index in range(1, len(chunks)):
        earlier = [*starts[:index], chunks[index - 1].step, *starts[index + 1 :]]
        if starts[index] == chunks[index].step - 1 > earlier[index]:
            trial = _placed(chunks, earlier)
            if trial.nbytes <= placement.nbytes:
                starts, placement = earlier, trial
    return Stream(tuple(chunks), tuple(starts), placement)


def _placed(chunks: Sequence[Chunk], starts: Sequence[int]) -> Placement:
    return place([Block(c.nbytes, start, c.step) for c, start in zip(chunks, starts, strict=True)])


def _latest_at_peak(chunks: Sequence[Chunk], starts: list[int]) -> list[int]:
    """The same starts, but the early copy at the step with the most bytes waits for its turn."""
    early = [i for i, chunk in enumerate(chunks) if starts[i] < chunk.step]

    def live(index: int) -> int:
        blocks = zip(chunks, starts, strict=True)
        return sum(aligned(c.nbytes) for c, start in blocks if start <= starts[index] <= c.step)

    worst = max(early, key=lambda index: (live(index), -index))
    return [chunks[i].step if i == worst else start for i, start in enumerate(starts)]


def stream_calls(steps: Sequence[Sequence[KernelCall]], stream: Stream) -> list[list[KernelCall]]:
    """The calls of every step with the copies they need before them; WEIGHTS becomes PREFETCH."""
    result: list[list[KernelCall]] = []
    own = {chunk.step: index for index, chunk in enumerate(stream.chunks)}
    for step, calls in enumerate(steps):
        index = own.get(step)
        before: list[KernelCall] = []
        if index is not None:
            if stream.starts[index] == step:
                before.append(_copy(stream, index))
            before.append(Wait(index % CHANNELS))
            calls = [map_refs(call, partial(_moved, stream, index)) for call in calls]
        before += [
            _copy(stream, i)
            for i, start in enumerate(stream.starts)
            if start == step and stream.chunks[i].step != step
        ]
        result.append([*before, *calls])
    return result


def _moved(stream: Stream, index: int, ref: Ref) -> Ref:
    if ref.region != Region.WEIGHTS:
        return ref
    return Ref(
        Region.PREFETCH, offset=stream.placement.offsets[index] + ref.offset - stream.chunks[index].offset
    )


def _copy(stream: Stream, index: int) -> KernelCall:
    chunk = stream.chunks[index]
    source = Ref(Region.WEIGHTS, offset=chunk.offset)
    target = Ref(Region.PREFETCH, offset=stream.placement.offsets[index])
    return Prefetch(source, target, chunk.nbytes, index % CHANNELS)
