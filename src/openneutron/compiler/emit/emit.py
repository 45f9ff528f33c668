"""Emission: every step becomes kernel calls, with addresses from the memory plan and constants in a pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from openneutron.compiler.emit.split import Part, can_split, split, widen_output
from openneutron.compiler.memory.cascade import CascadePlan
from openneutron.compiler.memory.schedule import MemoryPlan
from openneutron.compiler.memory.storage import Home
from openneutron.compiler.microcode.cost import total_cycles
from openneutron.compiler.microcode.format import (
    Cascade,
    FullyConnected,
    KernelCall,
    Ref,
    Region,
)
from openneutron.compiler.select.accumulate import accumulate
from openneutron.compiler.select.by_rows import (
    Stage,
    accumulating_stage,
    by_rows,
    gathering_stage,
    stage_of,
    transposed_by_rows,
)
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.select.context import Context
from openneutron.compiler.select.select import refused_port, select, supports
from openneutron.diagnostics import fail
from openneutron.litert.ir import Builtin, Graph, Op, Tensor
from openneutron.targets.chip import Target

_REGION = {Home.INPUT: Region.INPUT, Home.OUTPUT: Region.OUTPUT}


def check_supported(graph: Graph) -> None:
    """Refuse a graph with operators no kernel computes: the first with its reason, the others by name."""
    if port := refused_port(graph):
        fail(port.code, graph.name, port.reason, port.hint)
    refused = [(op, reject) for op in graph.ops if (reject := supports(op)) is not None]
    if not refused:
        return
    op, reject = refused[0]
    rest = sorted({f"{other.kind.name} {other.outputs[0].name}" for other, _ in refused[1:]})
    more = (
        f"; {len(refused) - 1} more operators cannot be compiled either: {', '.join(rest[:5])}"
        if rest
        else ""
    )
    fail("ON401", f"{op.kind.name} {op.outputs[0].name}", reject.reason + more, reject.hint)


def emit_step(op: Op, plan: MemoryPlan, pool: ConstPool) -> list[KernelCall]:
    """The kernel calls of one step."""
    return select(op, partial(tensor_ref, plan), pool, partial(_pitch, plan))


def emit_cascade(
    ops: Sequence[Op], cascade: CascadePlan, plan: MemoryPlan, pool: ConstPool
) -> tuple[list[KernelCall], list[int]]:
    """The calls of a cascade: the record with its steps, its stages; and how many each operator has."""
    steps = plan.steps(cascade)
    context = Context(partial(tensor_ref, plan), pool, partial(_pitch, plan))
    stages: list[list[KernelCall]] = []
    for op in ops:
        sums = Ref(Region.SCRATCH, offset=plan.offsets[cascade.sums]) if cascade.sums else Ref(Region.SCRATCH)
        taken = accumulate(op, context, sums) if op is ops[-1] and cascade.accumulates else None
        stages.append([taken] if taken else _striped(op, plan, context))
    calls = [call for stage in stages for call in stage]
    return [Cascade(len(calls), len(steps), steps), *calls], [len(stage) for stage in stages]


def _striped(op: Op, plan: MemoryPlan, context: Context) -> list[KernelCall]:
    """An operator's calls as a stage of a cascade."""
    calls = emit_step(op, plan, context.pool)
    if op.kind is Builtin.TRANSPOSE and plan.schedule.storage.is_given(op.operand(0)):
        return transposed_by_rows(op, calls, context.strides, op.output)
    return by_rows(op, calls, context.strides) or []


@dataclasses.dataclass(frozen=True)
class Sketch:
    """An operator emitted without addresses: as a stage, if it can be one, its constants, its cycles."""

    stage: Stage | None
    opening: Stage | None  # as a stage that reads an input of the program
    constants: int
    cycles: int
    trailing: tuple[int, int] = (0, 0)  # bytes of its output that are written when its input is not needed


def sketch(op: Op, target: Target) -> Sketch:
    """What is known of an operator's calls before anything is placed."""
    pool = ConstPool()
    calls = select(op, lambda tensor: Ref(Region.SCRATCH), pool)
    stage = stage_of(op, calls, target) or _accumulating(op, target)
    trailing = calls[0].trailing if len(calls) == 1 and isinstance(calls[0], FullyConnected) else (0, 0)
    opening = gathering_stage(op, calls, target) if op.kind is Builtin.TRANSPOSE else stage
    return Sketch(stage, opening, pool.size, total_cycles(calls, target), trailing)


def _accumulating(op: Op, target: Target) -> Stage | None:
    """An operator that takes all rows of its input as the last stage of a cascade."""
    scratch = Ref(Region.SCRATCH)
    call = accumulate(op, Context(lambda tensor: scratch, ConstPool()), scratch)
    return None if call is None else accumulating_stage(op, call, target)


def emit_parts(op: Op, plan: MemoryPlan, most: int) -> Iterator[tuple[list[KernelCall], bytes]]:
    """The kernel calls of one step and its constants; in several parts where they exceed `most` bytes.

    Parts have at most half of that, so that one can be copied while another computes.
    """
    pool = ConstPool()
    calls = emit_step(op, plan, pool)
    if pool.size <= most or most <= 0 or not can_split(op):
        yield calls, pool.bytes()
        return
    for part in split(op, -(-2 * pool.size // most)):
        pool = ConstPool()

        def ref(tensor: Tensor, part: Part = part) -> Ref:
            if tensor is part.op.output:
                return tensor_ref(plan, op.output).plus(part.first)
            source = op.operand(0) if tensor is part.op.operand(0) else tensor
            return tensor_ref(plan, source).plus(part.input_first)

        def pitch(tensor: Tensor, part: Part = part) -> int:
            if tensor is part.op.operand(0) and tensor is not op.operand(0):
                return _pitch(plan, op.operand(0)) or op.operand(0).shape[-1]
            return _pitch(plan, tensor) if tensor in plan.schedule.storage.places else 0

        calls = select(part.op, ref, pool, pitch)
        yield [widen_output(call, op.output, _pitch(plan, op.output)) for call in calls], pool.bytes()


def tensor_ref(plan: MemoryPlan, tensor: Tensor) -> Ref:
    """Where a tensor lies."""
    view = plan.schedule.storage.places[tensor]
    if view.buffer.home is Home.SCRATCH:
        rows = plan.rows.get(view.buffer, 0)
        return Ref(Region.SCRATCH, rows=rows, offset=plan.offsets[view.buffer] + view.offset)
    if view.buffer.home is Home.STATE:
        return Ref(Region.STATE, offset=plan.schedule.storage.state_offsets[view.buffer] + view.offset)
    return Ref(_REGION[view.buffer.home], view.buffer.number, offset=view.offset)


def _pitch(plan: MemoryPlan, tensor: Tensor) -> int:
    return plan.schedule.storage.places[tensor].pitch


def map_refs(value: Any, change: Callable[[Ref], Ref]) -> Any:
    """A copy of a call with every address in it changed."""
    changes = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Ref):
            changes[field.name] = change(item)
        elif dataclasses.is_dataclass(item):
            changes[field.name] = map_refs(item, change)
    return dataclasses.replace(value, **changes)
