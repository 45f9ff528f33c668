"""What the ATen passes share: constants of an exported module, and inlining a function in place of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from openneutron.fx import bind_args, source_of

# Where a node comes from: copied to the nodes that replace it, so that reports name the user's own module.
_PROVENANCE = ("nn_module_stack", "stack_trace", "torch_fn", "source_fn_stack")


def constant(model: GraphModule, node: Any) -> torch.Tensor | None:
    """The tensor of a `get_attr` node, or None if it is no constant."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    value = functools.reduce(getattr, str(node.target).split("."), model)
    return value if isinstance(value, torch.Tensor) else None


def add_constant(model: GraphModule, before: Node, value: torch.Tensor, name: str) -> Node:
    """A new constant, trainable if `value` is a Parameter, and the node that reads it."""
    name = name.replace(".", "_")
    index = 0
    while hasattr(model, f"{name}_{index}"):
        index += 1
    name = f"{name}_{index}"
    if isinstance(value, torch.nn.Parameter):
        model.register_parameter(name, value)
    else:
        model.register_buffer(name, value.detach().clone())
    with model.graph.inserting_before(before):
        node = model.graph.get_attr(name)
    node.meta["val"] = fake_mode(model.graph).from_tensor(value.detach(), static_shapes=True)
    return node


def fake_mode(graph: Graph) -> Any:
    """The mode that the fake results in a graph belong to."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, tuple | list) else (value,):
            if (mode := getattr(item, "fake_mode", None)) is not None:
                return mode
    raise AssertionError("the graph has no fake tensors: it was not made by torch.export")


def insert(before: Node, target: Any, args: tuple[Any, ...], like: Node, kwargs: Any = None) -> Node:
    """A call inserted before a node, with its fake result and the provenance of `like`."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    copy_provenance(like, node)
    infer(node)
    return node


def infer(node: Node) -> None:
    """Compute the fake result of a node from those of its arguments."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with fake_mode(node.graph), torch.no_grad():
        node.meta["val"] = cast(Callable[..., Any], node.target)(*args, **kwargs)


def copy_provenance(source: Node, target: Node) -> None:
    """Let a new node stand where an old one stood in the user's program."""
    target.meta.update({key: source.meta[key] for key in _PROVENANCE if key in source.meta})
    target.meta["from_node"] = [source_of(source)]


def change_call(node: Node, target: OpOverload, args: tuple[Any, ...], kwargs: Any = None) -> None:
    """Let a node call something else, and remember what it called: users may name that."""
    node.meta["from_node"] = [source_of(node)]
    node.target, node.args, node.kwargs = target, args, kwargs or {}


def trace(
    node: Node,
    function: Callable[..., Any],
    pre_dispatch: bool = True,
    table: Mapping[OpOverload, Callable[..., Any]] | None = None,
) -> GraphModule:
    """The graph of `function` called with the node's arguments by name; the input nodes are its placeholders.

    With `pre_dispatch`, operators that PyTorch composes of others stay whole (as `torch.export` leaves them).
    Those of the `table` are decomposed as it says.
    """
    bound = bind_args(node)
    inputs = node.all_input_nodes

    def call(*tensors: Any) -> Any:
        values = dict(zip(inputs, tensors, strict=True))
        return function(**map_arg(bound, lambda n: values[n]))

    return trace_on(call, [n.meta["val"] for n in inputs], pre_dispatch, table)


def trace_on(
    function: Callable[..., Any],
    args: Sequence[Any],
    pre_dispatch: bool = True,
    table: Mapping[OpOverload, Callable[..., Any]] | None = None,
) -> GraphModule:
    """The graph of a function of these (fake) tensors; nodes may share one result, so each is taken anew."""
    mode = next((m for a in args if (m := getattr(a, "fake_mode", None)) is not None), None)
    assert mode is not None, "there are no fake tensors among the arguments"
    with mode, torch.no_grad():
        first = {id(a): i for i, a in reversed(list(enumerate(args)))}
        own = [a if first[id(a)] == i else _like(a) for i, a in enumerate(args)]
        return make_fx(function, decomposition_table=table, pre_dispatch=pre_dispatch)(*own)


def _like(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def inline(node: Node, replacement: GraphModule) -> list[Node]:
    """Put a traced graph in the place of a call; returns the new nodes."""
    values: dict[Node, Any] = dict(
        zip((n for n in replacement.graph.nodes if n.op == "placeholder"), node.all_input_nodes, strict=True)
    )
    made: list[Node] = []
    result: Any = None
    for inner in replacement.graph.nodes:
        if inner.op == "output":
            result = map_arg(inner.args[0], lambda n: values[n])
        elif inner.op != "placeholder":
            assert inner.op == "call_function", f"a decomposition made a constant: {inner.format_node()}"
            with node.graph.inserting_before(node):
                values[inner] = node.graph.node_copy(inner, lambda n: values[n])
            copy_provenance(node, values[inner])
            made.append(values[inner])
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):  # several results: the users of the call are getitems
            if user.users:
                user.replace_all_uses_with(result[user.args[1]])
            node.graph.erase_node(user)
    node.graph.erase_node(node)
    return made


def constants_only(nodes: Iterable[Node]) -> set[Node]:
    """The nodes whose value no input of the program can change."""
    constants: set[Node] = set()
    for node in nodes:
        if node.op == "get_attr" or (
            node.op == "call_function" and not node.is_impure() and constants.issuperset(node.all_input_nodes)
        ):
            constants.add(node)
    return constants
