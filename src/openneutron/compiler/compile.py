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
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version

from openneutron.compiler.constants import ConstPool
from openneutron.compiler.cost import cost_of, total_cycles
from openneutron.compiler.emit import check_supported, emit_step, map_refs
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
    if options.fetch_constants_to_sram:
        steps, chunks, weights = _emit_in_chunks(plan)
        _check_scratch(plan, sram)
        stream = plan_stream(chunks, sram - plan.scratch_bytes)
        steps = stream_calls(steps, stream)
    else:
        pool = ConstPool()
        steps = [emit_step(op, plan, pool) for op in plan.schedule.steps]
        weights, stream = pool.bytes(), None
        _check_fits(plan, len(weights), sram)

    program = Program(
        calls=tuple(call for calls in steps for call in calls),
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
        calls=_call_infos(plan, steps, target),
        buffers=_buffer_infos(plan, steps, stream),
        scratch_bytes=plan.scratch_bytes,
        scratch_bound=plan.placement.bound,
        prefetch_bytes=program.prefetch_bytes,
        placed_by=plan.placement.method,
        order_optimal=plan.schedule.order.optimal,
        cycles=total_cycles(program.calls, target),
    )


def _emit_in_chunks(plan: MemoryPlan) -> tuple[list[list[KernelCall]], list[Chunk], bytes]:
    """Emit with the constants of each step in one piece, which one copy brings; equal pieces once."""
    steps: list[list[KernelCall]] = []
    chunks: list[Chunk] = []
    known: dict[bytes, int] = {}
    weights = b""
    for number, op in enumerate(plan.schedule.steps):
        pool = ConstPool()
        calls = emit_step(op, plan, pool)
        if raw := pool.bytes():
            base = known.setdefault(raw, len(weights))
            weights += raw if base == len(weights) else b""
            chunks.append(Chunk(number, _name(op), base, len(raw)))
            calls = [map_refs(call, partial(_rebased, base)) for call in calls]
        steps.append(calls)
    return steps, chunks, weights


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
    _check_scratch(plan, sram)
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


def _call_infos(
    plan: MemoryPlan, steps: Sequence[Sequence[KernelCall]], target: Target
) -> tuple[CallInfo, ...]:
    infos = []
    for op, calls in zip(plan.schedule.steps, steps, strict=True):
        reads = tuple(t.name for t in op.inputs if t is not None and not t.is_const)
        writes = tuple(t.name for t in op.outputs)
        kind = op.custom_name or op.kind.name
        infos += [CallInfo(call, kind, op.origin, reads, writes, cost_of(call, target)) for call in calls]
    return tuple(infos)


def _buffer_infos(
    plan: MemoryPlan, steps: Sequence[Sequence[KernelCall]], stream: Stream | None
) -> tuple[BufferInfo, ...]:
    """The memory map, with steps counted in calls."""
    ends: list[int] = []
    for calls in steps:
        ends.append((ends[-1] if ends else 0) + len(calls))

    def span(first: int, last: int) -> tuple[int, int]:
        return ends[first] - len(steps[first]), ends[last] - 1

    tensors: dict[object, list[str]] = {}
    for tensor, view in plan.schedule.storage.views.items():
        tensors.setdefault(view.buffer, []).append(tensor.name)
    result = [
        BufferInfo(
            buffer.name,
            Region.SCRATCH,
            plan.offsets[buffer],
            buffer.nbytes,
            *span(*life),
            tuple(tensors[buffer]),
        )
        for buffer, life in plan.lives.items()
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
