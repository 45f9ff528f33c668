"""Channels-last tensors and the CPU: only some kernels take them as they lie in memory.

ExecuTorch's portable kernels refuse most channels-last tensors, and those of the Cortex-M dialect read them
by their shape. Around an operator that is not known to take them, the order is changed before and restored
after, so that delegates and other operators see what they were compiled for.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops as edge_ops
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from openneutron.fx import op_name, overload, tensor_of

# Kernels that look at the order, or that do not care: the order's own operators, views of the same memory,
# and the kernels of the dialect that are made for channels-last tensors.
_TAKES_ANY = ("dim_order_ops.", "quantized_decomposed.", "cortex_m.quantize_", "cortex_m.dequantize_")
_TAKES_CHANNELS_LAST = frozenset(
    f"cortex_m.{name}.default"
    for name in (
        "quantized_conv2d",
        "quantized_depthwise_conv2d",
        "quantized_transpose_conv2d",
        "quantized_avg_pool2d",
        "quantized_max_pool2d",
        "quantized_activation",
        "quantized_add",
        "quantized_mul",
        "quantized_div",
        "minimum",
        "maximum",
        "pad",
        "softmax",
    )
)


def restore_order_around(model: GraphModule) -> PassResult:
    """Give every operator that wants contiguous tensors such ones, and its readers what they had."""
    nodes = [n for n in model.graph.nodes if _wants_contiguous(n)]
    for node in nodes:
        for source in [n for n in node.all_input_nodes if _is_channels_last(n)]:
            with model.graph.inserting_before(node):
                node.replace_input_with(source, _copy(model, source, _contiguous(source.meta["val"])))
        if _is_channels_last(node):
            before = node.meta["val"]
            node.meta["val"] = _contiguous(before)
            with model.graph.inserting_after(node):
                copy = _copy(model, node, before)
            node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
    if nodes:
        model.graph.lint()
        model.recompile()
    return PassResult(model, bool(nodes))


def needs_order_restored(model: GraphModule) -> bool:
    """Whether there is such an operator."""
    return any(_wants_contiguous(n) for n in model.graph.nodes)


def _wants_contiguous(node: Node) -> bool:
    op, name = overload(node), op_name(node)
    if op is None or name.startswith(_TAKES_ANY) or name in _TAKES_CHANNELS_LAST:
        return False
    read = [n for n in node.all_input_nodes if tensor_of(n) is not None]
    if not any(_is_channels_last(n) for n in (node, *read)):
        return False
    if torch.Tag.pointwise not in op.tags:
        return True
    # Element by element is right if all tensors lie in the same order; one that is broadcast does not.
    return len({(tuple(n.meta["val"].shape), tuple(n.meta["val"].dim_order())) for n in (node, *read)}) > 1


def _is_channels_last(node: Node) -> bool:
    value = tensor_of(node)
    return value is not None and value.ndim == 4 and list(value.dim_order()) != [0, 1, 2, 3]


def _contiguous(value: Any) -> Any:
    return value.clone(memory_format=torch.contiguous_format)


def _copy(model: GraphModule, source: Node, value: Any) -> Node:
    target = edge_ops.edge.dim_order_ops._clone_dim_order.default
    copy = model.graph.call_function(target, (source,), {"dim_order": list(value.dim_order())})
    copy.meta["val"] = value
    return copy
