"""What a program does at a position that it is told: rows of caches written, and tables of all else.

A value that depends on an index alone, and on one that must be below some number because it says where in a
cache to write or what row of a table to read, is a row of a table itself: masks (`arange(n) <= position`),
angles, rows of rows, places that are computed (`(position + 1) % n`, n rows that begin at one). So no integer
is computed with when the program runs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from openneutron.fx import bind_args, op_name, overload, tensor_of
from openneutron.passes.graph import add_constant, constants_only, insert

aten = torch.ops.aten
_MOST_ENTRIES = 1 << 22  # of one table
_TRIALS = 8  # of random positions, for a table that several read at once
_VIEWS = frozenset(
    f"aten.{name}"
    for name in ("view.default", "reshape.default", "unsqueeze.default", "squeeze.default", "squeeze.dim",
                 "squeeze.dims", "flatten.using_ints", "expand.default", "alias.default", "clone.default",
                 "contiguous.default", "detach.default", "lift_fresh_copy.default")
)  # fmt: skip
_READS = ("aten.index.Tensor", "aten.index_select.default", "aten.embedding.default")
_WRITES = ("aten.index_put.default", "aten.index_copy.default")
_PRODUCTS = (
    "aten.linear.",
    "aten.matmul.",
    "aten.mm.",
    "aten.bmm.",
    "aten.addmm.",
    "aten.conv",
    "aten.embedding.",
)
_CHECKS = ("aten._assert_scalar.default", "aten.sym_constrain_range_for_size.default",
           "aten.sym_constrain_range.default")  # fmt: skip


def index_writes(model: GraphModule) -> bool:
    """Let every write of rows at places that are known when it runs be one `index_put`, and reads `index`."""
    changed = False
    for node in list(model.graph.nodes):
        rewrite = _REWRITES.get(op_name(node))
        if rewrite is not None and (new := rewrite(node)) is not None:
            node.replace_all_uses_with(new)
            model.graph.erase_node(node)
            changed = True
    return _forget_numbers(model) or changed


def _is_index(node: Any) -> bool:
    tensor = tensor_of(node) if isinstance(node, Node) else None
    return tensor is not None and tensor.dtype in (torch.int32, torch.int64)


def _root(node: Node) -> Node:
    """The index that a node shows in another shape, the same elements in the same order."""
    while op_name(node) in _VIEWS and _elements(node) == _elements(node.all_input_nodes[0]):
        node = node.all_input_nodes[0]
    return node


def _elements(node: Node) -> int:
    tensor = tensor_of(node)
    return -1 if tensor is None else tensor.numel()


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(cast(torch.Tensor, tensor_of(node)).shape)


def _reshaped(node: Node, shape: tuple[int, ...], like: Node) -> Node:
    return node if _shape(node) == shape else insert(like, aten.reshape.default, (node, list(shape)), like)


def _put(node: Node, target: Node, dim: int, index: Node, rows: Node) -> Node | None:
    """Rows written along a dimension; None if it is so already."""
    shape, root = _shape(target), _root(index)
    dim %= len(shape)
    wanted = (*shape[:dim], *_shape(root), *shape[dim + 1 :])
    if node.target is aten.index_put.default and root is index and _shape(rows) == wanted:
        return None
    full = (*shape[:dim], *_shape(index), *shape[dim + 1 :])
    if _shape(rows) != full and _elements(rows) != torch.Size(full).numel():
        rows = insert(node, aten.expand.default, (rows, list(full)), node)
    rows = _reshaped(rows, wanted, node)
    return insert(node, aten.index_put.default, (target, [*[None] * dim, root], rows), node)


def _index_copy(node: Node) -> Node | None:
    args = bind_args(node)
    if not _is_index(args["index"]) or not _shape(args["self"]):
        return None
    return _put(node, args["self"], args["dim"], args["index"], args["source"])


def _index_put(node: Node) -> Node | None:
    args = bind_args(node)
    indexed = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if len(indexed) != 1 or args["accumulate"] or not _is_index(indexed[0][1]):
        return None
    return _put(node, args["self"], *indexed[0], args["values"])


def _scatter(node: Node) -> Node | None:
    """A scatter whose index is the same along all other dimensions."""
    args = bind_args(node)
    target, index, source = args["self"], args["index"], args["src"]
    dim, shape = args["dim"], _shape(target)
    if not shape or _shape(index) != (*shape[: dim % len(shape)], *_shape(index)[dim % len(shape) :]):
        return None
    dim %= len(shape)
    count = _shape(index)[dim]
    if _shape(index) != (*shape[:dim], count, *shape[dim + 1 :]) or _shape(source) != _shape(index):
        return None
    narrow = index
    while op_name(narrow) in _VIEWS and _elements(narrow) > count:
        source_of = narrow.all_input_nodes[0]
        if op_name(narrow) == "aten.expand.default" and _elements(source_of) == count:
            places = _shape(source_of)
            if (1,) * (len(shape) - len(places)) + places != (
                *[1] * dim,
                count,
                *[1] * (len(shape) - dim - 1),
            ):
                return None
        elif op_name(narrow) == "aten.expand.default":
            return None
        narrow = source_of
    if _elements(narrow) != count:
        return None
    if _elements(index) != count:
        narrow = _reshaped(_root(narrow), (count,), node)
    return _put(node, target, dim, _reshaped(narrow, (count,), node), source)


def _start(value: Any) -> Node | None:
    """The index that a number was taken from."""
    if isinstance(value, Node) and op_name(value) in (
        "aten.item.default",
        "aten._local_scalar_dense.default",
    ):
        return value.all_input_nodes[0]
    return None


def _places(index: Node, rows: int, count: int, like: Node) -> Node:
    """Where in so many rows some are that follow one another, the first of them at an index."""
    first = _reshaped(index, (1,), like)
    if count == 1:
        return first
    table = torch.arange(rows - count + 1)[:, None] + torch.arange(count)
    stored = add_constant(cast(GraphModule, like.graph.owning_module), like, table, f"{like.name}_places")
    return insert(like, aten.index.Tensor, (stored, [first]), like)


def _slice_scatter(node: Node) -> Node | None:
    """Rows written at a number that is taken from an input."""
    args = bind_args(node)
    index, rows, dim = _start(args["start"]), args["src"], args["dim"]
    if index is None or args["step"] != 1:
        return None
    if op_name(rows) == "aten.copy.default":
        rows = insert(node, aten.expand.default, (rows.args[1], list(_shape(rows))), node)
    places = _places(index, _shape(node)[dim], _shape(rows)[dim], node)
    return _put(node, args["self"], dim, places, rows)


def _select_scatter(node: Node) -> Node | None:
    args = bind_args(node)
    index, rows, dim = _start(args["index"]), args["src"], args["dim"]
    if index is None:
        return None
    if op_name(rows) == "aten.copy.default":
        rows = insert(node, aten.expand.default, (rows.args[1], list(_shape(rows))), node)
    return _put(node, args["self"], dim, _reshaped(index, (1,), node), rows)


def _slice(node: Node) -> Node | None:
    args = bind_args(node)
    index, dim = _start(args["start"]), args["dim"]
    count = _shape(node)[dim]
    if index is None or args["step"] != 1 or not isinstance(count, int):
        return None
    dim %= len(_shape(args["self"]))
    places = _places(index, _shape(args["self"])[dim], count, node)
    rows = insert(node, aten.index.Tensor, (args["self"], [*[None] * dim, places]), node)
    return _reshaped(rows, _shape(node), node)


def _select(node: Node) -> Node | None:
    args = bind_args(node)
    index = _start(args["index"])
    if index is None:
        return None
    dim = args["dim"] % len(_shape(args["self"]))
    row = insert(node, aten.index.Tensor, (args["self"], [*[None] * dim, _reshaped(index, (1,), node)]), node)
    return _reshaped(row, _shape(node), node)


def _index(node: Node) -> Node | None:
    """Rows read at places that are a row of a table, in the shape that they have there."""
    args = bind_args(node)
    indexed = [(dim, index) for dim, index in enumerate(args["indices"]) if index is not None]
    if len(indexed) != 1 or not _is_index(indexed[0][1]):
        return None
    ((dim, index),) = indexed
    if not _is_row(root := _root(index)) or root is index:
        return None
    return _reshaped(
        insert(node, aten.index.Tensor, (args["self"], [*[None] * dim, root]), node), _shape(node), node
    )


_REWRITES = {
    "aten.index.Tensor": _index,
    "aten.index_copy.default": _index_copy,
    "aten.index_put.default": _index_put,
    "aten.scatter.src": _scatter,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
}


def _forget_numbers(model: GraphModule) -> bool:
    """Drop checks of numbers that nothing but checks reads any more: the runtime checks every index."""
    model.graph.eliminate_dead_code()
    changed = False
    for node in list(model.graph.nodes):
        if _start(node) is None:
            continue
        readers = _readers(node)
        if all(op_name(n) in _CHECKS or n.target in _COMPARING for n in readers):
            for reader in sorted(readers, key=list(model.graph.nodes).index, reverse=True):
                model.graph.erase_node(reader)
            model.graph.erase_node(node)
            changed = True
    return changed


_COMPARING = tuple(
    getattr(operator, name) for name in ("ge", "le", "gt", "lt", "eq", "ne", "add", "sub", "and_")
)


def _readers(node: Node) -> set[Node]:
    readers: set[Node] = set()
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if user not in readers:
            readers.add(user)
            pending += user.users
    return readers


# --------------------------------------------------------------------------------------------------


def tabulate_positions(model: GraphModule) -> bool:
    """Let what depends on a bounded index alone be a row of a table."""
    nodes = list(model.graph.nodes)
    fixed = constants_only(nodes)
    changed = False
    for index in [n for n in nodes if n.op == "placeholder" and _is_index(n) and _elements(n) > 0]:
        derived = _derived(index, nodes, fixed)
        limit = min(_limits(index, derived, fixed), default=0)
        for node in [n for n in derived if limit and _is_wanted(n, derived)]:
            changed |= _tabulate(model, node, index, limit)
    if changed:
        index_writes(model)  # places that are rows now, as they are in the table
    return changed


def _derived(index: Node, nodes: list[Node], fixed: set[Node]) -> dict[Node, None]:
    """An index, and what depends on it and on constants alone; no products with weights."""
    derived = {index: None}
    for node in nodes:
        op = overload(node)
        if op is None or op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags:
            continue
        sources = node.all_input_nodes
        if tensor_of(node) is None or not any(n in derived for n in sources):
            continue
        if all(n in derived or n in fixed for n in sources) and not op_name(node).startswith(_PRODUCTS):
            derived[node] = None
    return derived


def _limits(index: Node, derived: dict[Node, None], fixed: set[Node]) -> Iterator[int]:
    """How large an index is at most, and one more: so many rows has what it is a place in."""
    for node in derived:
        if _root(node) is not index:
            continue
        for user in node.users:
            size = _size_at(user, node)
            if size is not None:
                yield size


def _size_at(user: Node, index: Node) -> int | None:
    """The size of what is read or written at an index; None if it is not one there."""
    name = op_name(user)
    if name not in _READS + _WRITES:
        return None
    args = bind_args(user)
    if name == "aten.embedding.default":
        dim = 0 if args["indices"] is index else None
    elif "indices" in args:
        dim = next((d for d, i in enumerate(args["indices"]) if i is index), None)
    else:
        dim = args["dim"] if args["index"] is index else None
    return None if dim is None else _shape(cast(Node, args["weight" if "weight" in args else "self"]))[dim]


def _is_wanted(node: Node, derived: dict[Node, None]) -> bool:
    """Whether something else computes with a value, and not with a row of a constant already."""
    tensor = tensor_of(node)
    if tensor is None or _is_row(node):
        return False
    if _is_index(node):
        at_place = any(op_name(user) in _READS + _WRITES and user not in derived for user in node.users)
        return at_place and _root(node).op != "placeholder" and not _is_row(_root(node))
    if not (tensor.is_floating_point() or tensor.dtype == torch.bool):
        return False
    return any(user not in derived and user.op != "output" for user in node.users)


def _is_row(node: Node) -> bool:
    """Whether a value is a row of a constant, by an input."""
    if op_name(node) != "aten.index.Tensor":
        return False
    source, first = node.all_input_nodes[-1], bind_args(node)["indices"]
    return first[0] is source and source.op == "placeholder" and node.all_input_nodes[0].op == "get_attr"


def _tabulate(model: GraphModule, node: Node, index: Node, limit: int) -> bool:
    count, shape = _elements(index), _shape(node)
    row = torch.Size(shape).numel() // count
    if limit * row > _MOST_ENTRIES:
        return False
    places = torch.arange(limit)
    with torch.no_grad():
        whole = [_value(model, node, index, torch.full((count,), int(p))) for p in places]
    axis = None
    if count == 1:
        table = torch.stack(whole)
    else:
        axis = next(
            (a for a, d in enumerate(shape) if d == count and _is_by_row(model, node, index, whole, a)), None
        )
        if axis is None:
            return False
        table = torch.stack([value.select(axis, 0) for value in whole])
    if _is_index(node):
        table = _in_range(table, {_size_at(user, node) for user in node.users} - {None})
    truth = table.dtype == torch.bool
    stored = add_constant(model, node, table.float() if truth else table, f"{node.name}_by_{index.name}")
    entry = insert(node, aten.index.Tensor, (stored, [index]), node)
    if axis is None:
        entry = _reshaped(entry, shape, node)
    else:
        rest = (*shape[:axis], *shape[axis + 1 :])
        entry = _reshaped(entry, (count, *rest), node)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
        entry = entry if axis == 0 else insert(node, aten.permute.default, (entry, order), node)
    if truth:
        entry = insert(node, aten.gt.Scalar, (entry, 0.5), node)
    node.replace_all_uses_with(entry)
    return True


def _in_range(table: torch.Tensor, sizes: set[int | None]) -> torch.Tensor:
    """Places as PyTorch takes them, negative ones from the end; without last rows that are out of range.

    So the position that leads there is what is out of range when it runs, and is named.
    """
    if len(sizes) != 1 or (size := sizes.pop()) is None:
        return table
    table = torch.where((table < 0) & (table >= -size), table + size, table)
    good = ((table >= 0) & (table < size)).flatten(1).all(1)
    count = int(good.sum())
    return table[:count] if count and bool(good[:count].all()) else table


def _is_by_row(model: GraphModule, node: Node, index: Node, whole: list[torch.Tensor], axis: int) -> bool:
    """Whether each slice of a value depends on one of the positions: tried with random ones."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(_TRIALS):
        places = torch.randint(len(whole), (_elements(index),), generator=generator)
        wanted = torch.stack([whole[p].select(axis, 0) for p in places.tolist()], axis)
        if not torch.equal(_value(model, node, index, places), wanted):
            return False
    return True


def _value(model: GraphModule, node: Node, index: Node, places: torch.Tensor) -> torch.Tensor:
    """What a node is for an index."""
    like = cast(torch.Tensor, tensor_of(index))
    values: dict[Node, Any] = {index: places.to(like.dtype).view(tuple(like.shape))}

    def value(n: Node) -> Any:
        if n not in values:
            if n.op == "get_attr":
                values[n] = _attribute(model, str(n.target))
            else:
                args, kwargs = map_arg((n.args, n.kwargs), value)
                values[n] = n.target(*args, **kwargs)  # type: ignore[operator]
        return values[n]

    return cast(torch.Tensor, value(node)).clone()


def _attribute(model: GraphModule, name: str) -> Any:
    value: Any = model
    for part in name.split("."):
        value = getattr(value, part)
    return value.detach()
