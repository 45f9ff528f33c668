"""The open converter's compiler: a LiteRT graph becomes microcode. The stages, in order:

    import -> fuse -> choose a candidate (order, tile, place) -> emit -> stream -> roll -> encode

Every stage is a function of values and changes none of them; the same graph gives the same bytes. A candidate
is a form of the graph with a plan: the order of its operators, which of them run together in stripes of rows,
and where everything lies. Stripes are taken in size mode, or where the SRAM given demands it; rolling makes
loops of calls that repeat.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from openneutron import __version__
from openneutron.compiler.emit.emit import check_supported, tensor_ref
from openneutron.compiler.emit.infos import buffer_infos, call_infos
from openneutron.compiler.emit.loops import roll
from openneutron.compiler.emit.pieces import Emitted, emit_plan, emit_streamed, unit_name
from openneutron.compiler.emit.result import CompiledGraph
from openneutron.compiler.graph.rules import fuse, import_graph
from openneutron.compiler.memory.place import aligned
from openneutron.compiler.memory.schedule import MemoryPlan
from openneutron.compiler.microcode.cost import total_cycles
from openneutron.compiler.microcode.format import (
    ALIGNMENT,
    Descriptor,
    Program,
    Region,
    State,
    descriptor,
    encode,
)
from openneutron.compiler.stripes.candidates import Candidate, choose_candidate
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.litert.ir import Builtin, Graph, Tensor
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target

_LAYERS = (Builtin.CONV_2D, Builtin.DEPTHWISE_CONV_2D, Builtin.FULLY_CONNECTED)
_IN_FLASH = "fetch_constants_to_sram keeps the weights in flash and prefetches them layer by layer."
_FEWER = "Use a smaller model: there is no other memory that the NPU reads weights from."


def compile_graph(graph: Graph, target: Target, options: CompileOptions) -> CompiledGraph:
    """Compile a static int8 LiteRT graph for OpenNeutron's firmware on `target`."""
    fused = fuse(import_graph(graph))
    check_supported(fused)
    sram = _sram_beside_state(fused, target, options)
    candidate = choose_candidate(fused, target, options)
    emitted = _emit_within(candidate, target, options, sram)
    return _encoded(graph, candidate.graph, emitted, target)


def _emit_within(candidate: Candidate, target: Target, options: CompileOptions, sram: int) -> Emitted:
    """The candidate's calls and constants; its plan is made anew if they do not fit into the SRAM."""
    plan = candidate.plan
    if options.fetch_constants_to_sram:
        try:
            return _emit_streamed(plan, sram)
        except OpenNeutronError:  # activations leave too little for the weights
            return _emit_streamed(candidate.within(sram, target, options).plan, sram)
    emitted = emit_plan(plan)
    beside = 0 if target.reads_flash else len(emitted.weights)  # in SRAM
    if plan.beyond_io_bytes + beside > sram > beside:
        emitted = emit_plan(candidate.within(sram - beside, target, options).plan)
    _check_scratch(emitted.plan, sram)
    _check_fits(emitted.plan, 0 if target.reads_flash else len(emitted.weights), sram)
    return emitted


def _emit_streamed(plan: MemoryPlan, sram: int) -> Emitted:
    _check_scratch(plan, sram)
    return emit_streamed(plan, sram - plan.beyond_io_bytes)


def _encoded(graph: Graph, planned: Graph, emitted: Emitted, target: Target) -> CompiledGraph:
    """The program of `graph`, of which `planned` is the form that was emitted."""
    plan, stream = emitted.plan, emitted.stream
    weights, states = _states(planned, plan, emitted.weights)
    calls, buffers = roll(call_infos(emitted, target), buffer_infos(emitted))
    program = Program(
        calls=tuple(info.call for info in calls),
        inputs=_ports(graph.given, planned.given, plan),
        outputs=_ports(graph.returned, planned.returned, plan),
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


def _sram_beside_state(graph: Graph, target: Target, options: CompileOptions) -> int:
    """The SRAM for one run; refuse before any planning what no plan makes fit."""
    sram = options.sram_bytes or target.sram_bytes
    remembered = sum(aligned(state.initial.nbytes) for state in graph.states)
    if remembered > sram:
        fail(
            "ON403",
            "program",
            f"it remembers {remembered:,} bytes, {sram:,} bytes of SRAM are given",
            "Make its buffers smaller, or give the program more SRAM (sram_bytes).",
        )
    if target.reads_flash:
        _check_weights(graph, target.flash_bytes, "flash on the chip", _FEWER)
    elif not options.fetch_constants_to_sram:
        _check_weights(graph, sram - remembered, "SRAM", _IN_FLASH)
    return sram - remembered


def _check_scratch(plan: MemoryPlan, sram: int) -> None:
    if plan.beyond_io_bytes > sram:
        fail(
            "ON403",
            _widest(plan),
            f"activations need {plan.beyond_io_bytes:,} bytes at least, {sram:,} bytes of SRAM are given",
            "Use smaller inputs or fewer channels, or give the program more SRAM (sram_bytes).",
        )


def _check_weights(graph: Graph, room: int, place: str, hint: str) -> None:
    """Equal weights are stored once, and none shrinks."""
    contents = {
        data.tobytes()
        for op in graph.ops
        if op.kind in _LAYERS and (data := op.operand(1).data) is not None and op.operand(1).dtype == "int8"
    }
    if (need := sum(map(len, contents))) > room > 0:
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

    return unit_name(plan, plan.units[max(range(len(plan.units)), key=used)])


def _version() -> tuple[int, int, int]:
    """The version of this package, for the microcode's header."""
    major, minor, patch = (int(number) for number in __version__.split(".")[:3])
    return major, minor, patch
