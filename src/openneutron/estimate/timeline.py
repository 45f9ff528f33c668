"""What a program does, step by step, with estimated cycles: NPU calls, copies, and all the CPU does between.

The clock is the CPU's: it drives the NPU and waits for it, so everything happens in one line, except copies
from flash, which run beside until they are awaited. All cycles are the NPU's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executorch.exir.delegate import executorch_call_delegate
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from openneutron.compiler.emit.result import CallInfo
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.cost import run_times
from openneutron.converter.protocol import Partition
from openneutron.estimate.cpu_cost import Operator, cpu_cycles, operator_of, transpose_cycles
from openneutron.targets.chip import Target

NPU_KINDS = frozenset({"kernel", "copy", "wait"})
BORDER_KINDS = frozenset({"quantize", "dequantize", "transpose"})


@dataclass(frozen=True)
class Event:
    """One step; `nodes` are names in the Edge program, the first is the one its cycles are counted for."""

    kind: str  # kernel, copy, wait, cpu, quantize, dequantize, transpose
    name: str
    kernel: str
    method: str
    partition: int | None
    call: int | None  # the number of the call in the partition's microcode
    nodes: tuple[str, ...]
    start: int
    cycles: int
    advance: int  # of the clock: the cycles, but for a copy only what starting it takes
    bound: str
    macs: int
    nbytes: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    border: bool = False  # a transpose of a partition's own input or output
    saved: int = 0  # what an operator would take longer with ExecuTorch's portable kernel

    @property
    def end(self) -> int:
        """The cycle at which it is over."""
        return self.start + self.cycles


def program_timeline(methods: dict[str, ExportedProgram], target: Target) -> tuple[Event, ...]:
    """The steps of all methods, one after the other; empty if a converter tells nothing of its calls."""
    events: list[Event] = []
    now = partition = 0
    for name, program in methods.items():
        for step in _steps(name, program, partition, target):
            if step is None:
                return ()
            events.append(replace(step, start=now))
            now += step.advance
        partition += sum(n.target is executorch_call_delegate for n in program.graph.nodes)
    return tuple(events)


def total(events: Sequence[Event], *, portable: bool = False) -> int:
    """Cycles of the whole program; `portable`: with ExecuTorch's own kernels on the CPU, none of ours."""
    return max((e.end for e in events), default=0) + (sum(e.saved for e in events) if portable else 0)


def _steps(method: str, program: ExportedProgram, partition: int, target: Target) -> Iterator[Event | None]:
    module = program.graph_module
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if node.target is executorch_call_delegate:
            lowered = getattr(module, node.args[0].target)
            yield from _delegate(method, node, lowered.meta["_delegate_info_meta"], partition, target)
            partition += 1
        elif not (op := operator_of(node)).is_view:
            yield _cpu(method, node, op, target)


def _cpu(method: str, node: Node, op: Operator, target: Target) -> Event:
    cycles = cpu_cycles(op, target)
    reads = tuple(n.name for n in node.all_input_nodes)
    return Event(
        op.kind, node.name, op.name, method, None, None, (node.name,), 0, cycles, cycles, "cpu",
        op.macs, op.bytes_moved, reads, (node.name,), saved=cpu_cycles(op, target, portable=True) - cycles,
    )  # fmt: skip


def _delegate(method: str, node: Node, found: Any, partition: int, target: Target) -> Iterator[Event | None]:
    if not isinstance(found, Partition) or found.converted.compiled is None:
        yield None
        return
    lowered, compiled = found.lowered, found.converted.compiled
    outputs = node.meta.get("val", ())
    before = [n for n, last in zip(node.args[1:], lowered.input_channels_last, strict=False) if last]
    after = [v for v, last in zip(outputs, lowered.output_channels_last, strict=False) if last]
    for source in before:
        assert isinstance(source, Node)
        yield _transpose(method, source.name, source.meta["val"], partition, target)
    ends = frozenset(t.name for t in (*lowered.graph.inputs, *lowered.graph.outputs))
    yield from npu_events(method, compiled.calls, partition, target, call_nodes(found), ends)
    for value in after:
        yield _transpose(method, node.name, value, partition, target)


def _transpose(method: str, name: str, value: Tensor, partition: int, target: Target) -> Event:
    nbytes = value.numel() * value.element_size()
    cycles = transpose_cycles(nbytes, target)
    return Event(
        "transpose", f"{name}_transposed", "transpose", method, partition, None, (), 0, cycles, cycles, "cpu",
        0, 2 * nbytes, (name,), (f"{name}_transposed",), True,
    )  # fmt: skip


def npu_events(
    method: str,
    calls: Sequence[CallInfo],
    partition: int,
    target: Target,
    nodes: Sequence[tuple[str, ...]],
    ends: frozenset[str] = frozenset(),
) -> Iterator[Event]:
    """The calls of one delegate, not yet put on the clock; `ends` are its own inputs and outputs."""
    slots = run_times([info.call for info in calls], target)
    for number, (info, slot) in enumerate(zip(calls, slots, strict=True)):
        kind = {mc.Prefetch: "copy", mc.Wait: "wait"}.get(type(info.call), "kernel")
        owner = _awaited(calls, number) if kind == "copy" else number
        reads, writes = (info.reads, info.writes) if kind == "kernel" else ((), ())
        yield Event(
            kind=kind,
            name=(calls[owner].writes or (f"{kind} {number}",))[0],
            kernel=info.call.kernel.name,
            method=method,
            partition=partition,
            call=number,
            nodes=nodes[owner],
            start=0,
            cycles=slot.cycles,
            advance=slot.advance,
            bound=slot.bound.value,
            macs=info.cost.macs,
            nbytes=info.cost.bytes_moved,
            reads=reads,
            writes=writes,
            border=kind == "kernel" and info.operator == "TRANSPOSE" and bool(ends & {*reads, *writes}),
        )


def call_nodes(partition: Partition) -> list[tuple[str, ...]]:
    """For every call of a partition, the names of the nodes it computes, the one that does the work first."""
    compiled = partition.converted.compiled
    assert compiled is not None
    # The converter was given bytes: it knows operators by the tensors they write.
    ops = partition.lowered.graph.ops
    sources = {t.name: op.origin or (op.outputs[0].name,) for op in ops for t in op.outputs}
    return [
        tuple(dict.fromkeys(node for tensor in info.origin for node in sources.get(tensor, (tensor,))))
        for info in compiled.calls
    ]


def _awaited(calls: Sequence[CallInfo], number: int) -> int:
    """The call that waits for the copy of this number: it belongs to the operator the copy is for."""
    copy = calls[number].call
    assert isinstance(copy, mc.Prefetch)
    for later in range(number + 1, len(calls)):
        call = calls[later].call
        if isinstance(call, mc.Wait) and call.channel == copy.channel:
            return later
    return number
