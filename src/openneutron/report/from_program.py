"""A report of a .pte alone: what the program itself tells, and sentences about what it does not.

The microcode has every call with its addresses; names of nodes, reasons and tensors' names are not in it.
Buffers are found from the addresses calls write to and read from.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from openneutron.board.describe import unknown_parts
from openneutron.compiler.emit.result import CallInfo
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.cost import costs_of
from openneutron.diagnostics import fail
from openneutron.estimate.cpu_cost import Operator, are_floats, cpu_cycles, transpose_cycles
from openneutron.estimate.timeline import BORDER_KINDS, NPU_KINDS, Event, npu_events, total
from openneutron.package.payload import CHANNELS_LAST, Payload, Port
from openneutron.package.pte import ProgramInfo, TensorSpec, check_program, parse_program, read_program
from openneutron.report.addresses import buffers, reads, writes
from openneutron.report.cost_model import error_label
from openneutron.report.data import assemble
from openneutron.report.nodes import Ids, NodeWalk
from openneutron.report.summary import best_hint
from openneutron.run.program_steps import MethodSteps, ProgramStep, ProgramTensor, program_steps
from openneutron.targets.chip import Target
from openneutron.targets.table import DEFAULT_TARGET, find_target

MISSING = (
    "The names of the operators the NPU computes: its calls are shown by their kernels.",
    "Why operators stay on the CPU.",
    "What-if and per-layer errors: they need the model.",
    "Names of tensors in the memory map: buffers are found from the addresses calls use.",
)
_NO_REASON = {"code": "", "reason": "the .pte does not say why", "hint": "Give the model instead of it."}
_ENDS = (mc.Region.INPUT, mc.Region.OUTPUT)
_KINDS = {mc.Kernel.COPY: "TRANSPOSE"}  # what a strided copy at a partition's border most likely is
Place = tuple[int, ...]  # of a tensor in memory: see `ProgramTensor`


def report_from_program(path: Path | str, *, note: str = "") -> dict[str, Any]:
    """The report of a .pte file; `note` says why nothing better is known."""
    raw, where = read_program(path)
    info = parse_program(raw, where, check_program(raw, where))
    payloads = {name: _payloads(info, name) for name in info.methods}
    arguments = {name: [0 if p is None else p.input_args for p in group] for name, group in payloads.items()}
    target = _target(payloads)
    walk = _Walk(target)
    methods = {name: m for name, m in program_steps(raw, arguments, where).items() if m.steps}
    for name, steps in methods.items():  # one without steps returns constants: scales of int8 inputs, say
        walk.walk(name, steps, payloads[name])
    every = [p for group in payloads.values() for p in group if p is not None]
    summary = _summary(Path(path), info, walk, every, target) | {"methods": list(methods), "verified": None}
    return assemble(
        name=Path(path).stem,
        summary=summary,
        target=target,
        nodes=walk.nodes,
        timeline=walk.events if walk.known else [],
        reasons={},
        memory=walk.memory,
        sha256=hashlib.sha256(raw).hexdigest(),
        errors=[],
        what_if=[],
        missing=[*([note] if note else []), *unknown_parts(info), *MISSING],
    )


# What only a delegate's calls tell; the figures of time are 0 then.
_UNKNOWN = ("npu_nodes", "macs_npu", "border_transposes", "transpose_cycles_estimated", "kernels")
_NO_ESTIMATE = "Not estimated: the delegates do not tell what they call."


def _payloads(info: ProgramInfo, method: str) -> list[Payload | None]:
    """The payloads of a method's delegates; None for those of other backends."""
    return [d.known_payload() for d in info.methods[method].delegates]


def _target(payloads: dict[str, list[Payload | None]]) -> Target:
    names = [p.stamp.target for group in payloads.values() for p in group if p is not None and p.is_open]
    name = next((name for name in names if name), DEFAULT_TARGET)
    if name == mc.INVENTED_NAME:
        fail("ON101", "program", "it was compiled for an invented chip, whose figures are not in it",
             "Report on the model instead: openneutron report MODEL --target-file CHIP.toml.")  # fmt: skip
    return find_target(name)


class _Walk(NodeWalk):
    """Collects nodes, events and memory over the methods of a program."""

    def __init__(self, target: Target):
        super().__init__()
        self.target = target
        self.events: list[Event] = []
        self.memory: list[dict[str, Any]] = []
        self.scratch = 0
        self.known = True  # whether the cost of every delegate is
        self._now = 0
        self._names: Counter[str] = Counter()

    def walk(self, name: str, method: MethodSteps, payloads: Sequence[Payload | None]) -> None:
        """One method of the program."""
        self.method = name
        made: dict[Place, Ids] = {}
        for number, tensor in enumerate(method.inputs):
            made[tensor.place] = self._node(f"input_{number}", "input", (), tensor.spec)
        for step in method.steps:
            inputs = tuple(dict.fromkeys(i for t in step.inputs for i in made.get(t.place, ())))
            if step.delegate is None:
                ids = self._operator(step, inputs)
                made |= {t.place: ids for t in step.outputs}
            else:
                self.partition = len(self.memory)
                made |= self._delegate(self.partition, step, payloads[step.delegate], made)
                self.partition = None
        for number, tensor in enumerate(method.outputs):
            self._node(f"output_{number}", "output", made.get(tensor.place, ()), tensor.spec)

    def _node(self, name: str, op: str, inputs: Ids, spec: TensorSpec | None, macs: int = 0) -> Ids:
        self._names[name] += 1
        if (times := self._names[name]) > 1:
            name = f"{name}_{times - 1}"
        shape, dtype = ((), "int8") if spec is None else (spec.shape, spec.dtype)
        return self.append(name, op, inputs, shape, dtype, macs)

    def _add(self, event: Event) -> None:
        self.events.append(replace(event, start=self._now))
        self._now += event.advance

    def _operator(self, step: ProgramStep, inputs: Ids) -> Ids:
        """An operator on the CPU; a program names it by its out variant."""
        out = step.outputs[0].spec if step.outputs else None
        shapes = tuple(t.spec.shape for t in step.inputs)
        moved = sum(_nbytes(t.spec) for t in (*step.inputs, *step.outputs))
        is_float = are_floats(t.spec.dtype for t in (*step.inputs, *step.outputs[:1]))
        op = Operator(step.operator, shapes, out.shape if out else (), moved, is_float=is_float)
        if op.is_view:
            return inputs
        name = step.operator.replace("::", "_").replace(".", "_")
        ids = self._node(name, step.operator, inputs, out, op.macs)
        cycles = cpu_cycles(op, self.target)
        node = self.nodes[ids[0]].name
        reads = tuple(f"value_{t.number}" for t in step.inputs)
        writes = tuple(f"value_{t.number}" for t in step.outputs)
        self._add(
            Event(
                op.kind, node, step.operator, self.method, None, None, (node,), 0, cycles, cycles, "cpu",
                op.macs, moved, reads, writes, saved=cpu_cycles(op, self.target, portable=True) - cycles,
            )
        )  # fmt: skip
        return ids

    def _delegate(
        self, partition: int, step: ProgramStep, payload: Payload | None, made: dict[Place, Ids]
    ) -> dict[Place, Ids]:
        scratch, prefetch = (
            (0, 0) if payload is None else (payload.words.scratch_bytes, payload.words.prefetch_bytes)
        )
        entry: dict[str, Any] = {"partition": partition, "scratch_bytes": scratch, "prefetch_bytes": prefetch}
        self.scratch = max(self.scratch, 0 if payload is None else payload.beyond_io_bytes)
        self.memory.append(entry | {"buffers": []})
        arguments = [made.get(t.place, ()) for t in step.inputs]
        if payload is None or not payload.is_open:
            self.known = False
            if payload is not None:
                self._transposes(payload.inputs, step.inputs)
                self._transposes(payload.outputs, step.outputs)
            every = tuple(i for ids in arguments for i in ids)
            ids = self._node(f"delegate_{partition}", step.operator, every, None)
            return {t.place: ids for t in step.outputs}
        self._transposes(payload.inputs, step.inputs)
        calls = mc.decode(payload.microcode).calls
        infos = [
            CallInfo(
                call, _KINDS.get(call.kernel, ""), (), tuple(map(str, reads(call))),
                tuple(map(str, writes(call))), cost,
            )
            for call, cost in zip(calls, costs_of(calls, self.target), strict=True)
        ]  # fmt: skip
        names = self._calls(infos, payload, arguments)
        begin = len(self.events)
        ends = frozenset(str(r) for c in calls for r in (*reads(c), *writes(c)) if r.region in _ENDS)
        for event in npu_events(self.method, infos, partition, self.target, names, ends):
            self._add(event)
        self.memory[partition]["buffers"] = [b | _shifted(b, begin) for b in buffers(calls)]
        self._transposes(payload.outputs, step.outputs)
        last = self._last_writers
        return {
            tensor.place: last.get((mc.Region.OUTPUT, index), ()) for index, tensor in enumerate(step.outputs)
        }

    def _calls(
        self, infos: Sequence[CallInfo], payload: Payload, inputs: Sequence[Ids]
    ) -> list[tuple[str, ...]]:
        """A node for every kernel call, linked by the addresses; the nodes' names, call by call."""
        self._last_writers: dict[tuple[int, int], Ids] = {
            (mc.Region.INPUT, index): inputs[port.argument] if port.argument < len(inputs) else ()
            for index, port in enumerate(payload.inputs)
        }
        names: list[tuple[str, ...]] = []
        for info in infos:
            if isinstance(info.call, mc.Wait | mc.Prefetch):
                names.append(())
                continue
            writers = (self._last_writers.get(_key(ref), ()) for ref in reads(info.call))
            sources = tuple(dict.fromkeys(i for ids in writers for i in ids))
            kernel = info.call.kernel.name
            name = f"delegate_{self.partition}_{kernel.lower()}"
            ids = self._node(name, kernel, sources, None, info.cost.macs)
            self._last_writers |= {_key(ref): ids for ref in writes(info.call)}
            names.append((self.nodes[ids[0]].name,))
        # A copy or a wait is for the call that follows it.
        for number in range(len(names) - 2, -1, -1):
            names[number] = names[number] or names[number + 1]
        return names

    def _transposes(self, ports: Sequence[Port], tensors: Sequence[ProgramTensor]) -> None:
        """What the runtime does with the inputs or outputs of a delegate, whoever made it."""
        for port, tensor in zip(ports, tensors, strict=False):
            if port.format == CHANNELS_LAST:
                self._transpose(tensor)

    def _transpose(self, tensor: ProgramTensor) -> None:
        nbytes, name = _nbytes(tensor.spec), f"value_{tensor.number}"
        cycles = transpose_cycles(nbytes, self.target)
        self._add(
            Event(
                "transpose", f"{name}_transposed", "transpose", self.method, self.partition, None, (), 0,
                cycles, cycles, "cpu", 0, 2 * nbytes, (name,), (f"{name}_transposed",), True,
            )
        )  # fmt: skip


def _key(ref: mc.Ref) -> tuple[int, int]:
    return (ref.region, ref.index if ref.region in (mc.Region.INPUT, mc.Region.OUTPUT) else ref.offset)


def _shifted(buffer: dict[str, Any], begin: int) -> dict[str, int]:
    return {key: buffer[key] + begin for key in ("first", "last")}


def _nbytes(spec: TensorSpec) -> int:
    size = {"half": 2, "bfloat16": 2}.get(spec.dtype)
    return prod(spec.shape) * (size or np.dtype(spec.dtype).itemsize)


def _summary(
    path: Path, info: ProgramInfo, walk: _Walk, payloads: list[Payload], target: Target
) -> dict[str, Any]:
    """The keys of `summarize`, as far as the program tells."""
    cpu = [n for n in walk.nodes if n.where == "cpu" and "quantize_per" not in n.op]
    kernels = {mc.Kernel[e.kernel] for e in walk.events if e.kind in NPU_KINDS}
    data = {
        "program": str(path),
        "target": target.name,
        "converter": "open" if all(p.is_open for p in payloads) else "eiq",  # NXP's, by any flow
        "runs_on": "",
        "partitions": len(walk.memory),
        "npu_nodes": sum(n.where == "npu" for n in walk.nodes),
        "cpu_nodes": [
            {"node": n.name, "op": n.op, "kernel": n.op, "int8": n.dtype == "int8", **_NO_REASON} for n in cpu
        ],
        "macs_npu": sum(e.macs for e in walk.events if e.kind == "kernel"),
        "macs_cpu": sum(n.macs for n in cpu),
        **_memory(info, walk, payloads, target),
        **_cycles(walk, target),
        "kernels": [kernel.name for kernel in sorted(kernels)],
        "cpu_kernels": sorted({n.op for n in cpu}),
        "chip": target.chip,
        "npu": target.hw_version,
        "invented": target.invented,
        "quantize_steps": sum(e.kind == "quantize" for e in walk.events),
        "dequantize_steps": sum(e.kind == "dequantize" for e in walk.events),
        "runtime_transposes": sum(e.kind == "transpose" for e in walk.events),
        "channels_last_helps": False,
        "estimate_label": error_label(target),
    }
    if not walk.known:
        data["unknown"], data["estimate_label"] = list(_UNKNOWN), _NO_ESTIMATE
    data["hint"] = best_hint(data)
    return data


def _memory(info: ProgramInfo, walk: _Walk, payloads: list[Payload], target: Target) -> dict[str, Any]:
    """The part of a summary that says what memory the program needs, and whether the chip has it."""
    prefetch = max((m["prefetch_bytes"] for m in walk.memory), default=0)
    weights = sum(len(p.weights) for p in payloads)
    remembered = sum(p.state_bytes for p in payloads)
    methods = info.methods.values()
    reserve = max((m.reserve_bytes for m in methods), default=0)
    shared = max((sum(m.planned_buffers[1:]) for m in methods), default=0)
    fetched = prefetch or (0 if target.reads_flash else weights)
    return {
        "scratch_bytes": walk.scratch,
        "sram_prefetch_bytes": prefetch,
        "state_bytes": remembered,
        "states": [{"name": s.label, "bytes": s.bytes} for p in payloads for s in p.states],
        "shared_states": [{"name": "memory of several methods", "bytes": shared}] if shared else [],
        "weights_bytes": weights,
        "planned_bytes": max((m.planned_bytes for m in methods), default=0),
        "io_bytes": max((m.io_bytes for m in methods), default=0),
        "reserve_bytes": reserve,
        "program_bytes": info.bytes,
        "fits": reserve + remembered + fetched <= target.sram_bytes,
        "sram_bytes": target.sram_bytes,
        "weights_in_flash": bool(prefetch) or target.reads_flash,
    }


def _cycles(walk: _Walk, target: Target) -> dict[str, Any]:
    """The part of a summary that says how long the program takes, and what of it."""
    events = walk.events if walk.known else []
    borders = [e for e in walk.events if e.border and e.kind == "kernel"]
    cycles = total(events)

    def spent(*kinds: str) -> int:
        return sum(e.advance for e in events if e.kind in kinds)

    return {
        "cycles_estimated": cycles,
        "cycles_npu": spent(*NPU_KINDS),
        "cycles_cpu": spent("cpu"),
        "cycles_borders": spent(*BORDER_KINDS),
        "cycles_portable_kernels": total(events, portable=True),
        "border_transposes": len(borders),
        "transpose_cycles_estimated": sum(e.advance for e in borders),
        "quantize_cycles_estimated": spent("quantize", "dequantize"),
        "time_us_estimated": round(cycles / target.frequency_hz * 1e6, 1),
    }
