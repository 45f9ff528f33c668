"""What Neutron leaves of a program, in the `cortex_m` dialect: ExecuTorch's pass manager as one pass."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.arm._passes import ArmPass
from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes import AtenToCortexMPass, CortexMPassManager
from executorch.backends.cortex_m.passes.activation_fusion_pass import ActivationFusionPass
from executorch.backends.cortex_m.passes.explicit_layout_pass import ValidateCortexMExplicitLayoutPass
from executorch.backends.cortex_m.passes.passes_utils import get_activation_bounds, quantize_val
from executorch.backends.transforms.remove_getitem_op import RemoveGetItemPass
from executorch.backends.transforms.remove_permutes_around_elementwise_ops import (
    RemovePermutesAroundElementwiseOps,
)
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
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

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


class FuseActivations(ActivationFusionPass):
    """Fuses an activation also where its result has a wider range than it, as one that is concatenated may.

    ExecuTorch's own pass then leaves the layer before it without a range of its own, computing with integers
    as if they were what they stand for. The layer's kernel takes bounds, whatever the range.
    """

    def _get_validated_qparams(self, node: Node, input_node: Node) -> dict[str, Any] | None:
        qparams = node.meta.get("output_qparams", {}).get(0)
        bounds = (
            None if node.target is edge_ops.edge.aten.hardsigmoid.default else get_activation_bounds(node)
        )
        if qparams is None or bounds is None or input_node.target in self.MAX_POOL_OPS or qparams.per_channel:
            return super()._get_validated_qparams(node, input_node)
        low, high = (
            limit
            if bound is None
            else int(quantize_val(bound, qparams.scale, qparams.zp, qparams.qmin, qparams.qmax))
            for bound, limit in zip(bounds, (qparams.qmin, qparams.qmax), strict=True)
        )
        return {**qparams._asdict(), "qmin": low, "qmax": high}


class RemovePermutes(RemovePermutesAroundElementwiseOps):
    """Permutes constants of fewer dimensions as broadcast; ExecuTorch's own pass only reshapes them."""

    def permute_subgraph(self, subgraph: Any) -> bool:
        """Take the permutations around these operators away; says whether it did."""
        low = [
            (source, user, order)
            for source, user in subgraph.constant_edges_in
            if source.meta["val"].dim()
            < len(order := subgraph.node_end_permute.get(user, subgraph.end_permute))
        ]
        if any(source not in user.all_input_nodes for source, user, _ in low):
            return False  # changed with operators before these
        subgraph.constant_edges_in -= {(source, user) for source, user, _ in low}
        if not super().permute_subgraph(subgraph):
            return False
        aten = edge_ops.edge.aten
        for source, user, order in low:
            shape = list(source.meta["val"].shape)
            with user.graph.inserting_before(user):
                whole = [1] * (len(order) - len(shape)) + shape
                viewed = user.graph.call_function(aten.view_copy.default, (source, whole))
                permuted = user.graph.call_function(aten.permute_copy.default, (viewed, list(order)))
            user.replace_input_with(source, permuted)
        return True


_OURS: dict[Any, type[ExportPass]] = {
    RemoveGetItemPass: RemoveUnreadIndices,
    ActivationFusionPass: _knows_products(FuseActivations),
    RemovePermutesAroundElementwiseOps: _knows_products(RemovePermutes),
}
# The check among them refuses programs with a float convolution; we know that one has its portable kernel.
_PASSES = [
    _OURS.get(kind) or _knows_products(kind)
    for kind in CortexMPassManager.explicit_layout_pass_list
    if kind is not ValidateCortexMExplicitLayoutPass
]


class LowerToCortexM(ExportedProgramPassBase):
    """Rewrites the quantized operators outside delegates to the `cortex_m` dialect."""

    def __init__(self, core: str):
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
