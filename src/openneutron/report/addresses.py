"""What kernel calls read and write, from their addresses: the memory map of a bare microcode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from math import prod
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


def written_bytes(call: Any) -> int:
    """Bytes from the first to the last one that a call writes."""
    if (window := getattr(call, "window", None)) is not None:
        view = call.output
        rows = view.ref.rows or window.out_h
        inner = view.pixel * (window.out_w - 1) + window.out_c
        return int((window.batch * rows - 1) * view.row + inner)
    if (walk := getattr(call, "walk", None)) is not None:
        rows = walk.output.rows or walk.dims[0]  # of a stage of a cascade, the outermost dimension is rows
        return _span((rows, *walk.dims[1:]), walk.output_strides, 1)
    if isinstance(call, mc.Copy | mc.Fill):
        return _span(call.dims, call.output_strides, call.element_bytes)
    if isinstance(call, mc.Table):
        return ((call.output.rows or call.rows) - 1) * call.output_pitch + call.length
    sizes: dict[type, Any] = {
        mc.FullyConnected: lambda: call.rows * call.out_features,
        mc.BatchMatmul: lambda: prod(call.batch) * call.m * call.n,
        mc.ReduceSum: lambda: prod(call.kept),
        mc.ReduceExtremum: lambda: prod(call.kept),
        mc.ResizeBilinear: lambda: call.batch * call.out_h * call.out_w * call.channels,
        mc.ArgMax: lambda: call.outer * call.inner * call.index_bytes,
        mc.Softmax: lambda: call.rows * call.depth,
        mc.Gather: lambda: prod(call.dims) * call.run,
        mc.Quantize: lambda: call.count,
        mc.Dequantize: lambda: 4 * call.count,
    }
    return int(sizes[type(call)]()) if type(call) in sizes else 0


def _span(dims: Sequence[int], strides: Sequence[int], element: int) -> int:
    return sum((d - 1) * abs(s) for d, s in zip(dims, strides, strict=True)) + element


def buffers(calls: Sequence[mc.KernelCall]) -> list[dict[str, Any]]:
    """The memory map: what each call writes, until it is read last or overwritten; prefetched weights too.

    What a stage of a cascade writes or reads is needed while the whole cascade runs.
    """
    begins, ends = _units(calls)
    spans = [
        [(r.offset, r.offset + written_bytes(call)) for r in writes(call) if r.region == mc.Region.SCRATCH]
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
    """For each call the first and the last call of the cascade it belongs to, which mostly is itself."""
    begins, ends = list(range(len(calls))), list(range(len(calls)))
    for index, call in enumerate(calls):
        if isinstance(call, mc.Cascade):
            stop = min(index + call.stages + 1, len(calls))
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
