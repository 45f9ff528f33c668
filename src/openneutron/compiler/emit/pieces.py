"""A memory plan as kernel calls: unit by unit, all constants together or in pieces that are streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from openneutron.compiler.emit.emit import emit_cascade, emit_parts, emit_step, map_refs
from openneutron.compiler.emit.emit_bands import emit_bands
from openneutron.compiler.emit.stream import Chunk, Stream, plan_stream, stream_calls
from openneutron.compiler.memory.schedule import MemoryPlan, Unit
from openneutron.compiler.microcode.format import KernelCall, Ref, Region
from openneutron.compiler.select.constants import ConstPool
from openneutron.litert.ir import Op


@dataclass(frozen=True)
class Piece:
    """Calls that run together: a unit of the plan, or a part of one."""

    unit: int
    calls: list[KernelCall]
    operators: Sequence[tuple[Op, ...]] = ()  # of a cascade: what each of its last calls computes
    band_calls: Sequence[int] = ()  # and how many of these each band has


@dataclass(frozen=True)
class Emitted:
    """A plan as calls in the order they run, and their constants."""

    plan: MemoryPlan
    pieces: list[Piece]
    weights: bytes
    stream: Stream | None = None  # where constants are copied to


def emit_plan(plan: MemoryPlan) -> Emitted:
    """The calls of every unit, and the constants of all of them."""
    pool = ConstPool()
    pieces = [_piece(plan, number, pool) for number in range(len(plan.units))]
    return Emitted(plan, pieces, pool.bytes())


def emit_streamed(plan: MemoryPlan, budget: int) -> Emitted:
    """The same with copies of the constants to a part of SRAM of so many bytes."""
    pieces, chunks, weights = _emit_in_chunks(plan, budget)
    stream = plan_stream(chunks, budget)
    calls = stream_calls([piece.calls for piece in pieces], stream)
    pieces = [replace(piece, calls=c) for piece, c in zip(pieces, calls, strict=True)]
    return Emitted(plan, pieces, weights, stream)


def _piece(plan: MemoryPlan, number: int, pool: ConstPool) -> Piece:
    unit = plan.units[number]
    ops = plan.ops(unit)
    if unit.cascade is not None and unit.cascade.bands:
        bands = emit_bands(ops, unit.cascade, plan, pool)
        tiles = sum(len(band.tiles) for band in unit.cascade.bands)
        operators = [ops, *((op,) for op in ops)] * tiles
        return Piece(number, [c for band in bands for c in band], operators, [len(band) for band in bands])
    if unit.cascade is not None:
        calls, each = emit_cascade(ops, unit.cascade, plan, pool)
        stages = [(op,) for op, count in zip(ops, each, strict=True) for _ in range(count)]
        return Piece(number, calls, [ops, *stages])
    return Piece(number, emit_step(ops[0], plan, pool))


def _emit_in_chunks(plan: MemoryPlan, budget: int) -> tuple[list[Piece], list[Chunk], bytes]:
    """Emit with the constants of each piece in one run of bytes, which one copy brings; equal runs once."""
    pieces: list[Piece] = []
    chunks: list[Chunk] = []
    offsets: dict[bytes, int] = {}
    weights = bytearray()
    for number, unit in enumerate(plan.units):
        for piece, raw in _parts(plan, number, budget):
            if raw:
                if raw not in offsets:
                    offsets[raw] = len(weights)
                    weights += raw
                chunks.append(Chunk(len(pieces), unit_name(plan, unit), offsets[raw], len(raw)))
                calls = [map_refs(call, partial(_rebased, offsets[raw])) for call in piece.calls]
                piece = replace(piece, calls=calls)
            pieces.append(piece)
    return pieces, chunks, bytes(weights)


def _parts(plan: MemoryPlan, number: int, budget: int) -> Iterator[tuple[Piece, bytes]]:
    """Calls with the constants they need together: all of a cascade's, a step's or a part of a step's."""
    unit = plan.units[number]
    if unit.cascade is None:
        for calls, raw in emit_parts(plan.ops(unit)[0], plan, budget):
            yield Piece(number, calls), raw
        return
    pool = ConstPool()
    yield _piece(plan, number, pool), pool.bytes()


def _rebased(base: int, ref: Ref) -> Ref:
    return ref.plus(base) if ref.region == Region.WEIGHTS else ref


def unit_name(plan: MemoryPlan, unit: Unit) -> str:
    """A unit as messages name it: its first and its last operator."""
    first, last = plan.schedule.steps[unit.first], plan.schedule.steps[unit.last]
    names = [f"{op.custom_name or op.kind.name} {op.outputs[0].name}" for op in (first, last)]
    return " to ".join(dict.fromkeys(names))
