"""Emission: every step becomes kernel calls, with addresses from the memory plan and constants in a pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from openneutron.compiler.cost import total_cycles
from openneutron.compiler.emit.constants import ConstPool
from openneutron.compiler.emit.select import select, supports
from openneutron.compiler.emit.selection import Context
from openneutron.compiler.emit.split import Part, can_split, split, widen_output
from openneutron.compiler.graph.fuse import PADDING
from openneutron.compiler.memory.schedule import MemoryPlan
from openneutron.compiler.memory.storage import Home
from openneutron.compiler.microcode.format import Cascade as CascadeCall
from openneutron.compiler.microcode.format import (
    Conv2D,
    DepthwiseConv2D,
    KernelCall,
    MaxPool2D,
    Ref,
    Region,
    View,
)
from openneutron.compiler.stripes.cascade import Cascade
from openneutron.compiler.stripes.stripes import Stage, by_rows, stage_of
from openneutron.diagnostics import Reject, fail
from openneutron.litert.ir import Graph, Op, Tensor
from openneutron.target import Target

_REGION = {Home.INPUT: Region.INPUT, Home.OUTPUT: Region.OUTPUT}


def check_supported(graph: Graph) -> None:
    """Refuse a graph with operators no kernel computes: the first with its reason, the others by name."""
    refused = [(op, reject) for op in graph.ops if (reject := _supports(op)) is not None]
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


def _supports(op: Op) -> Reject | None:
    return supports(_virtual(op)[0] if PADDING in op.options else op)


def emit_step(op: Op, plan: MemoryPlan, pool: ConstPool) -> list[KernelCall]:
    """The kernel calls of one step."""
    return _calls(op, partial(_ref, plan), pool, partial(_pitch, plan))


def emit_cascade(ops: Sequence[Op], cascade: Cascade, plan: MemoryPlan, pool: ConstPool) -> list[KernelCall]:
    """The calls of a cascade: the record with its steps, then its stages."""
    steps = plan.steps(cascade)
    strides = Context(partial(_ref, plan), pool, partial(_pitch, plan)).strides
    stages = [by_rows(op, call, strides) for op in ops for call in emit_step(op, plan, pool)]
    assert len(stages) == len(ops), "a stage is one call"
    return [CascadeCall(len(stages), len(steps), steps), *stages]


@dataclasses.dataclass(frozen=True)
class Sketch:
    """An operator emitted without addresses: as a stage, if it can be one, its constants, its cycles."""

    stage: Stage | None
    constants: int
    cycles: int


def sketch(op: Op, target: Target) -> Sketch:
    """What is known of an operator's calls before anything is placed."""
    pool = ConstPool()
    calls = _calls(op, lambda tensor: Ref(Region.SCRATCH), pool)
    return Sketch(stage_of(op, calls, target), pool.size, total_cycles(calls, target))


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
            return _ref(plan, op.output).plus(part.first) if tensor is part.op.output else _ref(plan, tensor)

        def pitch(tensor: Tensor) -> int:
            return _pitch(plan, tensor) if tensor in plan.schedule.storage.views else 0

        calls = _calls(part.op, ref, pool, pitch)
        yield [widen_output(call, op.output, _pitch(plan, op.output)) for call in calls], pool.bytes()


def _ref(plan: MemoryPlan, tensor: Tensor) -> Ref:
    view = plan.schedule.storage.views[tensor]
    if view.buffer.home is Home.SCRATCH:
        rows = plan.rows.get(view.buffer, 0)
        return Ref(Region.SCRATCH, rows=rows, offset=plan.offsets[view.buffer] + view.offset)
    return Ref(_REGION[view.buffer.home], view.buffer.number, offset=view.offset)


def _pitch(plan: MemoryPlan, tensor: Tensor) -> int:
    return plan.schedule.storage.views[tensor].pitch


def _calls(
    op: Op, ref: Callable[[Tensor], Ref], pool: ConstPool, pitch: Callable[[Tensor], int] = lambda tensor: 0
) -> list[KernelCall]:
    if PADDING in op.options:
        return _padded_calls(op, ref, pool, pitch)
    return select(op, ref, pool, pitch)


def _virtual(op: Op) -> tuple[Op, Tensor]:
    """The convolution as LiteRT would have it, on a padded input that never exists."""
    source = op.operand(0)
    top, bottom, left, right = op.options[PADDING]
    n, h, w, c = source.shape
    padded = Tensor(
        f"{source.name}_padded", (n, h + top + bottom, w + left + right, c), source.dtype, source.quant
    )
    options = {k: v for k, v in op.options.items() if k != PADDING}
    return Op(op.kind, [padded, *op.inputs[1:]], op.outputs, options, op.origin), padded


def _padded_calls(
    op: Op, ref: Callable[[Tensor], Ref], pool: ConstPool, pitch: Callable[[Tensor], int]
) -> list[KernelCall]:
    """Select for the padded input, then make the window start outside of the real one.

    Convolutions take taps outside of the input as the zero point, which is what the padding holds; maxima
    leave them out, and the padding holds the lowest value.
    """
    virtual, padded = _virtual(op)
    source = op.operand(0)
    top, _, left, _ = op.options[PADDING]
    _, height, width, _ = source.shape

    def real(tensor: Tensor) -> Tensor:
        return source if tensor is padded else tensor

    calls = select(virtual, lambda t: ref(real(t)), pool, lambda t: pitch(real(t)))
    result: list[KernelCall] = []
    for call in calls:
        assert isinstance(call, Conv2D | DepthwiseConv2D | MaxPool2D), f"{call} has no padding"
        window = call.window
        window = dataclasses.replace(
            window, in_h=height, in_w=width, pad_top=window.pad_top + top, pad_left=window.pad_left + left
        )
        result.append(
            dataclasses.replace(
                call, window=window, input=View(call.input.ref, call.input.pixel, width * call.input.pixel)
            )
        )
    return result


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
