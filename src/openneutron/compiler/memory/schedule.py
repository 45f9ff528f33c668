"""The schedule: which operators run as kernels, in which order, and where every tensor lies while they do.

Ordering and placing work on plain numbers (`order.Job`, `place.Block`); this module makes them from a graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from openneutron.compiler.graph.shapes import slice_of
from openneutron.compiler.memory.cascade import CascadePlan, Overlap
from openneutron.compiler.memory.order import Job, Order, choose_order, peak_of, reused
from openneutron.compiler.memory.place import Apart, Block, Placement, aligned, place
from openneutron.compiler.memory.storage import Buffer, Home, Storage, can_share, ordered, share_storage
from openneutron.compiler.microcode.format import Step
from openneutron.compiler.select.by_rows import is_map, rows_of
from openneutron.compiler.select.select import rule_of
from openneutron.litert.ir import Builtin, Graph, Op, Tensor

SHARING_TRIALS = 8  # ops for which copying instead of sharing is tried; each costs one ordering


@dataclass(frozen=True)
class Schedule:
    """Operators that run, in order, and the memory they share."""

    steps: tuple[Op, ...]
    storage: Storage
    order: Order
    overwrites: dict[Buffer, Buffer]  # a buffer and the one whose place it takes
    copying: frozenset[Op] = frozenset()  # ops that could share memory but had better copy


@dataclass(frozen=True)
class Unit:
    """What runs as a whole: one step, or the steps of a cascade in their order."""

    first: int
    last: int
    cascade: CascadePlan | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """A schedule with an offset for every scratch buffer, and how good it is."""

    schedule: Schedule
    units: tuple[Unit, ...]
    offsets: dict[Buffer, int]
    rows: dict[Buffer, int]  # of rolling buffers
    sizes: dict[Buffer, int]  # of all buffers in scratch; of rolling ones, of the rows they hold
    lives: dict[Buffer, tuple[int, int]]  # first and last unit
    placement: Placement

    def ops(self, unit: Unit) -> tuple[Op, ...]:
        """The operators of a unit."""
        return self.schedule.steps[unit.first : unit.last + 1]

    def steps(self, cascade: CascadePlan) -> tuple[Step, ...]:
        """In which order a cascade makes its rows: upwards if its output lies above the input it overlaps."""
        if cascade.overlap is not None and cascade.up:
            source, out = self.offsets[cascade.overlap.source], self.offsets[cascade.overlap.output]
            if out > source - cascade.overlap.below:
                return cascade.up
        return cascade.down

    @property
    def scratch_bytes(self) -> int:
        """The scratch area: activations, and inputs and outputs where they are not the caller's."""
        return self.placement.nbytes

    @property
    def beyond_io_bytes(self) -> int:
        """Scratch beyond the inputs and outputs that lie in it."""
        return max(0, self.scratch_bytes - self.schedule.storage.ports_bytes)


def make_schedule(graph: Graph, arena: bool = False, may_copy: bool = True) -> Schedule:
    """Share storage and choose the order with the least peak; in an `arena`, of inputs and outputs too.

    Sharing nearly always saves, but a concatenation's buffer exists from the first part on, and a slice keeps
    the whole it is cut from; where copying gives a smaller peak, the op copies if it may.
    """
    best = _ordered(graph, frozenset(), arena)
    copying: frozenset[Op] = frozenset()
    for op in _doubtful(graph, best.storage) if may_copy else ():
        trial = _ordered(graph, copying | {op}, arena)
        if trial.order.peak < best.order.peak:
            best, copying = trial, copying | {op}
    return best


def with_given_order(graph: Graph, best: Schedule, arena: bool = False) -> list[Schedule]:
    """Orders worth a look when operators run in stripes: the one with the least peak, the graph's."""
    given = _ordered(graph, best.copying, arena, keep=True)
    return [best] if given.steps == best.steps else [best, given]


def plan_memory(
    schedule: Schedule,
    cascades: Sequence[CascadePlan] = (),
    solve: bool = True,
    trailing: Mapping[int, Overlap] | None = None,
) -> MemoryPlan:
    """Give every scratch buffer of the schedule an offset; `cascades` says which steps run as one.

    `trailing` are the overlaps of steps computed whole, by their number.
    """
    storage = schedule.storage
    units = _units(len(schedule.steps), cascades)
    rows = {buffer: count for c in cascades for buffer, count in c.rows.items()}
    lives = lives_of(storage, [schedule.steps[unit.first : unit.last + 1] for unit in units])
    numbers = {unit.first: number for number, unit in enumerate(units)}
    lives.update((c.sums, (numbers[c.first],) * 2) for c in cascades if c.sums is not None)
    ticks = list(accumulate((_bands(unit) for unit in units), initial=0))
    ticks.append(ticks[-1] + 1)  # when units begin, counted in bands
    for buffer in {buffer for c in cascades for band in c.bands for buffer in band.rings}:
        del lives[buffer]  # each band has its own place for it
    sizes = {b: rows[b] * _row_bytes(b, storage) if b in rows else b.nbytes for b in lives}
    blocks, group = _blocks(schedule, units, lives, sizes, ticks)
    apart = {
        (group[o.source], group[o.output]): Apart(-o.below, o.above)
        for o in (
            *(c.overlap for c in cascades),
            *(trailing[u.first] for u in units if u.cascade is None and trailing and u.first in trailing),
        )
        if o is not None
    }
    least = 0
    for number, unit in enumerate(units):
        if unit.cascade is None or not unit.cascade.bands:
            continue
        least = max(least, _add_bands(unit.cascade, ticks[number], blocks, group, apart))
        for ring in (ring for band in unit.cascade.bands for ring in band.rings.values()):
            lives[ring.buffer], sizes[ring.buffer] = (number, number), ring.buffer.nbytes
            rows[ring.buffer] = ring.rows
    placement = place(blocks, apart, solve, least)
    offsets = {buffer: placement.offsets[index] for buffer, index in group.items()}
    return MemoryPlan(schedule, units, offsets, rows, sizes, lives, placement)


def _blocks(
    schedule: Schedule,
    units: Sequence[Unit],
    lives: Mapping[Buffer, tuple[int, int]],
    sizes: Mapping[Buffer, int],
    ticks: Sequence[int],
) -> tuple[list[Block], dict[Buffer, int]]:
    """What is to be placed, and which block each buffer is in: what overwrites another shares its block."""
    blocks: list[Block] = []
    group: dict[Buffer, int] = {}
    for buffer, (first, last) in lives.items():  # in order of first use, so what is overwritten comes before
        begin, end = ticks[first] if first >= 0 else first, ticks[last + 1] - 1
        old = schedule.overwrites.get(buffer)
        if old is not None and units[first].cascade is None:
            group[buffer] = group[old]
            before = blocks[group[old]]
            blocks[group[old]] = Block(before.nbytes, before.first, max(before.last, end))
        else:
            group[buffer] = len(blocks)
            blocks.append(Block(aligned(sizes[buffer]), begin, end))
    return blocks, group


def _bands(unit: Unit) -> int:
    return max(1, len(unit.cascade.bands)) if unit.cascade else 1


def _add_bands(
    cascade: CascadePlan,
    tick: int,
    blocks: list[Block],
    group: dict[Buffer, int],
    apart: dict[tuple[int, int], Apart],
) -> int:
    """Add the rolling buffers of a cascade's bands, the first at `tick`; the bytes live at the worst of them.

    They may lie where the input is dead before their band, and where the output is not before the next.
    """
    overlap = cascade.overlap
    assert overlap is not None
    source, output = group[overlap.source], group[overlap.output]
    most = 0
    for number, band in enumerate(cascade.bands, tick):
        live = [b.nbytes for i, b in enumerate(blocks) if b.first <= number <= b.last and i != output]
        most = max(most, sum(live) - band.dead + aligned(band.made) + band.rings_bytes)
        for ring in band.rings.values():
            group[ring.buffer] = len(blocks)
            size = aligned(ring.buffer.nbytes)
            apart[source, len(blocks)] = Apart(band.dead - size, overlap.source.nbytes)
            apart[output, len(blocks)] = Apart(-size, band.made)
            blocks.append(Block(size, number, number))
    return most


def lives_of(storage: Storage, groups: Sequence[Sequence[Op]]) -> dict[Buffer, tuple[int, int]]:
    """The first and the last group of operators that touches each scratch buffer, in order of first use.

    Inputs in scratch are there before group 0, outputs behind the last.
    """
    lives = dict.fromkeys(storage.given, (-1, -1))
    for number, ops in enumerate(groups):
        for op in ops:
            for buffer in scratch_buffers(op, storage):
                lives[buffer] = (lives.get(buffer, (number, number))[0], number)
    end = len(groups)
    lives.update((buffer, (lives.get(buffer, (end, end))[0], end)) for buffer in storage.kept)
    return lives


def _units(steps: int, cascades: Sequence[CascadePlan]) -> tuple[Unit, ...]:
    starts = {c.first: c for c in cascades}
    units: list[Unit] = []
    at = 0
    while at < steps:
        cascade = starts.get(at)
        last = cascade.last if cascade else at
        units.append(Unit(at, last, cascade))
        at = last + 1
    return tuple(units)


def _row_bytes(buffer: Buffer, storage: Storage) -> int:
    """Bytes of a row of the maps in a buffer."""
    maps = (t for t, view in storage.places.items() if view.buffer is buffer and is_map(t))
    return buffer.nbytes // rows_of(next(maps))


def in_place_operands(op: Op) -> list[Tensor]:
    """Inputs whose memory the output may take: kernels that read each element before they write it."""
    rule = rule_of(op)
    if rule is not None and rule.updates:
        return [] if op.operand(0).is_const or op.operand(0) in op.inputs[1:] else [op.operand(0)]
    if rule is None or not rule.in_place:
        return []
    return [t for t in op.inputs if t is not None and not t.is_const and t.elements == op.output.elements]


def _ordered(graph: Graph, copying: frozenset[Op], arena: bool, keep: bool = False) -> Schedule:
    """The schedule with the best order, or with the graph's own; some ops copy instead of sharing memory."""
    storage = share_storage(graph, lambda op: op not in copying, arena)
    in_order = graph.ops
    if graph.states:
        uses = storage.state_uses(graph.ops)
        by_use = ordered(graph.ops, storage.free_ops, *uses)
        assert by_use is not None, "a state would be overwritten before it is read"
        in_order = by_use
    steps = [op for op in in_order if op not in storage.free_ops]
    buffers = [b for b in storage.buffers if b.home is Home.SCRATCH]
    number = {buffer: i for i, buffer in enumerate(buffers)}
    made_by = _makers(in_order, storage, steps)
    waits = _overwriting(storage, steps) if graph.states else {}
    # A job before all steps and one behind them: inputs are there first, outputs are there last.
    jobs = [Job((), tuple(sorted(number[b] for b in storage.given)))]
    for op in steps:
        needs = {0} | {n + 1 for t in op.inputs if t is not None for n in made_by.get(t, ())}
        needs |= {n + 1 for n in waits.get(op, ())}
        touches = tuple(sorted(number[b] for b in scratch_buffers(op, storage)))
        jobs.append(Job(tuple(sorted(needs)), touches, _reuse(op, storage, number)))
    jobs.append(Job(tuple(range(len(jobs))), tuple(sorted(number[b] for b in storage.kept))))
    sizes = [aligned(b.nbytes) for b in buffers]
    if keep:
        given = tuple(range(len(jobs)))
        order = Order(given, peak_of(jobs, sizes, given), False)
    else:
        order = choose_order(jobs, sizes)
    overwrites = {buffers[new]: buffers[old] for new, old in reused(jobs, order.sequence).items()}
    return Schedule(tuple(steps[i - 1] for i in order.sequence[1:-1]), storage, order, overwrites, copying)


def _overwriting(storage: Storage, steps: list[Op]) -> dict[Op, set[int]]:
    """For each step that overwrites a state, the steps that read what it was before."""
    number = {op: i for i, op in enumerate(steps)}
    reads, writes = storage.state_uses(steps)
    return {
        writer: {number[op] for op in reads.get(state, ()) if op is not writer}
        for state, writers in writes.items()
        for writer in writers
    }


def _makers(ops: Sequence[Op], storage: Storage, steps: list[Op]) -> dict[Tensor, frozenset[int]]:
    """The steps that must have run before a tensor holds its value; free ops hand on their inputs'."""
    number = {op: i for i, op in enumerate(steps)}
    result: dict[Tensor, frozenset[int]] = {}
    for op in ops:
        if op in storage.free_ops:
            makers = frozenset(n for t in op.inputs if t is not None for n in result.get(t, ()))
        else:
            makers = frozenset({number[op]})
        result.update((t, makers) for t in op.outputs)
    return result


def scratch_buffers(op: Op, storage: Storage) -> Iterable[Buffer]:
    """The scratch buffers an operator reads or writes."""
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None and t in storage.places]
    return dict.fromkeys(
        v.buffer for v in map(storage.places.__getitem__, tensors) if v.buffer.home is Home.SCRATCH
    )


def _reuse(op: Op, storage: Storage, number: dict[Buffer, int]) -> tuple[tuple[int, int], ...]:
    """(old, new) buffer pairs of an op that may work in place; only whole scratch buffers qualify."""
    pairs = []
    for t in in_place_operands(op):
        old, new = storage.places[t].buffer, storage.places[op.output].buffer
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
