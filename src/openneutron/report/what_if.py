"""What a change would save: each answer comes from a program really compiled with that change.

- `support`: an operator on the CPU were supported. It is replaced by a stand-in that reads and writes the
  same tensors (`stand_in`), or, if the user excludes it, the exclusion is lifted; then the program is
  compiled.
- `delegate`: a partition were left to the CPU. Its operators are known, so that their estimates are added up;
  of a program compiled without delegation, the answer is the delegated program.
- `layout`: inputs in the other memory order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from openneutron.estimate.cpu_cost import cpu_cycles, operator_of
from openneutron.package.program import CompiledProgram, delegates, inside
from openneutron.partition.clusters import Rejected, is_compute
from openneutron.partition.partitioner import spellings
from openneutron.pipeline import compile_model
from openneutron.quantize.export import Inputs
from openneutron.report.stand_in import NoStandIn, replace_node, source_node
from openneutron.report.summary import summarize

MOST = 8  # nodes that are tried; each takes a compile


@dataclass(frozen=True)
class Figures:
    """What a change is judged by."""

    cycles: int
    partitions: int
    border_steps: int


@dataclass(frozen=True)
class WhatIf:
    """A change, and the program's figures before and after it; `node` is a name in the Edge program."""

    kind: str
    node: str | None
    partition: int | None
    op: str
    title: str
    now: Figures
    then: Figures
    detail: str

    @property
    def saved(self) -> int:
        """Cycles it saves; negative if it costs."""
        return self.now.cycles - self.then.cycles

    def as_dict(self, ids: Mapping[str, int]) -> dict[str, Any]:
        """For reports; `ids` are those of nodes by name."""
        return {
            "kind": self.kind,
            "node": None if self.node is None else ids.get(self.node),
            "partition": self.partition,
            "op": self.op,
            "title": self.title,
            "cycles_now": self.now.cycles,
            "cycles_then": self.then.cycles,
            "saved_cycles": self.saved,
            "partitions_now": self.now.partitions,
            "partitions_then": self.then.partitions,
            "border_steps_now": self.now.border_steps,
            "border_steps_then": self.then.border_steps,
            "detail": self.detail,
        }


def figures(program: CompiledProgram) -> Figures:
    """The figures of a program."""
    data = summarize(program, None)
    keys = ("quantize_steps", "dequantize_steps", "border_transposes", "runtime_transposes")
    return Figures(data["cycles_estimated"], data["partitions"], sum(data[key] for key in keys))


def explore(
    program: CompiledProgram,
    module: GraphModule | torch.nn.Module | torch.export.ExportedProgram,
    inputs: Inputs,
    compile: Callable[..., CompiledProgram] | None = None,
    progress: Callable[[float], None] = lambda part: None,
) -> list[WhatIf]:
    """All answers for a program that `compile(module, inputs, options=...)` (`compile_model`) made.

    The best comes first. `module` is the quantized one; of an exported program the layout cannot be changed
    any more.
    """
    compile = compile or partial(compile_model, verify=False)
    jobs: list[Callable[[], WhatIf | None]] = []
    now = figures(program)
    if program.rejected and not program.delegated:
        jobs.append(lambda: _delegate_all(program, module, inputs, compile, now))
    else:
        groups = _groups(program, module)[:MOST]
        jobs += [partial(_support, program, module, inputs, compile, now, group) for group in groups]
    if (other := _other_order(inputs)) is not None and not isinstance(module, torch.export.ExportedProgram):
        jobs.append(lambda: _layout(program, module, other, compile, now))
    answers: list[WhatIf] = delegation_pays(program)
    for done, job in enumerate(jobs, 1):
        answer = job()
        answers += [answer] if answer is not None else []
        progress(done / len(jobs))
    return sorted(answers, key=lambda entry: -entry.saved)


def left_out(program: CompiledProgram, module: Any) -> int:
    """How many operators on the CPU were not tried because they are too many."""
    return max(0, len(_groups(program, module)) - MOST)


def delegation_pays(program: CompiledProgram) -> list[WhatIf]:
    """For every partition, what leaving it to the CPU would cost."""
    now = figures(program)
    result = []
    lowered = [d for exported in program.methods.values() for d in delegates(exported.graph_module)]
    for number, delegate in enumerate(lowered):
        nodes = [n for n in inside(delegate).graph.nodes if n.op == "call_function"]
        operators = [operator_of(n) for n in nodes if n.target is not operator.getitem]
        steps = [e for e in program.timeline if e.partition == number]
        if not any(is_compute(n) for n in nodes) or not steps:
            continue  # a LiteRT model, or a converter that tells nothing
        npu = sum(e.advance for e in steps)
        cpu = sum(cpu_cycles(op, program.target) for op in operators)
        moved = sum(e.border for e in steps)
        added = sum(op.kind != "cpu" for op in operators)
        then = Figures(now.cycles - npu + cpu, now.partitions - 1, now.border_steps - moved + added)
        verdict = f"pays: the CPU would take {cpu / npu:.1f} times as long" if cpu > npu else "does not pay"
        detail = (
            f"{npu:,} cycles with its transposes as it is; {cpu:,} for the same operators on the CPU in "
            "float with their quantize and dequantize steps."
        )
        title = f"Delegating partition {number} {verdict}"
        result.append(WhatIf("delegate", None, number, "", title, now, then, detail))
    return result


def _support(
    program: CompiledProgram,
    module: Any,
    inputs: Inputs,
    compile: Callable[..., CompiledProgram],
    now: Figures,
    group: _Group,
) -> WhatIf | None:
    """The program with one operator of the CPU on the NPU."""
    first = group.rejected[0]
    options, extra, remark = program.options, 0, ""
    if group.excluded:
        kept = tuple(name for name in options.operators_not_to_delegate if name not in group.excluded)
        other = compile(module, inputs, options=replace(options, operators_not_to_delegate=kept))
        title = f"If {first.op} were not excluded"
        remark = "Compiled without the exclusion."
    else:
        try:
            changed, remark = replace_node(module, group.source)
        except NoStandIn:
            return None
        other = compile(changed, inputs, options=options)
        macs = sum(operator_of(r.node).macs for r in group.rejected)
        extra = macs // program.target.num_macs
        title = f"If {first.node.name} ({first.op}) were supported"
        if extra:
            remark += f" {extra:,} cycles are added for its {macs:,} multiplications."
    then = figures(other)
    then = replace(then, cycles=then.cycles + extra)
    return WhatIf(
        "support", first.node.name, None, first.op, title, now, then,
        f"{_effect(now, then)} {remark} It stays on the CPU because: {first.reject.reason}.",
    )  # fmt: skip


def _delegate_all(
    program: CompiledProgram,
    module: Any,
    inputs: Inputs,
    compile: Callable[..., CompiledProgram],
    now: Figures,
) -> WhatIf:
    then = figures(compile(module, inputs, options=program.options, delegate=True))
    title = "If the program were delegated"
    return WhatIf(
        "delegate", None, None, "", title, now, then, f"{_effect(now, then)} Compiled with delegation."
    )


def _layout(
    program: CompiledProgram,
    module: Any,
    inputs: Inputs,
    compile: Callable[..., CompiledProgram],
    now: Figures,
) -> WhatIf:
    then = figures(compile(module, inputs, options=program.options))
    order = "channels-last" if _is_channels_last(inputs) else "contiguous"
    title = f"If the program took {order} inputs"
    return WhatIf(
        "layout", None, None, "", title, now, then, f"{_effect(now, then)} Compiled with such inputs."
    )


@dataclass(frozen=True)
class _Group:
    """Operators of the Edge program that were one in the module, and so are supported or not together."""

    source: str
    rejected: tuple[Rejected, ...]
    excluded: frozenset[str]  # what the user wrote to exclude them
    cycles: int


def _groups(program: CompiledProgram, module: Any) -> list[_Group]:
    """The operators on the CPU, those with the most cycles first."""
    by_source: dict[str, list[Rejected]] = {}
    names = tuple(program.options.operators_not_to_delegate)
    for entry in program.rejected:
        if entry.reject.code in ("ON205", "ON206"):  # dynamic shapes, and operators that compute nothing
            continue
        source = source_node(module, entry.node) if isinstance(module, GraphModule) else None
        if entry.reject.code == "ON204":
            matching = [name for name in names if name in spellings(entry.op)] or list(names)
            by_source.setdefault(f"excluded {matching}", []).append(entry)
        elif source is not None:
            by_source.setdefault(source, []).append(entry)
    groups = []
    for source, entries in by_source.items():
        excluded = frozenset[str]()
        if entries[0].reject.code == "ON204":
            excluded = frozenset(n for n in names if any(n in spellings(e.op) for e in entries)) or frozenset(
                names
            )
        cycles = sum(cpu_cycles(operator_of(e.node), program.target) for e in entries)
        groups.append(_Group(source, tuple(entries), excluded, cycles))
    return sorted(groups, key=lambda group: -group.cycles)


def _effect(now: Figures, then: Figures) -> str:
    def change(before: int, after: int, what: str) -> str:
        return f"{before} {what} stay" if before == after else f"{before} {what} become {after}"

    parts = (
        change(now.partitions, then.partitions, "partitions"),
        change(now.border_steps, then.border_steps, "border steps"),
    )
    saved = now.cycles - then.cycles
    verb = "saves" if saved >= 0 else "costs"
    share = f" ({abs(saved) / now.cycles:.0%})" if now.cycles else ""
    return f"{verb.capitalize()} {abs(saved):,} cycles{share}; {', '.join(parts)}."


def _is_channels_last(inputs: Inputs) -> bool:
    images = [t for t in inputs if isinstance(t, torch.Tensor) and t.ndim == 4]
    return any(t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in images)


def _other_order(inputs: Inputs) -> Inputs | None:
    """4-D inputs in the other memory order; None if there are none it matters for."""
    to = torch.contiguous_format if _is_channels_last(inputs) else torch.channels_last
    other = tuple(
        t.contiguous(memory_format=to) if isinstance(t, torch.Tensor) and t.ndim == 4 else t for t in inputs
    )
    changed = any(
        isinstance(a, torch.Tensor) and a.stride() != b.stride() for a, b in zip(inputs, other, strict=True)
    )
    return other if changed else None
