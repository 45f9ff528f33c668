"""What kernel calls read and write, from their addresses: the memory map of a bare microcode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from openneutron.compiler.memory.place import aligned
from openneutron.compiler.microcode import format as mc


def _refs(value: Any) -> Iterator[tuple[str, mc.Ref]]:
    """The activations a call refers to, with the fields' names."""
    for item in fields(value):
        inner = getattr(value, item.name)
        if isinstance(inner, mc.Ref):
            if inner.region in (mc.Region.INPUT, mc.Region.OUTPUT, mc.Region.SCRATCH):
                yield item.name, inner
        elif isinstance(inner, mc.View):
            yield item.name, inner.ref
        elif is_dataclass(inner):
            yield from _refs(inner)


def reads(call: mc.KernelCall) -> list[mc.Ref]:
    """The activations a call reads."""
    return [ref for name, ref in _refs(call) if name != "output"]


def writes(call: mc.KernelCall) -> list[mc.Ref]:
    """The activations a call writes."""
    return [ref for name, ref in _refs(call) if name == "output"]


def buffers(calls: Sequence[mc.KernelCall]) -> list[dict[str, Any]]:
    """The memory map: what each call writes, until it is read last or overwritten; prefetched weights too.

    What a stage of a cascade or the body of a loop writes or reads is needed while all of it runs.
    """
    begins, ends = _units(calls)
    spans = [
        [(r.offset, r.offset + call.written()) for r in writes(call) if r.region == mc.Region.SCRATCH]
        for call in calls
    ]
    result = []
    for first, call in enumerate(calls):
        rings = [r.rows for r in writes(call) if r.region == mc.Region.SCRATCH]
        for (begin, end), rows in zip(spans[first], rings, strict=True):
            last = first
            for later in range(first + 1, len(calls)):
                if any(begin <= r.offset < end for r in reads(calls[later]) if r.region == mc.Region.SCRATCH):
                    last = later
                if any(b < end and begin < e for b, e in spans[later]):
                    break
            life = begins[first], ends[last]
            result.append(_buffer(f"scratch+{begin}", "scratch", begin, end - begin, *life, rows))
        if isinstance(call, mc.Prefetch):
            at = call.destination.offset
            last = next((i for i in range(first, len(calls)) if _uses(calls[i], at, call.size)), first)
            result.append(_buffer(f"prefetch+{at}", "prefetch", at, call.size, first, ends[last]))
    return result


def _units(calls: Sequence[mc.KernelCall]) -> tuple[list[int], list[int]]:
    """For each call the first and the last call of the cascade or loop it belongs to, mostly itself."""
    begins, ends = list(range(len(calls))), list(range(len(calls)))
    for index, call in enumerate(calls):
        if isinstance(call, mc.Cascade | mc.Loop):
            inside = call.stages if isinstance(call, mc.Cascade) else call.body
            stop = min(index + inside + 1, len(calls))
            begins[index:stop], ends[index:stop] = [index] * (stop - index), [stop - 1] * (stop - index)
    return begins, ends


def _uses(call: Any, begin: int, size: int) -> bool:
    refs = (getattr(call, item.name) for item in fields(call) if not isinstance(call, mc.Prefetch))
    return any(
        isinstance(ref, mc.Ref) and ref.region == mc.Region.PREFETCH and begin <= ref.offset < begin + size
        for ref in refs
    )


def _buffer(
    name: str, region: str, offset: int, nbytes: int, first: int, last: int, rows: int = 0
) -> dict[str, Any]:
    return {
        "name": name, "region": region, "offset": offset, "nbytes": aligned(nbytes),
        "first": first, "last": last, "tensors": [], "rows": rows,
    }  # fmt: skip
