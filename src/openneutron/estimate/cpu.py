"""What the CPU computes of a lowered program: each operator, the kernel it runs as, and why it is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from executorch.exir import memory
from executorch.exir.delegate import executorch_call_delegate
from torch.fx import GraphModule, Node

from openneutron.diagnostics import Reject
from openneutron.estimate.cpu_cost import operator_of
from openneutron.fx import op_name, sources
from openneutron.partition.clusters import Rejected, is_compute, is_requantize

DIALECT = "cortex_m."
_STEPS = ("cortex_m.quantize_per_tensor.default", "cortex_m.dequantize_per_tensor.default")
_SERVICE = Reject(
    "ON210", "The CPU's kernels need it: a change of layout, or a constant computed at run time"
)


def cpu_nodes(module: GraphModule) -> list[Node]:
    """Operators outside delegates, quantize and dequantize steps aside, unless one undoes the other."""
    return [n for n in module.graph.nodes if is_requantize(n) or (is_compute(n) and not _is_step(n))]


def explain_cpu(
    module: GraphModule, rejected: Iterable[Rejected], not_asked: Reject | None = None
) -> list[Rejected]:
    """Every operator the CPU computes; the reasons are those the partitioner gave for what they come from."""
    reasons: dict[Any, list[Rejected]] = {}
    for entry in rejected:
        for key in (entry.node.name, *_history(entry.node)):
            reasons.setdefault(key, []).append(entry)
    return [_explain(node, reasons, not_asked or _SERVICE) for node in cpu_nodes(module)]


def node_macs(node: Node) -> int:
    """Multiply-accumulates of one operator; 0 for those that have none."""
    return operator_of(node).macs


def _explain(node: Node, reasons: dict[Any, list[Rejected]], otherwise: Reject) -> Rejected:
    name, original = op_name(node) or str(node.target), node.meta.get("original_aten")
    replaced = name.startswith(DIALECT)
    name = str(original) if replaced and original else name
    reason = next((reasons[key] for key in (*_history(node), node.name) if key in reasons), [])
    # The parts of an operator that was decomposed have one origin, and each a name of its own.
    own = [e for e in reason if e.node.name == node.name] or [e for e in reason if e.op == name] or reason
    if not own:
        return Rejected(node, name, otherwise)
    return Rejected(node, own[0].op if replaced and len(reason) == 1 else name, own[0].reject)


def _is_step(node: Node) -> bool:
    return node.target in (executorch_call_delegate, memory.alloc) or op_name(node) in _STEPS


def _history(node: Node) -> list[tuple[int, str]]:
    """The nodes of earlier graphs a node comes from; passes copy this to what they replace it by."""
    return [(source.graph_id, source.name) for source in sources(node)]
