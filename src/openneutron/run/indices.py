"""Inputs of a program that are indices, and how large they may be: what is read from the program itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openneutron.compiler.microcode import format as mc
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.package.payload import Payload
from openneutron.package.pte import MethodInfo
from openneutron.run.program_steps import ProgramStep, program_steps

_EMBEDDING = "aten::embedding.out"


def index_limits(data: bytes, info: MethodInfo, where: str) -> list[int | None]:
    """For each input of a method, one more than the largest index it may hold; None for what is no index."""
    payloads = [d.payload(where) if d.is_neutron else None for d in info.delegates]
    counts = [0 if p is None else p.input_args for p in payloads]
    steps = program_steps(data, {info.name: counts}, where)[info.name]
    limits: dict[tuple[int, ...], int] = {}
    written: set[tuple[int, ...]] = set()  # what lies there is no input any more
    for step in steps.steps:
        for place, limit in _limits_of(step, payloads):
            if place not in written:
                limits[place] = min(limit, limits.get(place, limit))
        read = {tensor.place for tensor in step.inputs}  # a view is written where it is read
        written |= {tensor.place for tensor in step.outputs} - read
    places = iter(steps.inputs)
    return [None if spec is None else limits.get(next(places).place) for spec in info.inputs]


def _limits_of(step: ProgramStep, payloads: Sequence[Payload | None]) -> list[tuple[tuple[int, ...], int]]:
    if step.operator == _EMBEDDING and len(step.inputs) == 2:
        table, indices = step.inputs
        return [(indices.place, table.spec.shape[0])]
    payload = payloads[step.delegate] if step.delegate is not None else None
    if payload is None or not payload.is_open:
        return []
    limits = port_limits(payload.microcode)
    return [
        (step.inputs[port.argument].place, limits[i]) for i, port in enumerate(payload.inputs) if i in limits
    ]


def port_limits(microcode: bytes) -> dict[int, int]:
    """The inputs of a microcode that are indices, each with its limit."""
    program = mc.decode(microcode)
    whole = (mc.DType.INT32, mc.DType.INT64)
    in_scratch = {d.place - 1: i for i, d in enumerate(program.inputs) if d.place and d.dtype in whole}
    limits: dict[int, int] = {}
    for call in program.calls:
        if isinstance(call, mc.Lookup | mc.Store):
            ref, limit = call.indices, call.axis
            if isinstance(call, mc.Store):
                limit -= call.length - 1
            port = ref.index if ref.region == mc.Region.INPUT and not ref.offset else None
            if ref.region == mc.Region.SCRATCH:
                port = in_scratch.get(ref.offset)
            if port is not None:
                limits[port] = min(limit, limits.get(port, limit))
        output = getattr(call, "output", None)
        if isinstance(output, mc.Ref) and output.region == mc.Region.SCRATCH:
            in_scratch.pop(output.offset, None)  # what lies there is no input any more
    return limits


def check_indices(inputs: Sequence[Any], limits: Sequence[int | None], where: str) -> None:
    """Refuse an index out of range, with its input, its position, its value and its limit."""
    for number, (value, limit) in enumerate(zip(inputs, limits, strict=False)):
        if limit is None or not hasattr(value, "shape"):
            continue
        array = np.asarray(value)
        outside = np.argwhere((array < 0) | (array >= limit))
        if len(outside):
            at = tuple(int(i) for i in outside[0])
            more = f"; {len(outside)} are out of range" if len(outside) > 1 else ""
            place = f"at position {list(at)} " if at else ""
            fail("ON514", f"{where}: input {number}",
                 f"{place}is {array[at]}, and an index there is from 0 to {limit - 1}{more}",
                 "Give indices in range.")  # fmt: skip


def explain_indices(data: bytes, info: MethodInfo, inputs: Sequence[Any], where: str) -> None:
    """After a run that failed: fail with the index that is out of range, if one is."""
    try:
        limits = index_limits(data, info, where)
    except OpenNeutronError:
        return  # the first error says what there is to say
    check_indices(inputs, limits, where)
