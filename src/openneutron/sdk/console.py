"""What a conversion with profiling prints: the graph, and which kernel call came of which operator.

ExecuTorch's NXP backend reads it to tell its Inspector which nodes a kernel call stands for, so the headings
and the order are those of NXP's converter. A call is a subgraph here; the last one is the whole program.
"""

from __future__ import annotations

from collections.abc import Iterable

from openneutron.converter.protocol import ConvertedModel
from openneutron.litert.file import read
from openneutron.litert.ir import Op, Tensor


def converter_log(litert: bytes, converted: ConvertedModel) -> str:
    """The lines for one model."""
    graph, compiled = read(litert), converted.compiled
    assert compiled is not None
    sources = [
        [op for op in graph.ops if not set(call.origin).isdisjoint(_names(op.outputs))]
        for call in compiled.calls
    ]
    whole = len(compiled.calls)
    lines = ["Graphs:", *_operators(graph.ops), "= Optimize Graph =", "= Extract Graphs ="]
    lines.append(f'NeutronGraph "{_name(whole)}":')
    for i, call in enumerate(compiled.calls):
        lines += [f'  NeutronOperator "{_name(i)}":', "    Operators:", f"      {call.operator}"]
        lines += ["    Kernels:", f"      {call.call.kernel.name}"]
    lines += ["=", "Generate code for NeutronGraph", "Graphs:"]
    for i, ops in enumerate(sources):
        lines += _subgraph(i, compiled.calls[i].reads, compiled.calls[i].writes, ops)
    lines += _subgraph(whole, _names(graph.inputs), _names(graph.outputs), [])
    return "\n".join([*lines, f'Statistics for NeutronGraph "{_name(whole)}":'])


def _subgraph(number: int, inputs: Iterable[str], outputs: Iterable[str], ops: Iterable[Op]) -> list[str]:
    return [f"Name: {_name(number)}", *_ports(inputs, outputs), "  Tensors:", *_operators(ops)]


def _operators(ops: Iterable[Op]) -> list[str]:
    lines = []
    for i, op in enumerate(ops):
        inputs = _names(t for t in op.inputs if t is not None)
        lines += [
            f"Type: {op.custom_name or op.kind.name}",
            *_ports(inputs, _names(op.outputs)),
            f"  Location: {i}",
        ]
    return lines


def _ports(inputs: Iterable[str], outputs: Iterable[str]) -> list[str]:
    lines = []
    for title, names in (("Inputs", inputs), ("Outputs", outputs)):
        lines += [f"  {title}:", *(f"    [{i}]: {name}" for i, name in enumerate(names))]
    return lines


def _names(tensors: Iterable[Tensor]) -> list[str]:
    return [tensor.name for tensor in tensors]


def _name(number: int) -> str:
    return f"subgraph_{number:03d}"
