"""The open converter's compiler: a LiteRT graph becomes microcode. The stages, in order:

    import -> fuse -> order -> (tile) -> place -> emit -> stream -> encode

Every stage is a function of values and changes none of them; the same graph gives the same bytes. Tiling has
no stage yet: row stripes would turn a chain of steps into interleaved ones, each with a range of output rows
(`Window.y0`, `y1`) and rolling buffers (`Ref.rows`). It belongs between ordering and placing, as a function
from `Schedule` to `Schedule`, since all it changes is which steps run and how large their buffers are.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate

from openneutron.compiler.constants import ConstPool
from openneutron.compiler.cost import cost_of, total_cycles
from openneutron.compiler.emit import check_supported, emit_parts, emit_step, map_refs
from openneutron.compiler.fuse import fuse
from openneutron.compiler.legalize import import_graph
from openneutron.compiler.microcode import (
    KernelCall,
    Program,
    Ref,
    Region,
    descriptor,
    encode,
)
from openneutron.compiler.result import BufferInfo, CallInfo, CompiledGraph
from openneutron.compiler.schedule import MemoryPlan, make_schedule, plan_memory
from openneutron.compiler.storage import Home
from openneutron.compiler.stream import Chunk, Stream, plan_stream, stream_calls
from openneutron.diagnostics import fail
from openneutron.litert.ir import Graph, Op
from openneutron.options import CompileOptions
from openneutron.target import Target


def compile_graph(graph: Graph, target: Target, options: CompileOptions) -> CompiledGraph:
    """Compile a static int8 LiteRT graph for OpenNeutron's firmware on `target`."""
    fused = fuse(import_graph(graph))
    check_supported(fused)
    plan = plan_memory(make_schedule(fused))

    sram = options.sram_bytes or target.sram_bytes
    _check_scratch(plan, sram)
    if options.fetch_constants_to_sram:
        budget = sram - plan.scratch_bytes
        pieces, chunks, weights = _emit_in_chunks(plan, budget)
        stream = plan_stream(chunks, budget)
        calls = stream_calls([piece.calls for piece in pieces], stream)
        pieces = [replace(piece, calls=c) for piece, c in zip(pieces, calls, strict=True)]
    else:
        pool = ConstPool()
        pieces = [Piece(step, emit_step(op, plan, pool)) for step, op in enumerate(plan.schedule.steps)]
        weights, stream = pool.bytes(), None
        _check_fits(plan, len(weights), sram)

    program = Program(
        calls=tuple(call for piece in pieces for call in piece.calls),
        inputs=tuple(descriptor(t.dtype, t.shape) for t in graph.inputs),
        outputs=tuple(descriptor(t.dtype, t.shape) for t in graph.outputs),
        weights_bytes=len(weights),
        scratch_bytes=plan.scratch_bytes,
        prefetch_bytes=stream.nbytes if stream else 0,
        target=target.name,
        converter_version=_version(),
        weights_crc=zlib.crc32(weights),
    )
    return CompiledGraph(
        microcode=encode(program),
        weights=weights,
        program=program,
        calls=_call_infos(plan, pieces, target),
        buffers=_buffer_infos(plan, pieces, stream),
        scratch_bytes=plan.scratch_bytes,
        scratch_bound=plan.placement.bound,
        prefetch_bytes=program.prefetch_bytes,
        placed_by=plan.placement.method,
        order_optimal=plan.schedule.order.optimal,
        cycles=total_cycles(program.calls, target),
    )


@dataclass(frozen=True)
class Piece:
    """Calls that run together: a step of the schedule, or a part of one."""

    step: int
    calls: list[KernelCall]


def _emit_in_chunks(plan: MemoryPlan, budget: int) -> tuple[list[Piece], list[Chunk], bytes]:
    """Emit with the constants of each piece in one run of bytes, which one copy brings; equal runs once."""
    pieces: list[Piece] = []
    chunks: list[Chunk] = []
    known: dict[bytes, int] = {}
    weights = bytearray()
    for step, op in enumerate(plan.schedule.steps):
        for calls, raw in emit_parts(op, plan, budget):
            if raw:
                if raw not in known:
                    known[raw] = len(weights)
                    weights += raw
                chunks.append(Chunk(len(pieces), _name(op), known[raw], len(raw)))
                calls = [map_refs(call, partial(_rebased, known[raw])) for call in calls]
            pieces.append(Piece(step, calls))
    return pieces, chunks, bytes(weights)


def _rebased(base: int, ref: Ref) -> Ref:
    return ref.plus(base) if ref.region == Region.WEIGHTS else ref


def _check_scratch(plan: MemoryPlan, sram: int) -> None:
    if plan.scratch_bytes > sram:
        fail(
            "ON403",
            _widest(plan),
            f"activations need {plan.scratch_bytes:,} bytes, {sram:,} bytes of SRAM are given",
            "Use smaller inputs or fewer channels, or give the program more SRAM (sram_bytes).",
        )


def _check_fits(plan: MemoryPlan, weights: int, sram: int) -> None:
    need = plan.scratch_bytes + weights
    if need > sram:
        fail(
            "ON403",
            "program",
            f"activations ({plan.scratch_bytes:,} bytes) and weights ({weights:,} bytes) need "
            f"{need:,} bytes together, {sram:,} bytes of SRAM are given",
            "fetch_constants_to_sram keeps the weights in flash and prefetches them layer by layer.",
        )


def _widest(plan: MemoryPlan) -> str:
    """The step at which the most scratch is in use."""

    def used(step: int) -> int:
        return sum(b.nbytes for b, (first, last) in plan.lives.items() if first <= step <= last)

    return _name(plan.schedule.steps[max(range(len(plan.schedule.steps)), key=used)])


def _name(op: Op) -> str:
    return f"{op.custom_name or op.kind.name} {op.outputs[0].name}"


def _call_infos(plan: MemoryPlan, pieces: Sequence[Piece], target: Target) -> tuple[CallInfo, ...]:
    infos = []
    for piece in pieces:
        op = plan.schedule.steps[piece.step]
        reads = tuple(t.name for t in op.inputs if t is not None and not t.is_const)
        writes = tuple(t.name for t in op.outputs)
        kind = op.custom_name or op.kind.name
        infos += [
            CallInfo(call, kind, op.origin, reads, writes, cost_of(call, target)) for call in piece.calls
        ]
    return tuple(infos)


def _buffer_infos(plan: MemoryPlan, pieces: Sequence[Piece], stream: Stream | None) -> tuple[BufferInfo, ...]:
    """The memory map, in calls where the plan counts steps."""
    begins = [0, *accumulate(len(piece.calls) for piece in pieces)]
    first_piece = {piece.step: i for i, piece in reversed(list(enumerate(pieces)))}
    last_piece = {piece.step: i for i, piece in enumerate(pieces)}

    def span(first: int, last: int) -> tuple[int, int]:
        return begins[first], begins[last + 1] - 1

    tensors: dict[object, list[str]] = {}
    for tensor, view in plan.schedule.storage.views.items():
        tensors.setdefault(view.buffer, []).append(tensor.name)
    result = [
        BufferInfo(
            buffer.name,
            Region.SCRATCH,
            plan.offsets[buffer],
            buffer.nbytes,
            *span(first_piece[first], last_piece[last]),
            tuple(tensors[buffer]),
        )
        for buffer, (first, last) in plan.lives.items()
        if buffer.home is Home.SCRATCH
    ]
    if stream:
        places = zip(stream.chunks, stream.starts, stream.placement.offsets, strict=True)
        result += [
            BufferInfo(chunk.name, Region.PREFETCH, at, chunk.nbytes, *span(start, chunk.step), ())
            for chunk, start, at in places
        ]
    return tuple(result)


@lru_cache(maxsize=1)
def _version() -> tuple[int, int, int]:
    """The version of this package, for the microcode's header; 0.0.0 when it runs uninstalled."""
    try:
        numbers = re.findall(r"\d+", version("openneutron"))[:3]
    except PackageNotFoundError:
        return 0, 0, 0
    major, minor, patch = (int(n) for n in [*numbers, "0", "0", "0"][:3])
    return major, minor, patch
