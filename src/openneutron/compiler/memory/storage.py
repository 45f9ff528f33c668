"""Which tensors share memory: the graph's tensors as views of buffers, before any order or offset is chosen.

A reshape, a contiguous slice and a concatenation along the outermost axis need not move a byte: the output
of the first two is a view of their input, and the inputs of the last are views of its output. Along the
channels these views have gaps, which the kernels of convolutions, pools and element-wise operators can take.
Program inputs and outputs live in the caller's buffers, or in an arena with everything else; what is not the
caller's is a scratch buffer the planner will place. What the program remembers has memory of its own, which
is overwritten when nobody reads the old values any more; what is written there is computed there if it can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np

from openneutron.compiler.graph import shifts
from openneutron.compiler.graph.shapes import concat_axis, slice_of
from openneutron.compiler.graph.tables import IDENTITY, is_table
from openneutron.compiler.microcode.format import ALIGNMENT
from openneutron.compiler.select.context import Gaps
from openneutron.compiler.select.select import rule_of
from openneutron.litert.ir import DTYPES, Builtin, Graph, Op, Tensor


class Home(Enum):
    """Who owns a buffer's memory."""

    SCRATCH = "scratch"
    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"


@dataclass(frozen=True)
class Buffer:
    """A contiguous piece of memory that holds one or more tensors at fixed offsets."""

    home: Home
    number: int  # which input, output or state; for scratch, a running number
    nbytes: int
    name: str  # of the tensor that gives it its size


@dataclass(frozen=True)
class Place:
    """Where a tensor lies inside a buffer."""

    buffer: Buffer
    offset: int
    pitch: int = 0  # bytes from one run of the last axis to the next; 0 for a tensor without gaps


@dataclass(frozen=True, eq=False)
class Storage:
    """Every activation tensor's view, and the ops that need no kernel: their output is already there."""

    places: dict[Tensor, Place]
    free_ops: frozenset[Op]
    given: tuple[Buffer, ...] = ()  # scratch buffers that hold inputs of the program: there before it starts
    kept: tuple[Buffer, ...] = ()  # scratch buffers that hold outputs of it: there when it is done
    ports_bytes: int = 0  # of the inputs and outputs in scratch
    old: frozenset[Tensor] = frozenset()  # what lies in a state's memory before a run overwrites it

    @property
    def buffers(self) -> list[Buffer]:
        """Every buffer once, in order of appearance."""
        return list(dict.fromkeys(view.buffer for view in self.places.values()))

    @cached_property
    def state_offsets(self) -> dict[Buffer, int]:
        """Where each state lies in the memory for states."""
        states = sorted((b for b in self.buffers if b.home is Home.STATE), key=lambda b: b.number)
        offsets, at = {}, 0
        for buffer in states:
            offsets[buffer] = at
            at = -(-(at + buffer.nbytes) // ALIGNMENT) * ALIGNMENT
        return offsets

    @property
    def state_bytes(self) -> int:
        """The memory for states."""
        return max(
            (-(-(at + b.nbytes) // ALIGNMENT) * ALIGNMENT for b, at in self.state_offsets.items()), default=0
        )

    def state_uses(self, steps: Sequence[Op]) -> tuple[dict[int, set[Op]], dict[int, set[Op]]]:
        """By the number of a state: the steps that read its old values, and those that write new ones."""
        return _state_uses(steps, {t: view.buffer for t, view in self.places.items()}, self.old)

    def is_given(self, tensor: Tensor | None) -> bool:
        """Whether a tensor is an input of the program, or lies in one."""
        view = None if tensor is None else self.places.get(tensor)
        return view is not None and (view.buffer.home is Home.INPUT or view.buffer in self.given)

    def whole(self, tensor: Tensor) -> bool:
        """Whether the tensor fills its buffer: only such a tensor may be overwritten as a whole."""
        view = self.places[tensor]
        return view.offset == 0 and tensor.nbytes == view.buffer.nbytes and not view.pitch


@dataclass(eq=False)
class _Class:
    """Tensors at fixed distances from one another while the classes are being merged."""

    home: Home
    number: int
    nbytes: int
    name: str
    members: dict[Tensor, int] = field(default_factory=dict)
    pitches: dict[Tensor, int] = field(default_factory=dict)  # of those with gaps
    is_returned: bool = False  # an output of the program is in it


def share_storage(
    graph: Graph, may_share: Callable[[Op], bool] = lambda op: True, arena: bool = False
) -> Storage:
    """Merge tensors that can be views of one another; an op for which `may_share` is false moves its data.

    With `arena` the program's inputs and outputs are scratch buffers too.
    """
    classes: dict[Tensor, _Class] = {}
    for index, (_, t, _) in enumerate(graph.state_tensors()):
        classes[t] = _Class(Home.STATE, index, t.nbytes, t.name, {t: 0})
    for index, t in enumerate(graph.given):
        classes[t] = _Class(Home.SCRATCH if arena else Home.INPUT, index, t.nbytes, t.name, {t: 0})
    numbers = {t: i for i, t in reversed(list(enumerate(graph.returned)))}
    for op in graph.ops:
        for t in op.outputs:
            home = Home.OUTPUT if t in numbers and not arena else Home.SCRATCH
            number = numbers[t] if home is Home.OUTPUT else 0
            classes[t] = _Class(home, number, t.nbytes, t.name, {t: 0}, is_returned=t in numbers)

    spread = _spreadable(graph)
    assigns = assignments(graph)
    free = {op for op in graph.ops if op not in assigns and may_share(op) and _try_merge(op, classes, spread)}
    old = frozenset(t for cls in classes.values() if cls.home is Home.STATE for t in cls.members)
    free |= _assign_in_place(graph, assigns, classes, free, old)
    buffers: dict[_Class, Buffer] = {}
    for cls in dict.fromkeys(classes.values()):
        number = len(buffers) if cls.home is Home.SCRATCH else cls.number
        buffers[cls] = Buffer(cls.home, number, cls.nbytes, cls.name)
    places = {t: Place(buffers[cls], cls.members[t], cls.pitches.get(t, 0)) for t, cls in classes.items()}
    given, kept = (
        tuple(dict.fromkeys(places[t].buffer for t in ports)) if arena else ()
        for ports in (graph.given, graph.returned)
    )
    ports_bytes = sum(t.nbytes for t in (*graph.given, *graph.returned)) if arena else 0
    return Storage(places, frozenset(free), given, kept, ports_bytes, old)


def assignments(graph: Graph) -> dict[Op, Tensor]:
    """The copies that write states (`fuse.separate_outputs` makes them), with the tensor each overwrites."""
    producers = graph.producers()
    return {producers[new]: old for _, old, new in graph.state_tensors()}


def _assign_in_place(
    graph: Graph,
    assigns: dict[Op, Tensor],
    classes: dict[Tensor, _Class],
    free: set[Op],
    old: frozenset[Tensor],
) -> set[Op]:
    """Let what a state becomes be computed in the state's memory where nothing reads the old values later.

    All others are copied there. Returns the copies that are not needed.
    """
    done: set[Op] = set()
    ports = {*graph.given, *graph.returned}
    for op, state in assigns.items():  # first of all: each is a write that may have to wait
        classes[state].members[op.output] = 0
        classes[op.output] = classes[state]
    for op, state in assigns.items():
        value, target = op.operand(0), classes[state]
        members = dict(classes[value].members) if value in classes else {}
        fits = value in classes and _is_guest(value, classes) and ports.isdisjoint(members)
        if fits and not _reads_and_writes(graph, members, state, classes):
            moved = classes[value]
            trial = {**classes, **dict.fromkeys(members, target)}
            if ordered(graph.ops, free | done | {op}, *_state_uses(graph.ops, trial, old)) is not None:
                target.members.update(members)
                target.pitches.update(moved.pitches)
                classes.update(dict.fromkeys(members, target))
                done.add(op)
    return done


def _reads_and_writes(
    graph: Graph, members: dict[Tensor, int], state: Tensor, classes: dict[Tensor, _Class]
) -> bool:
    """Whether an operator would read a state while it writes it, and does not work in place."""
    target = classes[state]
    for op in graph.ops:
        if not any(t in members for t in op.outputs):
            continue
        read = [t for t in op.inputs if t is not None and t in target.members]
        rule = rule_of(op)
        exact = all(target.members[t] == members[op.outputs[0]] and t not in target.pitches for t in read)
        whole = all(t.nbytes == op.outputs[0].nbytes for t in read)
        works = rule is not None and (rule.in_place or (rule.updates and read == [op.operand(0)]))
        if read and not (works and exact and whole):
            return True
    return False


def _state_uses(
    ops: Sequence[Op], places: Mapping[Tensor, _Class | Buffer], old: frozenset[Tensor]
) -> tuple[dict[int, set[Op]], dict[int, set[Op]]]:
    reads: dict[int, set[Op]] = {}
    writes: dict[int, set[Op]] = {}
    for op in ops:
        for t in op.inputs:
            if t is not None and t in old:
                reads.setdefault(places[t].number, set()).add(op)
        for t in op.outputs:
            if places[t].home is Home.STATE and t not in old:
                writes.setdefault(places[t].number, set()).add(op)
    return reads, writes


def ordered(
    ops: Sequence[Op], free: Collection[Op], reads: dict[int, set[Op]], writes: dict[int, set[Op]]
) -> list[Op] | None:
    """The operators so that none overwrites a state that another still reads; None if there is no such order.

    What reads a view (an output of a free operator) reads what that is a view of.
    """
    before: dict[Op, set[Op]] = {op: set() for op in ops}
    maker = {t: op for op in ops for t in op.outputs}
    for op in ops:
        before[op] |= {maker[t] for t in op.inputs if t in maker}
    for number, writers in writes.items():
        readers = reads.get(number, set()) - set(free)
        for writer in writers - set(free):
            before[writer] |= readers - {writer}
    result: list[Op] = []
    waiting = dict.fromkeys(ops)
    while waiting:
        ready = next((op for op in waiting if not any(b in waiting for b in before[op])), None)
        if ready is None:
            return None
        result.append(ready)
        del waiting[ready]
    return result


def can_share(op: Op) -> bool:
    """Whether an op is of the kind that may need no kernel (it still depends on where its operands live)."""
    return bool(_placements(op)) or bool(_spread_placements(op))


def _placements(op: Op) -> list[tuple[Tensor, Tensor, int]]:
    """`(guest, host, offset)`: what must hold for an op to be free, in bytes; nothing if it never can be."""
    if _keeps_bytes(op):
        return [(op.output, op.operand(0), 0)]
    if (box := slice_of(op)) is not None:
        source, out = op.operand(0), op.output
        if box.is_contiguous(source.shape):
            return [(out, source, box.flat_begin(source.shape) * DTYPES[out.dtype])]
        return []
    if op.kind is Builtin.CONCATENATION:
        axis, out = concat_axis(op), op.output
        if math.prod(out.shape[:axis]) != 1:
            return []
        result, offset = [], 0
        for t in op.inputs:
            assert t is not None
            result.append((t, out, offset))
            offset += t.nbytes
        return result
    if op.key == shifts.APPEND:
        part, axis, out = op.operand(1), op.options["axis"], op.output
        dense = math.prod(out.shape[:axis]) == 1
        offset = op.options["at"] * math.prod(part.shape[axis + 1 :]) * DTYPES[part.dtype]
        return [(op.operand(0), out, 0), *([(part, out, offset)] if dense else [])]
    return []


def _spreadable(graph: Graph) -> frozenset[Tensor]:
    """Tensors that may have gaps: 4-D int8 ones that all their readers and their maker can take so."""
    producers, readers, outputs = graph.producers(), graph.consumers(), set(graph.outputs)

    def may(t: Tensor) -> bool:
        maker = producers.get(t)
        if t.rank != 4 or t.dtype != "int8" or t in outputs or maker is None:
            return False
        if _gaps(maker) is not Gaps.BOTH or (maker.kind in _VIEWED and maker.operand(0).is_const):
            return False
        return all(_gaps(op) is not Gaps.NONE for op in readers.get(t, ()))

    return frozenset(t for op in graph.ops for t in op.outputs if may(t))


def _gaps(op: Op) -> Gaps:
    rule = rule_of(op)
    return Gaps.NONE if rule is None else rule.gaps


_VIEWED = (Builtin.SLICE, Builtin.CONCATENATION)


def _spread_placements(op: Op) -> list[tuple[Tensor, Tensor, int]]:
    """`(guest, host, offset)` of an op along the last axis: guests' runs are as far apart as the host's."""
    if op.kind not in _VIEWED or op.output.rank != 4 or op.output.dtype != "int8":
        return []
    if (box := slice_of(op)) is not None:
        source = op.operand(0)
        if box.size[:3] != source.shape[:3] or any(box.begin[:3]):
            return []
        return [(op.output, source, box.begin[3])]
    if op.kind is Builtin.CONCATENATION and concat_axis(op) == 3:
        result, offset = [], 0
        for index in range(len(op.inputs)):
            result.append((op.operand(index), op.output, offset))
            offset += op.operand(index).shape[3]
        return result
    return []


def _try_spread(op: Op, classes: dict[Tensor, _Class], spread: frozenset[Tensor]) -> bool:
    """Merge the classes of an op along the last axis; all of its placements hold, or nothing changes."""
    placements = _spread_placements(op)
    if not placements or any(t not in classes for pair in placements for t in pair[:2]):
        return False
    guests = [classes[guest] for guest, _, _ in placements]
    if len(set(guests)) != len(guests) or {classes[host] for _, host, _ in placements} & set(guests):
        return False
    for guest, _, _ in placements:
        cls = classes[guest]
        if not _is_guest(guest, classes):
            return False
        for t, at in cls.members.items():  # whatever lies in the guest must be made of runs of its last axis
            run = cls.pitches.get(t, t.shape[-1] if t.shape else 0)
            if t not in spread or run != guest.shape[3] or at >= guest.shape[3]:
                return False
    for guest, host, offset in placements:
        moved, target = classes[guest], classes[host]
        base, pitch = target.members[host] + offset, target.pitches.get(host, host.shape[3])
        for t, at in moved.members.items():
            target.members[t], target.pitches[t] = base + at, pitch
            classes[t] = target
    return True


def _keeps_bytes(op: Op) -> bool:
    """Whether the output is the input's bytes, all of them, in order."""
    if is_table(op):
        return np.array_equal(op.operand(1).array, IDENTITY)
    return op.kind is Builtin.RESHAPE


def _try_merge(op: Op, classes: dict[Tensor, _Class], spread: frozenset[Tensor]) -> bool:
    """Merge the classes of a free op; all of its placements hold, or nothing changes."""
    placements = _placements(op)
    if not placements:
        return _try_spread(op, classes, spread)
    if op.key == shifts.APPEND:  # what is shifted is the window in any case, and nobody else reads it
        return _merge(placements[:1], classes) and placements[1:] != [] and _merge(placements[1:], classes)
    if _keeps_bytes(op):
        guest, host, _ = placements[0]
        if not _is_guest(guest, classes):
            placements = [(host, guest, 0)]  # a view works both ways: the input may move into the output
    return _merge(placements, classes)


def _merge(placements: list[tuple[Tensor, Tensor, int]], classes: dict[Tensor, _Class]) -> bool:
    """Merge the classes of tensors that lie in others; all of the placements hold, or nothing changes."""
    if any(t not in classes for pair in placements for t in pair[:2]):
        return False  # a constant operand has to be copied in
    guests = [classes[guest] for guest, _, _ in placements]
    hosts = {classes[host] for _, host, _ in placements}
    if len(set(guests)) != len(guests) or hosts & set(guests):
        return False
    if not all(_is_guest(guest, classes) for guest, _, _ in placements):
        return False
    if any(host in classes[host].pitches for _, host, _ in placements):
        return False  # a view without gaps of something with gaps
    for _, host, _ in placements:
        if classes[host].home is Home.STATE and any(cls.is_returned for cls in guests):
            return False  # an output stays as it is when the state is overwritten
    for guest, host, offset in placements:
        moved, target = classes[guest], classes[host]
        base = target.members[host] + offset
        for t, at in moved.members.items():
            target.members[t] = base + at
            classes[t] = target
        target.pitches.update(moved.pitches)
        target.is_returned |= moved.is_returned
    return True


def _is_guest(tensor: Tensor, classes: dict[Tensor, _Class]) -> bool:
    """A tensor can move into another buffer if it is the whole of a scratch buffer."""
    cls = classes[tensor]
    dense = cls.members[tensor] == 0 and tensor not in cls.pitches
    return cls.home is Home.SCRATCH and dense and cls.nbytes == tensor.nbytes
