"""An exported program as the Edge dialect would have it, without tracing it anew.

ExecuTorch replaces views by copies and decomposes what is not in Core ATen by tracing a program several times
over. Before partitioning only two things of that matter, and both are done here in place: results of views
are contiguous, and what the NPU does not take is in the terms in which the CPU will compute it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import make_contiguous_strides_for
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from openneutron.fx import bind_args, op_name, overload, sources
from openneutron.ops.shape import RESHAPE
from openneutron.passes.graph import infer, inline, trace

# Like views, but they are asked for an order in memory, or keep the one there is.
_KEEP_ORDER = frozenset({"contiguous", "to", "type_as", "dropout", "feature_dropout", "dropout_"})


def is_functional(program: ExportedProgram) -> bool:
    """Whether no call changes its arguments: then ExecuTorch would find nothing to functionalize."""
    calls = (n for n in program.graph.nodes if n.op == "call_function")
    return all((op := overload(n)) is None or not op._schema.is_mutable for n in calls)


def copy_views(program: ExportedProgram) -> None:
    """Let every view be a copy, contiguous as ExecuTorch's are, and what follows from it be known.

    Operators that ExecuTorch has in one form only are given that form, and so its name.
    """
    moved: set[Node] = set()
    for node in list(program.graph.nodes):
        if node.op != "call_function" or not _is_static(node):
            continue
        before = _strides(node)
        if node.target is operator.getitem:
            source, index = node.args
            if source in moved:
                node.meta["val"] = source.meta["val"][index]
        elif (op := overload(node)) is not None:
            if not moved.isdisjoint(node.all_input_nodes):
                infer(node)
            if _is_view(op) or op_name(node) in RESHAPE.names:
                _to_copy(node, op)
            elif op is torch.ops.aten.max_pool2d.default:
                _add_indices(node)
        if _strides(node) != before:
            moved.add(node)


def _is_view(op: OpOverload) -> bool:
    arguments = op._schema.arguments
    alias = arguments[0].alias_info if arguments else None
    packet = op._schema.name.removeprefix("aten::")
    return alias is not None and not alias.is_write and packet not in _KEEP_ORDER


def _to_copy(node: Node, op: OpOverload) -> None:
    value = node.meta["val"] = pytree.tree_map_only(torch.Tensor, _contiguous, node.meta["val"])
    if op_name(node) in RESHAPE.names and all(isinstance(d, int) for d in value.shape):
        node.target = torch.ops.aten.view_copy.default
        node.args, node.kwargs = (node.all_input_nodes[0], list(value.shape)), {}
    elif op is torch.ops.aten.transpose.int:
        source, *dims = bind_args(node).values()
        order = list(range(value.ndim))
        first, second = (d % value.ndim for d in dims)
        order[first], order[second] = second, first
        node.target, node.args, node.kwargs = torch.ops.aten.permute_copy.default, (source, order), {}
    else:
        node.target = _copy_of(op) or op


def _add_indices(node: Node) -> None:
    """A pooling has a second result in Core ATen."""
    node.target = torch.ops.aten.max_pool2d_with_indices.default
    with node.graph.inserting_after(node):
        first = node.graph.call_function(operator.getitem, (node, 0))
    node.replace_all_uses_with(first, delete_user_cb=lambda user: user is not first)
    first.meta = dict(node.meta)
    infer(node)


def _copy_of(op: OpOverload) -> OpOverload | None:
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::") + "_copy", None)
    return getattr(packet, op._overloadname, None)


def _contiguous(value: torch.Tensor) -> torch.Tensor:
    # Not `is_contiguous`: the strides of dimensions of one element may be any there.
    same = value.stride() == make_contiguous_strides_for(value.shape)
    return value if same else value.clone(memory_format=torch.contiguous_format)


def _strides(node: Node) -> Any:
    return [v.stride() for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]


def decompose_nodes(
    program: ExportedProgram,
    nodes: Iterable[Node],
    find: Callable[[], Mapping[OpOverload, Callable[..., Any]]],
) -> bool:
    """Put what a table says in the place of these nodes; says whether there was anything to do."""
    nodes = list(nodes)
    table, changed = find() if nodes else {}, False
    for node in nodes:
        op = overload(node)
        if op is None or op not in table or _is_view(op) or not _is_static(node):
            continue
        try:
            graph = trace(node, op, pre_dispatch=False, table=table)
        except Exception:
            continue  # ExecuTorch will do it, or say why not
        if [n for n in graph.graph.nodes if n.op == "get_attr"] or _is_same(graph, op) or _is_native(graph):
            continue
        inline(node, graph)
        changed = True
    if changed:
        program.graph_module.recompile()
    return changed


def _is_native(graph: GraphModule) -> bool:
    """Whether torch chose what only a library of this machine has, as for an LSTM; ExecuTorch does not."""
    return any("mkldnn" in str(n.target) for n in graph.graph.nodes)


def _is_same(graph: GraphModule, op: OpOverload) -> bool:
    return [n.target for n in graph.graph.nodes if n.op == "call_function"] == [op]


def _is_static(node: Node) -> bool:
    """Whether a node reads and makes tensors of fixed sizes; asking about others would tie them down."""
    values = [v for n in (node, *node.all_input_nodes) for v in pytree.tree_leaves(n.meta.get("val"))]
    return bool(node.all_input_nodes) and all(
        v is None or (isinstance(v, torch.Tensor) and all(isinstance(d, int) for d in v.shape))
        for v in values
    )


def restore_names(model: GraphModule) -> None:
    """Give nodes back the names `name_as_edge` gave them: ExecuTorch counts anew in what it was given."""
    for node in model.graph.nodes:
        if overload(node) is None:
            continue
        base = _edge_name(node)
        for source in sources(node):
            name, number = source.name, source.name.removeprefix(base)
            if name != node.name and name.startswith(base) and (not number or number[1:].isdigit()):
                node._rename(name)
                break


def _edge_name(node: Node) -> str:
    return op_name(node).replace(".", "_").lower()


def name_as_edge(program: ExportedProgram) -> None:
    """Call nodes as the Edge dialect calls them: `aten_convolution_default_1`."""
    for node in program.graph.nodes:
        if overload(node) is not None:
            node._rename(_edge_name(node))


def name_outputs(program: ExportedProgram) -> None:
    """Let the signature name what the graph returns."""
    returned = program.graph.output_node().args[0]
    for spec, node in zip(program.graph_signature.output_specs, returned, strict=True):
        if isinstance(node, Node):
            spec.arg.name = node.name


_RESHAPED = ("aten.view_copy.default", "aten.view.default", "aten._unsafe_view.default")


def restore_view(node: Node) -> None:
    """Let a copy that ExecuTorch will be given be a view again: it decomposes views, not their copies.

    Another shape is `reshape`: what was a copy before it, and contiguous, is a view again, too.
    """
    op = overload(node)
    if op_name(node) in _RESHAPED:
        node.target = torch.ops.aten.reshape.default
    elif op is not None and (packet := op._schema.name.removeprefix("aten::")).endswith("_copy"):
        view = getattr(getattr(torch.ops.aten, packet.removesuffix("_copy"), None), op._overloadname, None)
        if view is not None and _is_view(view):
            node.target = view
