"""The open converter's compiler: a LiteRT graph becomes microcode. The stages, in order:

    import -> fuse -> order -> tile -> place -> emit -> stream -> roll -> encode

Every stage is a function of values and changes none of them; the same graph gives the same bytes. Tiling
takes runs of steps together as cascades of row stripes, in size mode or where the SRAM given demands it;
rolling makes loops of calls that repeat.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np

from openneutron import __version__
from openneutron.compiler.emit.emit import (
    check_supported,
    emit_cascade,
    emit_parts,
    emit_step,
    map_refs,
    tensor_ref,
)
from openneutron.compiler.emit.emit_bands import emit_bands
from openneutron.compiler.emit.loops import roll
from openneutron.compiler.emit.result import BufferInfo, CallInfo, CompiledGraph
from openneutron.compiler.emit.stream import Chunk, Stream, plan_stream, stream_calls
from openneutron.compiler.graph.fuse_conv import PLANAR
from openneutron.compiler.graph.projections import cut_projections
from openneutron.compiler.graph.rules import WEAVE, fuse, import_graph
from openneutron.compiler.memory.place import aligned
from openneutron.compiler.memory.schedule import (
    MemoryPlan,
    Schedule,
    Unit,
    make_schedule,
    plan_memory,
    with_given_order,
)
from openneutron.compiler.memory.storage import Home
from openneutron.compiler.microcode.cost import Cost, costs_of, total_cycles
from openneutron.compiler.microcode.format import (
    ALIGNMENT,
    Cascade,
    Descriptor,
    KernelCall,
    Program,
    Ref,
    Region,
    State,
    descriptor,
    encode,
)
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.stripes.tile import fitting_plan, network_cycles, smallest_plan
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.litert.ir import Builtin, Graph, Op, Tensor
from openneutron.litert.rules import run
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target

_LAYERS = (Builtin.CONV_2D, Builtin.DEPTHWISE_CONV_2D, Builtin.FULLY_CONNECTED)
_IN_FLASH = "fetch_constants_to_sram keeps the weights in flash and prefetches them layer by layer."
_FEWER = "Use a smaller model: there is no other memory that the NPU reads weights from."
MOST_STEPS_AGAIN = 4_000  # of a network that is planned a second time in another form


def compile_graph(graph: Graph, target: Target, options: CompileOptions) -> CompiledGraph:
    """Compile a static int8 LiteRT graph for OpenNeutron's firmware on `target`."""
    imported = import_graph(graph)
    fused = fuse(imported)
    check_supported(fused)
    small = options.optimise == "size"
    arena = small and not options.keep_inputs
    sram = options.sram_bytes or target.sram_bytes
    remembered = sum(aligned(state.initial.nbytes) for state in fused.states)
    if remembered > sram:
        fail("ON403", "program", f"it remembers {remembered:,} bytes, {sram:,} bytes of SRAM are given",
             "Make its buffers smaller, or give the program more SRAM (sram_bytes).")  # fmt: skip
    sram -= remembered
    if target.reads_flash:
        _check_weights(fused, target.flash_bytes, "flash on the chip", _FEWER)
    elif not options.fetch_constants_to_sram:
        _check_weights(fused, sram, "SRAM", _IN_FLASH)
    schedule = make_schedule(fused, arena)
    orders = partial(with_given_order, fused, schedule, arena)
    pictures = sum(op.operand(0).nbytes for op in fused.ops if op.custom_name == PLANAR)
    woven = _with_pictures_woven(fused, schedule, target, options) if arena and pictures else None
    plan = woven[1] if woven else None
    if plan is None or 5 * pictures < 4 * plan.scratch_bytes:  # not much more than they take
        other = (smallest_plan(orders(), target, options) if small else None) or plan_memory(schedule)
        if plan is None or other.scratch_bytes <= plan.scratch_bytes:
            woven, plan = None, other
    if woven is not None:
        fused = woven[0]
        orders = partial(with_given_order, fused, plan.schedule, arena)
    if small and len(plan.units) <= MOST_STEPS_AGAIN:
        cut, found = _with_projections_cut(fused, schedule, plan, target, options)
        if found is not None and found.scratch_bytes < plan.scratch_bytes:
            fused, plan = cut, found
            orders = partial(with_given_order, fused, plan.schedule, arena)
    if options.fetch_constants_to_sram:
        try:
            pieces, weights, stream = _emit_streamed(plan, sram)
        except OpenNeutronError:  # activations leave too little for the weights
            plan = fitting_plan(orders(), target, options, sram)
            pieces, weights, stream = _emit_streamed(plan, sram)
    else:
        (pieces, weights), stream = _emit(plan), None
        beside = 0 if target.reads_flash else len(weights)  # in SRAM
        if plan.beyond_io_bytes + beside > sram > beside:
            plan = fitting_plan(orders(), target, options, sram - beside)
            pieces, weights = _emit(plan)
        _check_scratch(plan, sram)
        _check_fits(plan, 0 if target.reads_flash else len(weights), sram)

    weights, states = _states(fused, plan, weights)
    calls, buffers = roll(_call_infos(plan, pieces, target), _buffer_infos(plan, pieces, stream))
    program = Program(
        calls=tuple(info.call for info in calls),
        inputs=_ports(graph.given, fused.given, plan),
        outputs=_ports(graph.returned, fused.returned, plan),
        weights_bytes=len(weights),
        scratch_bytes=plan.scratch_bytes,
        prefetch_bytes=stream.nbytes if stream else 0,
        target=target.name,
        converter_version=_version(),
        weights_crc=zlib.crc32(weights),
        states=states,
        state_bytes=plan.schedule.storage.state_bytes,
    )
    return CompiledGraph(
        microcode=encode(program),
        weights=weights,
        program=program,
        calls=calls,
        buffers=buffers,
        scratch_bytes=plan.scratch_bytes,
        scratch_bound=plan.placement.bound,
        prefetch_bytes=program.prefetch_bytes,
        cycles=total_cycles(program.calls, target),
    )


def _with_pictures_woven(
    fused: Graph, planes: Schedule, target: Target, options: CompileOptions
) -> tuple[Graph, MemoryPlan] | None:
    """The smallest plan in an arena with pictures ordered by rows: then all channels of a row die at once."""
    woven = run(fused, WEAVE)
    orders = with_given_order(woven, make_schedule(woven, True), True)
    plan = smallest_plan(orders, target, options, network_cycles(planes, target))
    return None if plan is None else (woven, plan)


def _with_projections_cut(
    fused: Graph, schedule: Schedule, plan: MemoryPlan, target: Target, options: CompileOptions
) -> tuple[Graph, MemoryPlan | None]:
    """The smallest plan if what recurrent layers read step by step is made in parts, where that is much."""
    cut = cut_projections(fused, plan.scratch_bytes // 4)
    if cut is None:
        return fused, None
    arena, whole = not options.keep_inputs, network_cycles(schedule, target)
    for may_copy in (True, False):  # copies of every step may be more than the budget allows
        orders = with_given_order(cut, make_schedule(cut, arena, may_copy), arena)
        if (found := smallest_plan(orders, target, options, whole)) is not None:
            return cut, found
    return cut, None


def _ports(tensors: Sequence[Tensor], inside: Sequence[Tensor], plan: MemoryPlan) -> tuple[Descriptor, ...]:
    """The program's inputs or outputs, with where those in scratch lie; `inside` has them as planned."""
    refs = [tensor_ref(plan, t) for t in inside]
    at = [ref.offset if ref.region is Region.SCRATCH else None for ref in refs]
    return tuple(descriptor(t.dtype, t.shape, place) for t, place in zip(tensors, at, strict=True))


def _states(graph: Graph, plan: MemoryPlan, weights: bytes) -> tuple[bytes, tuple[State, ...]]:
    """What the program remembers, and the weights with the values from which it starts."""
    storage, result = plan.schedule.storage, []
    for state, tensor, _ in graph.state_tensors():
        raw = np.ascontiguousarray(state.initial).tobytes()
        uniform = raw == raw[:1] * len(raw)
        if not uniform:
            weights += bytes(-len(weights) % ALIGNMENT)
        port = descriptor(tensor.dtype, tensor.shape)
        result.append(
            State(
                port.dtype,
                port.rank,
                port.bytes,
                storage.state_offsets[storage.places[tensor].buffer],
                port.dims,
                0 if uniform else len(weights) + 1,
                raw[0] if uniform and raw else 0,
                state.name.encode("ascii", "replace")[:31],
            )
        )
        weights += b"" if uniform else raw
    return weights, tuple(result)


def _emit_streamed(plan: MemoryPlan, sram: int) -> tuple[list[Piece], bytes, Stream | None]:
    """The calls of every unit with the copies they need, the constants, and where they are copied to."""
    _check_scratch(plan, sram)
    budget = sram - plan.beyond_io_bytes
    pieces, chunks, weights = _emit_in_chunks(plan, budget)
    stream = plan_stream(chunks, budget)
    calls = stream_calls([piece.calls for piece in pieces], stream)
    return [replace(piece, calls=c) for piece, c in zip(pieces, calls, strict=True)], weights, stream


def _emit(plan: MemoryPlan) -> tuple[list[Piece], bytes]:
    """The calls of every unit, and the constants of all of them."""
    pool = ConstPool()
    return [_piece(plan, number, pool) for number in range(len(plan.units))], pool.bytes()


@dataclass(frozen=True)
class Piece:
    """Calls that run together: a unit of the plan, or a part of one."""

    unit: int
    calls: list[KernelCall]
    behind: Sequence[tuple[Op, ...]] = ()  # of a cascade: the operators of each of its last calls
    bands: Sequence[int] = ()  # and how many of these are each band's


def _piece(plan: MemoryPlan, number: int, pool: ConstPool) -> Piece:
    unit = plan.units[number]
    ops = plan.ops(unit)
    if unit.cascade is not None and unit.cascade.bands:
        bands = emit_bands(ops, unit.cascade, plan, pool)
        tiles = sum(len(band.tiles) for band in unit.cascade.bands)
        behind = [ops, *((op,) for op in ops)] * tiles
        return Piece(number, [c for band in bands for c in band], behind, [len(band) for band in bands])
    if unit.cascade is not None:
        calls, each = emit_cascade(ops, unit.cascade, plan, pool)
        stages = [(op,) for op, count in zip(ops, each, strict=True) for _ in range(count)]
        return Piece(number, calls, [ops, *stages])
    return Piece(number, emit_step(ops[0], plan, pool))


def _emit_in_chunks(plan: MemoryPlan, budget: int) -> tuple[list[Piece], list[Chunk], bytes]:
    """Emit with the constants of each piece in one run of bytes, which one copy brings; equal runs once."""
    pieces: list[Piece] = []
    chunks: list[Chunk] = []
    known: dict[bytes, int] = {}
    weights = bytearray()
    for number, unit in enumerate(plan.units):
        for piece, raw in _parts(plan, number, budget):
            if raw:
                if raw not in known:
                    known[raw] = len(weights)
                    weights += raw
                chunks.append(Chunk(len(pieces), _name(plan, unit), known[raw], len(raw)))
                calls = [map_refs(call, partial(_rebased, known[raw])) for call in piece.calls]
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


def _check_scratch(plan: MemoryPlan, sram: int) -> None:
    if plan.beyond_io_bytes > sram:
        fail(
            "ON403",
            _widest(plan),
            f"activations need {plan.beyond_io_bytes:,} bytes at least, {sram:,} bytes of SRAM are given",
            "Use smaller inputs or fewer channels, or give the program more SRAM (sram_bytes).",
        )


def _check_weights(graph: Graph, room: int, place: str, hint: str) -> None:
    """Refuse before any planning what no plan makes fit: equal weights are stored once, and none shrinks."""
    found = {
        data.tobytes()
        for op in graph.ops
        if op.kind in _LAYERS and (data := op.operand(1).data) is not None and op.operand(1).dtype == "int8"
    }
    if (need := sum(map(len, found))) > room > 0:
        fail(
            "ON403",
            "program",
            f"the weights of its layers have {need:,} bytes, {room:,} bytes of {place} are given",
            hint,
        )


def _check_fits(plan: MemoryPlan, weights: int, sram: int) -> None:
    need = plan.beyond_io_bytes + weights
    if need > sram:
        fail(
            "ON403",
            "program",
            f"activations ({plan.beyond_io_bytes:,} bytes at least) and weights ({weights:,} bytes) need "
            f"{need:,} bytes together, {sram:,} bytes of SRAM are given",
            _IN_FLASH,
        )


def _widest(plan: MemoryPlan) -> str:
    """The step at which the most scratch is in use."""

    def used(number: int) -> int:
        return sum(plan.sizes[b] for b, (first, last) in plan.lives.items() if first <= number <= last)

    return _name(plan, plan.units[max(range(len(plan.units)), key=used)])


def _name(plan: MemoryPlan, unit: Unit) -> str:
    first, last = plan.schedule.steps[unit.first], plan.schedule.steps[unit.last]
    names = [f"{op.custom_name or op.kind.name} {op.outputs[0].name}" for op in (first, last)]
    return " to ".join(dict.fromkeys(names))


def _call_infos(plan: MemoryPlan, pieces: Sequence[Piece], target: Target) -> tuple[CallInfo, ...]:
    infos = []
    for piece in pieces:
        ops = plan.ops(plan.units[piece.unit])
        costs = costs_of(piece.calls, target)
        # Copies and the cascade are for all operators of a unit, each of its stages for one.
        behind = [*[ops] * (len(piece.calls) - len(piece.behind)), *piece.behind]
        infos += [_call_info(*item) for item in zip(behind, piece.calls, costs, strict=False)]
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


def _buffer_infos(plan: MemoryPlan, pieces: Sequence[Piece], stream: Stream | None) -> tuple[BufferInfo, ...]:
    """The memory map, in calls where the plan counts steps."""
    begins = [0, *accumulate(len(piece.calls) for piece in pieces)]
    first_piece = {piece.unit: i for i, piece in reversed(list(enumerate(pieces)))}
    last_piece = {piece.unit: i for i, piece in enumerate(pieces)}

    def span(first: int, last: int) -> tuple[int, int]:
        return begins[first], begins[last + 1] - 1

    end = len(plan.units) - 1  # inputs and outputs in scratch are there before and after

    tensors: dict[object, list[str]] = {}
    for tensor, view in plan.schedule.storage.places.items():
        tensors.setdefault(view.buffer, []).append(tensor.name)
    spans = {
        buffer: span(first_piece[min(max(first, 0), end)], last_piece[min(max(last, 0), end)])
        for buffer, (first, last) in plan.lives.items()
        if buffer.home is Home.SCRATCH and plan.units
    }
    for number, piece in enumerate(pieces):
        cascade, stop = plan.units[piece.unit].cascade, begins[number + 1] - sum(piece.bands)
        for band, count in zip(cascade.bands if cascade else (), piece.bands, strict=True):
            start, stop = stop, stop + count
            spans.update((ring.buffer, (start, stop - 1)) for ring in band.rings.values())
            tensors.update((ring.buffer, tensors[whole]) for whole, ring in band.rings.items())
    result = [
        BufferInfo(
            buffer.name,
            Region.SCRATCH,
            plan.offsets[buffer],
            plan.sizes[buffer],
            *calls,
            tuple(tensors.get(buffer, ())),
            plan.rows.get(buffer, 0),
        )
        for buffer, calls in spans.items()
    ]
    if stream:
        places = zip(stream.chunks, stream.starts, stream.placement.offsets, strict=True)
        result += [
            BufferInfo(chunk.name, Region.PREFETCH, at, chunk.nbytes, *span(start, chunk.step), ())
            for chunk, start, at in places
        ]
    result += [
        BufferInfo(
            buffer.name, Region.STATE, at, buffer.nbytes, *span(0, len(pieces) - 1), tuple(tensors[buffer])
        )
        for buffer, at in plan.schedule.storage.state_offsets.items()
        if pieces
    ]
    return tuple(result)


def _version() -> tuple[int, int, int]:
    """The version of this package, for the microcode's header."""
    major, minor, patch = (int(number) for number in __version__.split(".")[:3])
    return major, minor, patch
