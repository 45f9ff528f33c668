"""Loops: calls that repeat others on addresses that move on by the same distance are written down once.

Unrolled steps of a recurrent layer are the same kernels with the same parameters and constants, while their
inputs and outputs move through the sequence. A run of such repetitions becomes one LOOP record and the calls
of its first turn. What a call computes and where it writes stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from openneutron.compiler.emit.result import BufferInfo, CallInfo
from openneutron.compiler.microcode.cost import Bound, Cost, repeated
from openneutron.compiler.microcode.format import (
    MAX_STAGES,
    MAX_TIMES,
    Cascade,
    KernelCall,
    Loop,
    Move,
    Prefetch,
    Ref,
    Region,
    Wait,
    addresses_of,
    pack,
)

LEAST_TIMES = 4
LEAST_SAVED = 512  # bytes; a short repetition is easier to read as it is
_MOVING = (Region.INPUT, Region.OUTPUT, Region.SCRATCH, Region.STATE)


@dataclass(frozen=True)
class Repeat:
    """A run of calls: `times` turns of `length` calls each, from call `first` on."""

    first: int
    length: int
    times: int

    @property
    def end(self) -> int:
        """One past the last call."""
        return self.first + self.length * self.times


def roll(
    calls: Sequence[CallInfo], buffers: Sequence[BufferInfo]
) -> tuple[tuple[CallInfo, ...], tuple[BufferInfo, ...]]:
    """The calls with loops in the place of what repeats, and the memory map in their numbers."""
    repeats = find_repeats([info.call for info in calls])
    if not repeats:
        return tuple(calls), tuple(buffers)
    rolled: list[CallInfo] = []
    at = 0
    for repeat in repeats:
        rolled += calls[at : repeat.first]
        rolled += _loop(calls, repeat)
        at = repeat.end
    rolled += calls[at:]
    return tuple(rolled), _renumbered(buffers, repeats)


def find_repeats(calls: Sequence[KernelCall]) -> list[Repeat]:
    """Every run worth a loop, one behind the other; from each call on the one that saves most."""
    numbers: dict[Any, int] = {}
    kinds: list[int] = []  # the same for calls that differ in nothing but addresses; -1: never in a loop
    places: list[tuple[int, ...]] = []
    sizes: list[int] = []
    for call in calls:
        kind, offsets, size = _without_addresses(call)
        kinds.append(-1 if kind is None else numbers.setdefault(kind, len(numbers)))
        places.append(offsets)
        sizes.append(size)
    behind = _inside_cascades(calls)
    result = []
    at = 0
    while at < len(calls):
        repeat = None if behind[at] else _best(at, kinds, places, sizes)
        if repeat is not None:
            result.append(repeat)
        at = at + 1 if repeat is None else repeat.end
    return result


def _inside_cascades(calls: Sequence[KernelCall]) -> list[bool]:
    result = [False] * len(calls)
    for index, call in enumerate(calls):
        if isinstance(call, Cascade):
            result[index : index + 1 + call.stages] = [True] * (1 + call.stages)
    return result


def _without_addresses(call: KernelCall) -> tuple[Any, tuple[int, ...], int]:
    """What a call is wherever its activations lie, where they lie, and the bytes of its record."""
    if isinstance(call, Cascade | Prefetch | Wait):
        return None, (), 0
    raw = bytearray(pack(call))
    offsets = []
    for path, at in addresses_of(type(call)):
        if _ref(call, path).region in _MOVING:
            offsets.append(_ref(call, path).offset)
            raw[at + 4 : at + 8] = bytes(4)
    return (call.kernel, bytes(raw)), tuple(offsets), 4 + len(raw)


def _ref(call: KernelCall, path: str) -> Ref:
    ref: Ref = reduce(getattr, path.split("."), call)  # type: ignore[assignment]
    return ref


def _best(
    first: int, kinds: Sequence[int], places: Sequence[tuple[int, ...]], sizes: Sequence[int]
) -> Repeat | None:
    best, most = None, LEAST_SAVED
    for length in range(1, min(MAX_STAGES, (len(kinds) - first) // LEAST_TIMES) + 1):
        if kinds[first] < 0 or kinds[first + length] != kinds[first]:
            continue
        times = min(_turns(first, length, kinds, places), MAX_TIMES)
        saved = (times - 1) * sum(sizes[first : first + length])
        if times >= LEAST_TIMES and saved > most:
            best, most = Repeat(first, length, times), saved
    return best


def _turns(first: int, length: int, kinds: Sequence[int], places: Sequence[tuple[int, ...]]) -> int:
    """How many turns of `length` calls are the same but for addresses that move on steadily."""
    at = first
    while at + length < len(kinds) and kinds[at] == kinds[at + length] and kinds[at] >= 0:
        if at - first >= length and _way(places, at, length) != _way(places, at - length, length):
            break
        at += 1
    return (at - first) // length + 1


def _way(places: Sequence[tuple[int, ...]], at: int, length: int) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(places[at], places[at + length], strict=True))


def _loop(calls: Sequence[CallInfo], repeat: Repeat) -> Iterator[CallInfo]:
    """The record of a loop and the calls of its body, with what all turns are for."""
    turns = [calls[begin : begin + repeat.length] for begin in range(repeat.first, repeat.end, repeat.length)]
    moves = tuple(
        Move(number, at, stride)
        for number, (here, there) in enumerate(zip(turns[0], turns[1], strict=True))
        for path, at in addresses_of(type(here.call))
        if (stride := _ref(there.call, path).offset - _ref(here.call, path).offset)
    )
    body = [_all_turns(same) for same in zip(*turns, strict=True)]
    yield CallInfo(
        Loop(len(body), repeat.times, len(moves), moves),
        "LOOP",
        tuple(dict.fromkeys(name for info in body for name in info.origin)),
        tuple(dict.fromkeys(name for info in body for name in info.reads)),
        body[-1].writes,
        Cost(0, 0, 0, Bound.OVERHEAD),
    )
    yield from body


def _all_turns(same: Sequence[CallInfo]) -> CallInfo:
    def every(names: Callable[[CallInfo], tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for info in same for name in names(info)))

    return replace(
        same[0],
        origin=every(lambda info: info.origin),
        reads=every(lambda info: info.reads),
        writes=every(lambda info: info.writes),
        cost=repeated(same[0].cost, len(same)),
    )


@dataclass(frozen=True)
class _Place:
    """Where a call has gone: its new number; in a loop also which turn it was in, and the loop's calls."""

    number: int
    turn: int = 0
    loop: tuple[int, int] | None = None  # the record's number and the last call's


def _renumbered(buffers: Sequence[BufferInfo], repeats: Sequence[Repeat]) -> tuple[BufferInfo, ...]:
    """The memory map with calls as they are numbered now; what all turns hold at one place is there once."""
    shifts: list[tuple[Repeat, int]] = []
    removed = 0
    for repeat in repeats:
        shifts.append((repeat, repeat.first - removed))
        removed += repeat.length * (repeat.times - 1) - 1

    def find(call: int) -> _Place:
        lost = 0
        for repeat, begin in shifts:
            if call < repeat.first:
                break
            if call < repeat.end:
                turn, number = divmod(call - repeat.first, repeat.length)
                return _Place(begin + 1 + number, turn, (begin, begin + repeat.length))
            lost += repeat.length * (repeat.times - 1) - 1
        return _Place(call - lost)

    last_turns = {begin: repeat.times - 1 for repeat, begin in shifts}
    merged: dict[tuple[Any, ...], BufferInfo] = {}
    for buffer in buffers:
        for first, last in _lives(find(buffer.first_call), find(buffer.last_call), last_turns):
            key = (buffer.region, buffer.offset, buffer.nbytes, buffer.rows, first, last)
            same = merged.get(key)
            tensors = buffer.tensors if same is None else same.tensors + buffer.tensors
            name = buffer.name if same is None else same.name
            merged[key] = replace(buffer, name=name, first_call=first, last_call=last, tensors=tensors)
    return tuple(merged.values())


def _lives(first: _Place, last: _Place, last_turns: dict[int, int]) -> list[tuple[int, int]]:
    """From which call to which a buffer is held; from turn to turn that is at both ends of the loop."""
    if first.loop is not None and first.loop == last.loop and last.turn - first.turn <= 1:
        begin, end = first.loop
        if first.turn == last.turn:
            return [(first.number, last.number)]
        return (
            [(begin, end)] if first.number <= last.number + 1 else [(begin, last.number), (first.number, end)]
        )
    start, stop = first.number, last.number
    if first.loop is not None and first.turn < last_turns[first.loop[0]]:
        start = first.loop[0]
    if last.loop is not None and last.turn > 0:
        stop = last.loop[1]
    return [(start, stop)]
