"""Elements chosen or replaced at places that are known before the run.

`y[:, 0] = z`, `scatter` and `index_put` with constant indices, diagonals, `gather`: what each element of the
result is taken from is found by calling the operator on the numbers of the elements. What comes of it is
slices side by side, indices along one dimension, a choice by a constant mask, or indices of all elements.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from openneutron.fx import bind_args, is_float, op_name, tensor_of
from openneutron.passes.graph import add_constant, constant, insert

aten = torch.ops.aten
# By operator, its arguments that bring elements; all others say where they go.
_MOVES: dict[str, tuple[str, ...]] = {
    "aten.select_scatter.default": ("self", "src"),
    "aten.slice_scatter.default": ("self", "src"),
    "aten.diagonal_scatter.default": ("self", "src"),
    "aten.as_strided_scatter.default": ("self", "src"),
    "aten.index_put.default": ("self", "values"),
    "aten.index_copy.default": ("self", "source"),
    "aten.index_fill.int_Scalar": ("self", "value"),
    "aten.index_fill.int_Tensor": ("self", "value"),
    "aten.scatter.src": ("self", "src"),
    "aten.scatter.value": ("self", "value"),
    "aten.masked_scatter.default": ("self", "source"),
    "aten.gather.default": ("self",),
    "aten.index.Tensor": ("self",),
    "aten.take.default": ("self",),
    "aten.take_along_dim.default": ("self",),
    "aten.diagonal.default": ("self",),
    "aten.unfold.default": ("self",),
    "aten.as_strided.default": ("self",),
    "aten.rot90.default": ("self",),
    "aten.repeat_interleave.self_int": ("self",),
    "aten.repeat_interleave.self_Tensor": ("self",),
}
_BAGS = ("aten.embedding_bag.default", "aten.embedding_bag.padding_idx")
_LARGEST = 1 << 18  # elements of a result that is put together one by one
_MOST_PARTS = 16  # slices side by side; of more, indices are less work


def rewrite_constant_places(model: GraphModule) -> bool:
    """Write what moves elements to places known before the run in slices, indices and constant masks."""
    changed = False
    for node in list(model.graph.nodes):
        if op_name(node) in _MOVES and is_float(node):
            new = _chosen_by_mask(node) or _rewritten(model, node)
            if new is not None:
                node.replace_all_uses_with(new)
                model.graph.erase_node(node)
                changed = True
        elif op_name(node) in _BAGS:
            changed |= _open_bags(model, node)
    return changed


def _open_bags(model: GraphModule, node: Node) -> bool:
    """Rows of a table, and of equally many in turn their sum, mean or largest."""
    args = bind_args(node)
    starts, indices = constant(model, args["offsets"]), tensor_of(args["indices"])
    read = [user for user in node.users if user.users]
    if starts is None or indices is None or not isinstance(indices.numel(), int) or not len(starts):
        return False
    count, rest = divmod(indices.numel(), len(starts))
    equal = not rest and count > 0 and torch.equal(starts, torch.arange(0, indices.numel(), count))
    weighted = args["per_sample_weights"] is not None or (args.get("padding_idx") or -1) >= 0
    if not equal or weighted or args["include_last_offset"] or [user.args[1] for user in read] != [0]:
        return False
    rows = insert(node, aten.reshape.default, (args["indices"], [len(starts), count]), node)
    rows_read = insert(node, aten.embedding.default, (args["weight"], rows), node)
    reduce = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default)[args["mode"]]
    read[0].replace_all_uses_with(insert(node, reduce, (rows_read, [1]), node))
    return True


def _chosen_by_mask(node: Node) -> Node | None:
    """`y[y < 0] = 0`: one value wherever a mask says so, computed or not."""
    args = bind_args(node)
    indices: Any = args.get("indices")
    if op_name(node) != "aten.index_put.default" or args["accumulate"] or len(indices) != 1:
        return None
    mask, value = tensor_of(indices[0]), tensor_of(args["values"])
    if mask is None or mask.dtype != torch.bool or value is None or _size(args["values"]) != 1:
        return None
    chosen, filled, self = indices[0], args["values"], cast(torch.Tensor, tensor_of(node))
    for _ in range(self.dim() - mask.dim()):
        chosen = insert(node, aten.unsqueeze.default, (chosen, -1), node)
    if value.dim() != 1:
        filled = insert(node, aten.reshape.default, (filled, [1]), node)
    return insert(node, aten.where.self, (chosen, filled, args["self"]), node)


def _rewritten(model: GraphModule, node: Node) -> Node | None:
    args, name = bind_args(node), op_name(node)
    if name == "aten.index.Tensor" and _is_one_list(model, args["indices"]):
        return None  # the table has it
    if args.get("accumulate") or args.get("reduce"):
        return None
    moved = [args[a] for a in _MOVES[name]]
    values = [v if isinstance(v, Node) else float(v) for v in moved]
    sizes = [_size(v) for v in values]
    if any(s is None or s > 1 << 24 for s in sizes):
        return None
    chosen = _numbers(model, node, values, cast(list[int], sizes))
    if chosen is None or not 0 < chosen.numel() <= 1 << 24 or bool((chosen < 0).any()):
        return None
    first, second = values[0], values[1] if len(values) > 1 else None
    assert isinstance(first, Node)
    whole = cast(torch.Tensor, tensor_of(first))
    if second is None:
        return _picked(model, node, first, whole, chosen)
    return replace_places(model, node, first, second, chosen)


def _is_one_list(model: GraphModule, indices: Any) -> bool:
    values = [constant(model, i) for i in indices if i is not None]
    return (
        len(values) == 1 and values[0] is not None and values[0].dim() == 1 and values[0].dtype != torch.bool
    )


def _size(value: Any) -> int | None:
    if not isinstance(value, Node):
        return 1
    tensor = tensor_of(value)
    if tensor is None or not all(isinstance(d, int) for d in (*tensor.shape, *tensor.stride())):
        return None
    return tensor.numel()


def numbered(like: torch.Tensor, first: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """The number of each element of a tensor, laid out in memory as it is; -1 is memory that is not its own.

    Elements that share memory, as in an expanded tensor, have one value: the number of the first will do.
    """
    numbers = torch.arange(first, first + like.numel())
    start, held = like.storage_offset(), like.untyped_storage().nbytes()
    start = start if isinstance(start, int) else 0  # of a tensor whose own size is not known, it may not be
    places = torch.full(like.shape, start)
    for dim, (size, stride) in enumerate(zip(like.shape, like.stride(), strict=True)):
        places += (torch.arange(size) * stride).view(-1, *[1] * (like.dim() - dim - 1))
    last = int(places.reshape(-1)[-1]) if like.numel() else 0
    size = max(held // like.element_size() if isinstance(held, int) else 0, last + 1)
    memory = torch.full((size,), -1).scatter_reduce_(
        0, places.reshape(-1), numbers, "amin", include_self=False
    )
    return memory.to(dtype).as_strided(like.shape, like.stride(), start)


def _numbers(model: GraphModule, node: Node, values: list[Any], sizes: list[int]) -> torch.Tensor | None:
    """The operator called on numbers: those of the first argument's elements, then those of the second's."""
    stand_in: dict[Node, torch.Tensor] = {}
    count = 0
    for value, size in zip(values, sizes, strict=True):
        if isinstance(value, Node):
            if value in stand_in:
                return None  # a tensor put into itself
            like = cast(torch.Tensor, tensor_of(value))
            stand_in[value] = numbered(like, count, torch.float64)
        count += size
    for other in node.all_input_nodes:
        if other not in stand_in:
            folded = constant(model, other)
            if folded is None:
                return None
            stand_in[other] = folded
    bound = bind_args(node)
    if len(values) == 2 and not isinstance(values[1], Node):
        bound[_MOVES[op_name(node)][1]] = float(sizes[0])
    given = map_arg(bound, lambda n: stand_in[n])
    with torch.no_grad():
        return cast(Any, node.target)(**given).to(torch.int64)


def _picked(
    model: GraphModule, node: Node, source: Node, whole: torch.Tensor, chosen: torch.Tensor
) -> Node | None:
    """A result whose elements all come from one tensor."""
    for dim in range(whole.dim()):
        index = _along(torch.arange(whole.numel()).view(whole.shape), chosen, dim)
        if index is not None:
            places = add_constant(model, node, index, "places")
            return insert(node, aten.index_select.default, (source, dim, places), node)
    return _one_by_one(model, node, [source], chosen)


def replace_places(
    model: GraphModule, node: Node, whole: Node, part: Any, chosen: torch.Tensor
) -> Node | None:
    """A tensor in which some elements come from another one, or are a number; inserted before a node.

    `chosen` has the number of each element, first those of the whole, then those of the part. None: too many
    would have to be put together one by one.
    """
    like = cast(torch.Tensor, tensor_of(whole))
    new = chosen >= like.numel()
    if not new.any():
        return whole
    if isinstance(part, Node) and (tensor := tensor_of(part)) is not None and tensor.numel() > 1:
        for dim in range(like.dim()):
            made = _side_by_side(model, node, whole, part, chosen, dim)
            if made is not None:
                return made
        return _one_by_one(model, node, [whole, part], chosen)
    for dim in range(like.dim()):
        new = new if (new != new.narrow(dim, 0, 1)).any() else new.narrow(dim, 0, 1)
    mask = add_constant(model, node, new, "mask")
    if isinstance(part, Node):
        value = insert(node, aten.reshape.default, (part, [1]), node)
    else:
        value = add_constant(model, node, torch.tensor([part], dtype=like.dtype), "value")
    return insert(node, aten.where.self, (mask, value, whole), node)


def _side_by_side(
    model: GraphModule, node: Node, whole: Node, part: Node, chosen: torch.Tensor, dim: int
) -> Node | None:
    """Slices of both tensors one after the other, if they differ along one dimension only."""
    like, new_count = cast(torch.Tensor, tensor_of(whole)), cast(torch.Tensor, tensor_of(part)).numel()
    count, size = like.numel(), like.shape[dim]
    shape = list(like.shape)
    shape[dim] = new_count * size // count
    if torch.Size(shape).numel() != new_count:
        return None
    # Where the first tensor's elements stay, they stay in their places.
    numbers = torch.cat(
        [torch.arange(count).view(like.shape), count + torch.arange(new_count).view(shape)], dim
    )
    index = _along(numbers, chosen, dim)
    if index is None:
        return None
    runs: list[list[int]] = []
    for place in index.tolist():
        if runs and runs[-1][1] == place and place != size:
            runs[-1][1] = place + 1
        else:
            runs.append([place, place + 1])
    view = insert(node, aten.reshape.default, (part, shape), node)
    if len(runs) > _MOST_PARTS:
        both = insert(node, aten.cat.default, ([whole, view], dim), node)
        places = add_constant(model, node, index, "places")
        return insert(node, aten.index_select.default, (both, dim, places), node)
    parts = []
    for start, end in runs:
        source, begin = (whole, start) if start < size else (view, start - size)
        length = end - start
        if (begin, length) == (0, shape[dim] if source is view else size):
            parts.append(source)
        else:
            parts.append(insert(node, aten.slice.Tensor, (source, dim, begin, begin + length), node))
    return parts[0] if len(parts) == 1 else insert(node, aten.cat.default, (parts, dim), node)


def _along(numbers: torch.Tensor, chosen: torch.Tensor, dim: int) -> torch.Tensor | None:
    """The indices along a dimension of `numbers` that give those chosen."""
    if chosen.dim() != numbers.dim() or any(
        a != b for d, (a, b) in enumerate(zip(chosen.shape, numbers.shape, strict=True)) if d != dim
    ):
        return None
    line = numbers.movedim(dim, -1).reshape(-1, numbers.shape[dim])[0]
    wanted = chosen.movedim(dim, -1).reshape(-1, chosen.shape[dim])[0]
    matches = (wanted[:, None] == line[None, :]).int()
    if not (matches.sum(1) == 1).all():
        return None
    index = matches.argmax(1)
    return index if torch.equal(numbers.index_select(dim, index), chosen) else None


def _one_by_one(model: GraphModule, node: Node, sources: list[Any], chosen: torch.Tensor) -> Node | None:
    if chosen.numel() > _LARGEST:
        return None
    flat = [insert(node, aten.reshape.default, (n, [-1]), node) for n in sources]
    both = flat[0] if len(flat) == 1 else insert(node, aten.cat.default, (flat,), node)
    places = add_constant(model, node, chosen.reshape(-1), "places")
    picked = insert(node, aten.index_select.default, (both, 0, places), node)
    return insert(node, aten.reshape.default, (picked, list(chosen.shape)), node)
