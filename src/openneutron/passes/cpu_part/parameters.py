"""Parameters of quantize and dequantize steps on the CPU, in the types that ExecuTorch's kernels take."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from openneutron.fx import op_name, tensor_of

# By operator: the types of its scales and zero points. ExecuTorch's kernels end the process on others.
_WANTED = {
    "quantized_decomposed.quantize_per_channel.default": (torch.float64, torch.int64),
    "quantized_decomposed.dequantize_per_channel.default": (None, torch.int64),
    "quantized_decomposed.quantize_per_tensor.tensor": (torch.float64, torch.int64),
    "quantized_decomposed.dequantize_per_tensor.tensor": (torch.float64, torch.int64),
}


def has_narrow_parameters(model: GraphModule) -> bool:
    """Whether a step has parameters of another type than its kernel takes."""
    return any(_narrow(node) for node in model.graph.nodes)


def widen_parameters(model: GraphModule) -> PassResult:
    """Convert parameters before the steps that read them."""
    for node in list(model.graph.nodes):
        for index, dtype in _narrow(node):
            parameter = node.args[index]
            assert isinstance(parameter, Node)
            with model.graph.inserting_before(node):
                how: dict[str, Any] = {"dtype": dtype, "dim_order": list(range(parameter.meta["val"].dim()))}
                convert = exir_ops.edge.dim_order_ops._to_dim_order_copy.default
                wide = model.graph.call_function(convert, (parameter,), how)
            wide.meta = {**parameter.meta, "val": parameter.meta["val"].to(dtype)}
            node.update_arg(index, wide)
    model.recompile()
    return PassResult(model, True)


def _narrow(node: Node) -> list[tuple[int, torch.dtype]]:
    """Which arguments of a node have another type than its kernel takes, and the type it takes."""
    narrowed = []
    for index, dtype in enumerate(_WANTED.get(op_name(node), ()), 1):
        value = node.args[index]
        tensor = tensor_of(value) if isinstance(value, Node) else None
        if dtype is not None and tensor is not None and tensor.dtype != dtype:
            narrowed.append((index, dtype))
    return narrowed
