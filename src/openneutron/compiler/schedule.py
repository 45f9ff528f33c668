"""The schedule: which operators run as kernels, in which order, and where every tensor lies while they do.

Ordering and placing work on plain numbers (`order.Job`, `place.Block`); this module makes them from a graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from openneutron.compiler.order import Job, Order, choose_order, reused
from openneutron.compiler.place import Block, Placement, aligned, place
from openneutron.compiler.select import kernel_scratch
from openneutron.compiler.shapes import slice_of
from openneutron.compiler.storage import Buffer, Home, Storage, can_share, share_storage
from openneutron.compiler.tables import is_table
from openneutron.litert.ir import Builtin, Graph, Op, Tensor

SHARING_TRIALS = 8  # ops for which copying instead of sharing is tried; each costs one ordering

_SAME_SHAPE = frozenset({
    Builtin.ADD, Builtin.SUB, Builtin.MUL, Builtin.MAXIMUM, Builtin.MINIMUM, Builtin.SQUARED_DIFFERENCE,
    Builtin.PRELU,
})  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """Operators that run, in order, and the memory they share."""

    steps: tuple[Op, ...]
    storage: Storage
    order: Order
    overwrites: dict[Buffer, Buffer]  # a buffer and the one whose place it takes


@dataclass(frozen=True)
class MemoryPlan:
    """A schedule with an offset for every scratch buffer, and how good it is."""

    schedule: Schedule
    offsets: dict[Buffer, int]
    lives: dict[Buffer, tuple[int, int]]  # first and last step
    workspaces: dict[int, int]  # the offset of a step's workspace, where its kernels need one
    placement: Placement

    @property
    def scratch_bytes(self) -> int:
        """The scratch area, the caller's inputs and outputs not counted."""
        return self.placement.nbytes


def make_schedule(graph: Graph) -> Schedule:
    """Share storage and choose the order with the least peak.

    Sharing nearly always saves, but a concatenation's buffer exists from the first part on, and a slice keeps
    the whole it is cut from; where copying gives a smaller peak, the op copies.
    """
    best = _ordered(graph, frozenset())
    copying: frozenset[Op] = frozenset()
    for op in _doubtful(graph, best.storage):
        trial = _ordered(graph, copying | {op})
        if trial.order.peak < best.order.peak:
            best, copying = trial, copying | {op}
    return best


def plan_memory(schedule: Schedule) -> MemoryPlan:
    """Give every scratch buffer of the schedule an offset."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for step, op in enumerate(schedule.steps):
        for buffer in _scratch_buffers(op, schedule.storage):
            lives[buffer] = (lives.get(buffer, (step, step))[0], step)
    blocks: list[Block] = []
    group: dict[Buffer, int] = {}
    for buffer, (first, last) in lives.items():  # in order of first use, so what is overwritten comes before
        if (old := schedule.overwrites.get(buffer)) is not None:
            group[buffer] = group[old]
            before = blocks[group[old]]
            blocks[group[old]] = Block(before.nbytes, before.first, max(before.last, last))
        else:
            group[buffer] = len(blocks)
            blocks.append(Block(aligned(buffer.nbytes), first, last))
    needs = {step: size for step, op in enumerate(schedule.steps) if (size := kernel_workspace(op))}
    workspace = {step: len(blocks) + index for index, step in enumerate(needs)}
    placement = place(blocks + [Block(size, step, step) for step, size in needs.items()])
    offsets = {buffer: placement.offsets[index] for buffer, index in group.items()}
    workspaces = {step: placement.offsets[index] for step, index in workspace.items()}
    return MemoryPlan(schedule, offsets, lives, workspaces, placement)


def kernel_workspace(op: Op) -> int:
    """Bytes the calls of an op need while they run."""
    return 0 if is_table(op) else kernel_scratch(op)


def in_place_operands(op: Op) -> list[Tensor]:
    """Inputs whose memory the output may take: kernels that read each element before they write it."""
    if is_table(op):
        return [op.operand(0)]
    if op.kind in _SAME_SHAPE:
        return [t for t in op.inputs if t is not None and not t.is_const and t.shape == op.output.shape]
    return []


def _ordered(graph: Graph, copying: frozenset[Op]) -> Schedule:
    storage = share_storage(graph, lambda op: op not in copying)
    steps = [op for op in graph.ops if op not in storage.free_ops]
    buffers = [b for b in storage.buffers if b.home is Home.SCRATCH]
    number = {buffer: i for i, buffer in enumerate(buffers)}
    made_by = _makers(graph, storage, steps)
    jobs = []
    for op in steps:
        needs = {n for t in op.inputs if t is not None for n in made_by.get(t, ())}
        touches = tuple(sorted(number[b] for b in _scratch_buffers(op, storage)))
        jobs.append(
            Job(tuple(sorted(needs)), touches, aligned(kernel_workspace(op)), _reuse(op, storage, number))
        )
    order = choose_order(jobs, [aligned(b.nbytes) for b in buffers])
    overwrites = {buffers[new]: buffers[old] for new, old in reused(jobs, order.sequence).items()}
    return Schedule(tuple(steps[i] for i in order.sequence), storage, order, overwrites)


def _makers(graph: Graph, storage: Storage, steps: list[Op]) -> dict[Tensor, frozenset[int]]:
    """The steps that must have run before a tensor holds its value; free ops hand on their inputs'."""
    number = {op: i for i, op in enumerate(steps)}
    result: dict[Tensor, frozenset[int]] = {}
    for op in graph.ops:
        if op in storage.free_ops:
            makers = frozenset(n for t in op.inputs if t is not None for n in result.get(t, ()))
        else:
            makers = frozenset({number[op]})
        result.update((t, makers) for t in op.outputs)
    return result


def _scratch_buffers(op: Op, storage: Storage) -> Iterable[Buffer]:
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None and t in storage.views]
    return dict.fromkeys(
        v.buffer for v in map(storage.views.__getitem__, tensors) if v.buffer.home is Home.SCRATCH
    )


def _reuse(op: Op, storage: Storage, number: dict[Buffer, int]) -> tuple[tuple[int, int], ...]:
    """(old, new) buffer pairs of an op that may work in place; only whole scratch buffers qualify."""
    pairs = []
    for t in in_place_operands(op):
        old, new = storage.views[t].buffer, storage.views[op.output].buffer
        if old.home is not Home.SCRATCH or new.home is not Home.SCRATCH or old is new:
            continue
        if storage.whole(t) and storage.whole(op.output) and old.nbytes == new.nbytes:
            pairs.append((number[old], number[new]))
    return tuple(dict.fromkeys(pairs))


def _doubtful(graph: Graph, storage: Storage) -> list[Op]:
    """Shared concatenations and slices, those with the largest buffers first."""
    shared = [
        op
        for op in graph.ops
        if op in storage.free_ops
        and can_share(op)
        and (op.kind is Builtin.CONCATENATION or slice_of(op) is not None)
    ]
    shared.sort(key=lambda op: -max(math.prod(t.shape) for t in (op.operand(0), op.output)))
    return shared[:SHARING_TRIALS]
