"""Regions that torch.export sets apart are put back where they stand.

A part of `forward` under `torch.no_grad()` or `torch.autocast` is exported as a call of a graph of its own,
which neither torchao nor the operator table looks into.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from openneutron.passes.graph import fake_mode

_HIGHER = torch.ops.higher_order
# Of each kind of region: where among its arguments the graph stands; its own arguments follow.
_GRAPH_AT: dict[Any, int] = {
    _HIGHER.wrap_with_set_grad_enabled: 1,
    _HIGHER.wrap_with_autocast: 4,
    _HIGHER.hints_wrapper: 0,
    _HIGHER.invoke_subgraph: 0,
    _HIGHER.tag_activation_checkpoint: 0,
}


def inline_regions(model: GraphModule) -> bool:
    """Put the graphs of regions in the place of their calls, the innermost too."""
    changed = False
    while regions := [n for n in model.graph.nodes if n.op == "call_function" and n.target in _GRAPH_AT]:
        for node in regions:
            _inline(model, node)
        changed = True
    return changed


def _inline(model: GraphModule, node: Node) -> None:
    region: Any = node.args[_GRAPH_AT[node.target]]
    inner = getattr(model, str(region.target))
    arguments = _arguments(node)
    if node.target is _HIGHER.wrap_with_autocast and node.args[2] and _changes_types(inner):
        inner = _with_casts(node, inner, arguments)
    values: dict[Node, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), arguments, strict=True))
    for part in inner.graph.nodes:
        if part.op == "get_attr":
            values[part] = _move_attribute(model, node, inner, part)
        elif part.op == "output":
            _replace_results(node, map_arg(part.args[0], lambda n: values[n]))
        elif part.op != "placeholder":
            with model.graph.inserting_before(node):
                values[part] = model.graph.node_copy(part, lambda n: values[n])
    model.graph.erase_node(node)
    if not region.users:
        model.graph.erase_node(region)
        delattr(model, str(region.target))


def _arguments(node: Node) -> list[Any]:
    rest: list[Any] = list(node.args[_GRAPH_AT[node.target] + 1 :])
    if node.target is _HIGHER.hints_wrapper:  # a tuple of them, and a dictionary
        return list(rest[0])
    return rest[1:] if node.target is _HIGHER.invoke_subgraph else rest  # which begin with a name


def _changes_types(inner: GraphModule) -> bool:
    """Whether a region computes in a lower precision; one meant for another device does not."""
    low = (torch.bfloat16, torch.float16)
    return any(getattr(n.meta.get("val"), "dtype", None) in low for n in inner.graph.nodes)


def _with_casts(node: Node, inner: GraphModule, arguments: list[Any]) -> GraphModule:
    """The region with the conversions that autocast would make at run time written down."""
    device, dtype = node.args[:2]
    values = [a.meta["val"] if isinstance(a, Node) else a for a in arguments]
    mode = fake_mode(node.graph)
    with mode, torch.no_grad(), torch.autocast(str(device), dtype=dtype, cache_enabled=False):  # type: ignore[arg-type]
        return make_fx(inner)(*values)


def _move_attribute(model: GraphModule, before: Node, inner: GraphModule, part: Node) -> Node:
    """A constant or a region inside the region becomes one of the model."""
    value: Any = inner
    for step in str(part.target).split("."):
        value = getattr(value, step)
    index = 0
    while hasattr(model, name := f"inlined_{index}"):
        index += 1
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        model.register_buffer(name, value)
    else:
        setattr(model, name, value)
    with model.graph.inserting_before(before):
        copy = model.graph.get_attr(name)
    copy.meta.update(part.meta)
    return copy


def _replace_results(node: Node, results: Any) -> None:
    if not isinstance(results, tuple | list):
        node.replace_all_uses_with(results)
        return
    for user in list(node.users):  # a region gives a tuple; its users pick from it
        assert user.target is operator.getitem, f"{user.format_node()} takes all results of a region"
        user.replace_all_uses_with(results[cast(int, user.args[1])])
        node.graph.erase_node(user)
