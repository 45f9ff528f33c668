"""Channels-last tensors and the CPU: only some kernels take them as they lie in memory.

ExecuTorch's portable kernels refuse most channels-last tensors, and those of the Cortex-M dialect read them
by their shape. Around an operator that is not known to take them, the order is changed before and restored
after, so that delegates and other operators see what they were compiled for.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects._ops import ops as edge_ops
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import dim_order_from_stride
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_true
from torch.fx.passes.infra.pass_base import PassResult

from openneutron.fx import op_name, overload, tensor_of
from openneutron.tensors import is_plain

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
    changed = False
    for node in list(model.graph.nodes):  # in order: what is changed here is what a later one reads
        for source, wanted in _in_another_order(model, node):
            with model.graph.inserting_before(node):
                node.replace_input_with(source, _copy(model, source, wanted))
            changed = True
        if not _wants_contiguous(node):
            continue
        changed = True
        for source in [n for n in node.all_input_nodes if _is_reordered(n)]:
            with model.graph.inserting_before(node):
                node.replace_input_with(source, _copy(model, source, _contiguous(source.meta["val"])))
        if not isinstance(node.meta.get("val"), torch.Tensor):  # several results: each is picked by a node
            node.meta["val"] = tuple(map(_contiguous, node.meta["val"]))
        for result in (node, *(u for u in node.users if u.target is operator.getitem)):
            if _is_reordered(result):
                _restore(model, result)
    if changed:
        for node in model.graph.find_nodes(op="call_function", target=executorch_call_delegate):
            _pin_results(getattr(model, node.args[0].target))
        model.graph.lint()
        model.recompile()
    return PassResult(model, changed)


def _pin_results(delegate: LoweredBackendModule) -> None:
    """Write the order of a delegate's results into the graph that ExecuTorch infers it from.

    A tensor of one channel is the same memory in either order, and may now be called contiguous: the results
    of a convolution of it would be inferred to be so too, but the delegate was compiled to write otherwise.
    """
    program = delegate.original_module
    output = program.graph.output_node()
    results, renamed = [], {}
    for result in output.args[0]:
        value = tensor_of(result)
        if value is not None and value.ndim == 4 and not _same_in_either(value):
            with program.graph.inserting_before(output):
                copy = _copy(program.graph_module, result, value)
            renamed[result.name] = copy.name
            result = copy
        results.append(result)
    output.args = (tuple(results),)
    for spec in program.graph_signature.output_specs:
        spec.arg.name = renamed.get(spec.arg.name, spec.arg.name)
    program.graph_module.recompile()


def _restore(model: GraphModule, result: Node) -> None:
    """Let a result be contiguous, and its readers see it as it was."""
    before = result.meta["val"]
    if op_name(result) == "aten.nonzero.default":
        return  # ExecuTorch infers its order again: its readers take copies
    result.meta["val"] = _contiguous(before)
    if free_unbacked_symbols(before) or _is_contiguous(before) or not is_plain(before):
        return  # no delegate reads a size that the data decides, or an order that ExecuTorch does not have
    with model.graph.inserting_after(result):
        copy = _copy(model, result, before)
    result.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def needs_order_restored(model: GraphModule) -> bool:
    """Whether there is such an operator."""
    return any(_wants_contiguous(n) or _in_another_order(model, n) for n in model.graph.nodes)


def _in_another_order(model: GraphModule, node: Node) -> list[tuple[Node, torch.Tensor]]:
    """What a delegate is given in another order in memory than it was compiled for, and how it wants it.

    A partition is taken before ExecuTorch decomposes what is left, and so decides how results of that lie.
    """
    if node.target is not executorch_call_delegate:
        return []
    program = getattr(model, str(cast(Node, node.args[0]).target)).original_module
    takes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    wanted = [tensor_of(takes[name]) for name in program.graph_signature.user_inputs]
    pairs = zip(cast(Any, node.args[1:]), wanted, strict=True)
    return [
        (source, value)
        for source, value in pairs
        if isinstance(source, Node) and (given := tensor_of(source)) is not None and value is not None
        if _steps(given) != _steps(value)
    ]


def _steps(value: torch.Tensor) -> list[int]:
    """The strides that matter: a dimension of one element may have any."""
    pairs = zip(value.stride(), value.shape, strict=True)
    return [stride for stride, size in pairs if guard_or_true(size != 1)]  # the data may decide the size


def _wants_contiguous(node: Node) -> bool:
    op, name = overload(node), op_name(node)
    if op is None or name.startswith(_TAKES_ANY) or name in _TAKES_CHANNELS_LAST:
        return False
    if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return False  # of a tensor's size
    read = [n for n in node.all_input_nodes if tensor_of(n) is not None]
    last = [n for n in (node, *read) if _is_reordered(n)]
    if name.startswith("cortex_m."):  # these look at the memory alone
        last = [n for n in last if not _is_contiguous(n.meta["val"])]
    if not last:
        return False
    if torch.Tag.pointwise not in op.tags:
        return True
    # Element by element is right if all tensors lie in the same order; one that is broadcast does not.
    orders = {(tuple(map(str, n.meta["val"].shape)), _order(n.meta["val"])) for n in (node, *read)}
    return len(orders) > 1 or orders.pop()[1] != (0, 2, 3, 1)  # a third order: of one channel, say


def _is_reordered(node: Node) -> bool:
    value = tensor_of(node)
    return value is not None and _order(value) != tuple(range(value.ndim))


def _order(value: torch.Tensor) -> tuple[int, ...]:
    """The order as ExecuTorch will write it down; a dimension of size 1 may be anywhere."""
    return tuple(dim_order_from_stride(value.stride()))


def _is_contiguous(value: torch.Tensor) -> bool:
    return _steps(value) == _steps(_contiguous(value))


def _same_in_either(value: torch.Tensor) -> bool:
    """Whether both orders are the same memory: one channel, or one pixel."""
    return value.shape[1] == 1 or value.shape[2] == value.shape[3] == 1


def _contiguous(value: Any) -> Any:
    return value.clone(memory_format=torch.contiguous_format) if isinstance(value, torch.Tensor) else value


def _copy(model: GraphModule, source: Node, value: Any) -> Node:
    target = edge_ops.edge.dim_order_ops._clone_dim_order.default
    copy = model.graph.call_function(target, (source,), {"dim_order": list(value.dim_order())})
    copy.meta["val"] = value
    return copy
