"""What the CPU computes of a lowered program: each operator, the kernel it runs as, and why it is there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from executorch.exir import memory
from executorch.exir.delegate import executorch_call_delegate
from torch.fx import GraphModule, Node

from openneutron.diagnostics import Reject
from openneutron.estimate.cpu_cost import operator_of
from openneutron.fx import op_name
from openneutron.partition.clusters import Rejected, is_compute
from openneutron.partition.partitioner import sources

DIALECT = "cortex_m."
_STEPS = ("cortex_m.quantize_per_tensor.default", "cortex_m.dequantize_per_tensor.default")
_SERVICE = Reject(
    "ON210", "The CPU's kernels need it: a change of layout, or a constant computed at run time"
)


def cpu_nodes(module: GraphModule) -> list[Node]:
    """Operators outside delegates, quantize and dequantize steps aside."""
    return [n for n in module.graph.nodes if is_compute(n) and not _is_step(n)]


def explain_cpu(
    module: GraphModule, rejected: Iterable[Rejected], not_asked: Reject | None = None
) -> list[Rejected]:
    """Every operator the CPU computes; the reasons are those the partitioner gave for what they come from."""
    reasons: dict[Any, Rejected] = {}
    for entry in rejected:
        reasons |= dict.fromkeys((entry.node.name, *_history(entry.node)), entry)
    return [_explain(node, reasons, not_asked or _SERVICE) for node in cpu_nodes(module)]


def node_macs(node: Node) -> int:
    """Multiply-accumulates of one operator; 0 for those that have none."""
    return operator_of(node).macs


def _explain(node: Node, reasons: dict[Any, Rejected], otherwise: Reject) -> Rejected:
    found = next((reasons[key] for key in (*_history(node), node.name) if key in reasons), None)
    if found is not None:
        return Rejected(node, found.op, found.reject)
    name, original = op_name(node) or str(node.target), node.meta.get("original_aten")
    return Rejected(node, str(original) if name.startswith(DIALECT) and original else name, otherwise)


def _is_step(node: Node) -> bool:
    return node.target in (executorch_call_delegate, memory.alloc) or op_name(node) in _STEPS


def _history(node: Node) -> list[tuple[int, str]]:
    """The nodes of earlier graphs a node comes from; passes copy this to what they replace it by."""
    return [(source.graph_id, source.name) for source in sources(node)]
