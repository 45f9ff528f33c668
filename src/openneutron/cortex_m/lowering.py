"""What Neutron leaves of a program, in the `cortex_m` dialect: ExecuTorch's pass manager as one pass."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.arm._passes import ArmPass
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes import AtenToCortexMPass, CortexMPassManager
from executorch.backends.cortex_m.passes.explicit_layout_pass import ValidateCortexMExplicitLayoutPass
from executorch.backends.transforms.remove_getitem_op import RemoveGetItemPass
from executorch.exir import EdgeCompileConfig
from executorch.exir.dialects._ops import ops as edge_ops
from executorch.exir.pass_base import (
    ExportedProgramPassBase,
    ExportedProgramPassResult,
    ExportPass,
    PassResult,
    ProxyValue,
)
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from openneutron.backends import DEFAULT_CORE
from openneutron.cortex_m.core import find_core


def _knows_products(kind: type[ExportPass]) -> type[ExportPass]:
    """A pass that traces a product of int8 matrices as int8.

    Torch says its result is int32, so that tracing fails where one product reads another's, as in attention.
    """
    if kind is AtenToCortexMPass or issubclass(kind, ArmPass):
        return kind  # knows it, or ends it

    class KnowsProducts(kind):
        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any, *more: Any) -> Any:
            if op is not edge_ops.edge.aten.bmm.default or not meta.data.get("input_qparams"):
                return super().call_operator(op, args, kwargs, meta, *more)
            result = torch.empty_like(meta.data["val"], dtype=torch.int8)
            plain = pytree.tree_map_only(ProxyValue, lambda value: value.proxy, (args, kwargs))
            proxy = self.tracer.create_proxy("call_function", op, *plain)
            proxy.node.meta.update(meta.data)
            self.tracer.set_metadata(proxy.node, result)
            return ProxyValue(result, proxy)

    return KnowsProducts


class RemoveUnreadIndices(ExportPass):
    """Takes indices off maxima where nobody reads them; ExecuTorch's own pass fails where somebody does."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """The same program; where indices are read, nothing changes."""
        aten, changed = edge_ops.edge.aten, False
        plain = {aten.max_pool2d_with_indices.default: aten.max_pool2d.default,
                 aten.max.dim: aten.amax.default}  # fmt: skip
        for node in list(graph_module.graph.nodes):
            if node.target not in plain or any(user.args[1] != 0 for user in node.users):
                continue
            with graph_module.graph.inserting_before(node):
                new = graph_module.graph.call_function(plain[node.target], node.args, node.kwargs)
            new.meta = {**node.meta, "val": node.meta["val"][0]}
            for user in list(node.users):
                user.replace_all_uses_with(new)
                graph_module.graph.erase_node(user)
            graph_module.graph.erase_node(node)
            changed = True
        graph_module.recompile()
        return PassResult(graph_module, changed)


# The check among them refuses programs with a float convolution; we know that one has its portable kernel.
_PASSES = [
    RemoveUnreadIndices if kind is RemoveGetItemPass else _knows_products(kind)
    for kind in CortexMPassManager.explicit_layout_pass_list
    if kind is not ValidateCortexMExplicitLayoutPass
]


class LowerToCortexM(ExportedProgramPassBase):
    """Rewrites the quantized operators outside delegates to the `cortex_m` dialect."""

    def __init__(self, core: str = DEFAULT_CORE):
        self.target_config = find_core(core)

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """The program with its CPU operators replaced."""
        manager = CortexMPassManager(exported_program, passes=_PASSES, target_config=self.target_config)
        return ExportedProgramPassResult(manager.transform(), True)


def edge_compile_config() -> EdgeCompileConfig:
    """What Cortex-M needs of the Edge dialect, with dim orders, which Neutron needs."""
    config = cortex_m_edge_compile_config()
    config._skip_dim_order = False
    return config
