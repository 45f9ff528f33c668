"""The report as plain data: everything the page, the JSON file, `diff` and `check` read.

docs/report-schema.md documents every field. Add fields; a changed meaning needs a new SCHEMA number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openneutron import __version__
from openneutron.compiler.memory.place import aligned
from openneutron.estimate.timeline import Event
from openneutron.package.program import CompiledProgram
from openneutron.report.cost_model import describe_cost_model
from openneutron.report.nodes import NodeEntry, program_nodes
from openneutron.report.summary import summarize
from openneutron.report.what_if import WhatIf
from openneutron.targets.chip import Target

SCHEMA = 1


def report_data(
    program: CompiledProgram,
    *,
    name: str | None = None,
    path: Path | str | None = None,
    errors: Sequence[Mapping[str, Any]] = (),
    what_if: Sequence[WhatIf] = (),
    missing: Sequence[str] = (),
    accuracy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is known of a compiled program, as JSON can hold it; `path` is where its .pte is.

    `errors` are rows with the `node` by its name in the Edge program; here it becomes an id. `accuracy` is
    what the summary of a compile says about quantizing.
    """
    where = None if path is None else Path(path)
    nodes = program_nodes(program)
    ids = {name: node.id for node in nodes for name in (node.name, *node.aliases)}
    reasons = {entry.node.name: entry.as_dict() for entry in program.rejected}
    return assemble(
        name=name or (where.stem if where else "program"),
        summary=summarize(program, where) | ({} if accuracy is None else {"accuracy": _repeatable(accuracy)}),
        target=program.target,
        nodes=nodes,
        timeline=program.timeline,
        reasons=reasons,
        memory=_memory(program, program.timeline),
        sha256=hashlib.sha256(program.pte).hexdigest(),
        errors=[{**entry, "node": ids.get(str(entry["node"]))} for entry in errors],
        what_if=[entry.as_dict(ids) for entry in what_if],
        missing=list(missing),
    )


def _repeatable(accuracy: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was measured of this machine: the same compile writes the same report."""
    methods = [{k: v for k, v in row.items() if k != "seconds"} for row in accuracy.get("methods", ())]
    kept = {k: v for k, v in accuracy.items() if k != "peak_memory_bytes"}
    return {**kept, "methods": methods}


def assemble(
    *,
    name: str,
    summary: dict[str, Any],
    target: Target,
    nodes: Sequence[NodeEntry],
    timeline: Sequence[Event],
    reasons: Mapping[str, Mapping[str, str]],
    memory: list[dict[str, Any]],
    sha256: str,
    errors: list[dict[str, Any]],
    what_if: list[dict[str, Any]],
    missing: list[str],
) -> dict[str, Any]:
    """The report of these parts."""
    return {
        "schema": SCHEMA,
        "generator": f"openneutron {__version__}",
        "name": name,
        "sha256": sha256,
        "summary": summary,
        "cost_model": describe_cost_model(target),
        "nodes": _nodes(nodes, timeline, reasons),
        "timeline": _timeline(timeline, nodes),
        "memory": memory,
        "roofline": roofline(target),
        "errors": errors,
        "what_if": what_if,
        "missing": missing,
    }


def roofline(target: Target) -> dict[str, float]:
    """The machine's limits, in the NPU's cycles."""
    return {
        "macs_per_cycle": target.num_macs,
        "sram_bytes_per_cycle": target.cost.sram_bytes_per_cycle,
        "flash_bytes_per_cycle": round(target.cost.flash_bytes_per_second / target.frequency_hz, 4),
        "frequency_hz": target.frequency_hz,
    }


def _nodes(
    nodes: Sequence[NodeEntry], timeline: Sequence[Event], reasons: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    ids = _ids(nodes)
    calls: dict[int, list[int]] = {}
    cycles: dict[int, int] = {}
    macs: dict[int, int] = {}
    work = {node.id: node.macs for node in nodes}
    for index, event in enumerate(timeline):
        event_ids = _event_ids(event, ids)
        for number in event_ids:
            calls.setdefault(number, []).append(index)
        if event_ids:  # a fused call is counted for the node with the most multiplications, else the first
            owner = max(event_ids, key=lambda number: work[number])
            cycles[owner] = cycles.get(owner, 0) + event.advance
            macs[owner] = macs.get(owner, 0) + event.macs
    result = []
    for node in nodes:
        reason = reasons.get(node.name) if node.where == "cpu" else None
        result.append(
            {
                "id": node.id,
                "name": node.name,
                "op": node.op,
                "where": node.where,
                "partition": node.partition,
                "method": node.method,
                "inputs": list(node.inputs),
                "shape": list(node.shape),
                "dtype": node.dtype,
                "macs": macs.get(node.id, 0) if timeline else node.macs,
                "cycles": cycles.get(node.id, 0),
                "calls": calls.get(node.id, []),
                "reason": {key: reason[key] for key in ("code", "reason", "hint")} if reason else None,
            }
        )
    return result


def _timeline(timeline: Sequence[Event], nodes: Sequence[NodeEntry]) -> list[dict[str, Any]]:
    ids = _ids(nodes)
    return [
        {
            "index": index,
            "kind": event.kind,
            "name": event.name,
            "kernel": event.kernel,
            "method": event.method,
            "partition": event.partition,
            "call": event.call,
            "nodes": _event_ids(event, ids),
            "start": event.start,
            "cycles": event.cycles,
            "advance": event.advance,
            "bound": event.bound,
            "macs": event.macs,
            "bytes": event.nbytes,
            "reads": list(event.reads),
            "writes": list(event.writes),
            "border": event.border,
            "saved": event.saved,
        }
        for index, event in enumerate(timeline)
    ]


def _memory(program: CompiledProgram, timeline: Sequence[Event]) -> list[dict[str, Any]]:
    """The memory map of every partition; the eiq converter tells only the sizes."""
    at = {(e.partition, e.call): i for i, e in enumerate(timeline) if e.call is not None}
    result = []
    for number, partition in enumerate(program.partitions):
        compiled = partition.converted.compiled
        buffers = () if compiled is None or not timeline else compiled.buffers
        result.append(
            {
                "partition": number,
                "scratch_bytes": partition.converted.scratch_bytes,
                "prefetch_bytes": partition.converted.prefetch_bytes,
                "state_bytes": 0 if compiled is None else compiled.state_bytes,
                "buffers": [
                    {
                        "name": b.name,
                        "region": b.region.name.lower(),
                        "offset": b.offset,
                        "nbytes": aligned(b.nbytes),
                        "first": at[number, b.first_call],
                        "last": at[number, b.last_call],
                        "tensors": list(b.tensors),
                        "rows": b.rows,
                    }
                    for b in buffers
                ],
            }
        )
    return result


def _ids(nodes: Sequence[NodeEntry]) -> dict[tuple[str, str], int]:
    ids: dict[tuple[str, str], int] = {}
    for node in nodes:
        for name in (node.name, *node.aliases):
            ids.setdefault((node.method, name), node.id)
    return ids


def _event_ids(event: Event, ids: Mapping[tuple[str, str], int]) -> list[int]:
    numbers = (ids.get((event.method, name)) for name in event.nodes)
    return list(dict.fromkeys(i for i in numbers if i is not None))
