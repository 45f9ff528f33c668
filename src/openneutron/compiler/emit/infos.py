"""What the calls and buffers of a program are for: the operators behind each call, and the memory map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from openneutron.compiler.emit.pieces import Emitted
from openneutron.compiler.emit.result import BufferInfo, CallInfo
from openneutron.compiler.memory.storage import Buffer, Home
from openneutron.compiler.microcode.cost import Cost, costs_of
from openneutron.compiler.microcode.format import Cascade, KernelCall, Region
from openneutron.litert.ir import Op
from openneutron.targets.chip import Target

_Span = tuple[int, int]  # the first and the last call


def call_infos(emitted: Emitted, target: Target) -> tuple[CallInfo, ...]:
    """Every call with the operators it computes, and its cost."""
    plan = emitted.plan
    infos = []
    for piece in emitted.pieces:
        ops = plan.ops(plan.units[piece.unit])
        costs = costs_of(piece.calls, target)
        # Copies and the cascade are for all operators of a unit, each of its stages for one.
        operators = [*[ops] * (len(piece.calls) - len(piece.operators)), *piece.operators]
        infos += [_call_info(*item) for item in zip(operators, piece.calls, costs, strict=False)]
    return tuple(infos)


def _call_info(ops: Sequence[Op], call: KernelCall, cost: Cost) -> CallInfo:
    """What a call does for one operator, or for all of a cascade."""
    written = {t for op in ops for t in op.outputs}
    reads = dict.fromkeys(
        t.name for op in ops for t in op.inputs if t is not None and not t.is_const and t not in written
    )
    writes = [t.name for t in ops[-1].outputs]
    several = isinstance(call, Cascade) or len(ops) > 1
    kind = "CASCADE" if several else ops[0].custom_name or ops[0].kind.name
    origin = dict.fromkeys(name for op in ops for name in op.origin)
    return CallInfo(call, kind, tuple(origin), tuple(reads), tuple(writes), cost)


def buffer_infos(emitted: Emitted) -> tuple[BufferInfo, ...]:
    """The memory map, in calls where the plan counts steps."""
    begins = [0, *accumulate(len(piece.calls) for piece in emitted.pieces)]
    return (
        *_scratch_infos(emitted, begins),
        *_prefetch_infos(emitted, begins),
        *_state_infos(emitted, begins),
    )


def _scratch_infos(emitted: Emitted, begins: Sequence[int]) -> Iterator[BufferInfo]:
    plan = emitted.plan
    tensors = _tensors(emitted)
    spans = _unit_spans(emitted, begins)
    for number, piece in enumerate(emitted.pieces):
        cascade, stop = plan.units[piece.unit].cascade, begins[number + 1] - sum(piece.band_calls)
        for band, count in zip(cascade.bands if cascade else (), piece.band_calls, strict=True):
            start, stop = stop, stop + count
            spans.update((ring.buffer, (start, stop - 1)) for ring in band.rings.values())
            tensors.update((ring.buffer, tensors[whole]) for whole, ring in band.rings.items())
    for buffer, calls in spans.items():
        names, rows = tuple(tensors.get(buffer, ())), plan.rows.get(buffer, 0)
        yield BufferInfo(
            buffer.name, Region.SCRATCH, plan.offsets[buffer], plan.sizes[buffer], *calls, names, rows
        )


def _unit_spans(emitted: Emitted, begins: Sequence[int]) -> dict[Buffer, _Span]:
    """The calls during which a buffer is held; inputs and outputs in scratch are there before and after."""
    plan, pieces = emitted.plan, list(enumerate(emitted.pieces))
    first_piece = {piece.unit: i for i, piece in reversed(pieces)}
    last_piece = {piece.unit: i for i, piece in pieces}
    end = len(plan.units) - 1
    return {
        buffer: _span(begins, first_piece[min(max(first, 0), end)], last_piece[min(max(last, 0), end)])
        for buffer, (first, last) in plan.lives.items()
        if buffer.home is Home.SCRATCH and plan.units
    }


def _prefetch_infos(emitted: Emitted, begins: Sequence[int]) -> Iterator[BufferInfo]:
    if (stream := emitted.stream) is None:
        return
    for chunk, start, at in zip(stream.chunks, stream.starts, stream.placement.offsets, strict=True):
        calls = _span(begins, start, chunk.step)
        yield BufferInfo(chunk.name, Region.PREFETCH, at, chunk.nbytes, *calls, ())


def _state_infos(emitted: Emitted, begins: Sequence[int]) -> Iterator[BufferInfo]:
    tensors = _tensors(emitted)
    for buffer, at in emitted.plan.schedule.storage.state_offsets.items() if emitted.pieces else ():
        names = tuple(tensors[buffer])
        yield BufferInfo(buffer.name, Region.STATE, at, buffer.nbytes, 0, begins[-1] - 1, names)


def _tensors(emitted: Emitted) -> dict[Buffer, list[str]]:
    """The names of what lies in each buffer."""
    tensors: dict[Buffer, list[str]] = {}
    for tensor, view in emitted.plan.schedule.storage.places.items():
        tensors.setdefault(view.buffer, []).append(tensor.name)
    return tensors


def _span(begins: Sequence[int], first: int, last: int) -> _Span:
    return begins[first], begins[last + 1] - 1
