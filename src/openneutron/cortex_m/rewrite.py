"""Bringing a graph into the form Cortex-M's quantizer knows, with ExecuTorch's own passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from executorch.backends.cortex_m.passes import ClampHardswishPass, DecomposeMeanPass
from executorch.backends.cortex_m.passes.matmul_to_bmm_pass import MatmulToBmmPass
from executorch.exir.pass_base import ExportPass
from torch.fx import GraphModule, Node

# Cortex-M's other passes before annotation do what ours have done: scalars are tensors by now.
_PASSES = (ClampHardswishPass, DecomposeMeanPass, MatmulToBmmPass)
_REWRITTEN = {
    torch.ops.aten.hardswish.default,
    torch.ops.aten.adaptive_avg_pool2d.default,
    torch.ops.aten.mean.dim,
    torch.ops.aten.matmul.default,
}
_KEEP = "openneutron_keep"


def rewrite_for_cortex_m(
    model: GraphModule, wanted: Callable[[Node], bool] = lambda node: True
) -> GraphModule:
    """Rewrite the operators that are wanted; the rest of the graph stays as it is."""
    if not any(n.target in _REWRITTEN and wanted(n) for n in model.graph.nodes):
        return model
    # The passes trace the graph anew, node by node: they can tell a node only by what its meta carries.
    for node in model.graph.nodes:
        node.meta[_KEEP] = not wanted(node)
    for kind in _PASSES:
        model = _selective(kind)().call(model).graph_module
    for node in model.graph.nodes:
        node.meta.pop(_KEEP, None)
    return model


def _selective(kind: type[ExportPass]) -> type[ExportPass]:
    class Selective(kind):
        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
            here = ExportPass if meta.data.get(_KEEP) else kind
            return here.call_operator(self, op, args, kwargs, meta)

    return Selective
