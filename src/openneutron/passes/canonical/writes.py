"""Writes into tensors that the model computed, as new tensors.

A quantized value is a copy, so a change made in place would be lost. A write through a view becomes a new
value of the tensor that the view shows a part of, and whoever reads that tensor or another view of it
afterwards reads it from the new value. Buffers that are written are the program's state, and stay so.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from openneutron.diagnostics import fail
from openneutron.fx import bind_args, op_name, overload, same_shape, tensor_of
from openneutron.passes.canonical.canonicalize import RESHAPES
from openneutron.passes.canonical.places import numbered, replace_places
from openneutron.passes.graph import add_constant, insert

aten = torch.ops.aten
# These change how their argument is seen, not what is in it.
_RESHAPING = {
    f"aten.{name}_.default"
    for name in ("unsqueeze", "t", "squeeze", "transpose", "swapaxes", "swapdims", "detach")
} | {"aten.squeeze_.dim", "aten.squeeze_.dims"}


def replace_in_place(model: GraphModule) -> bool:
    """Turn `relu_(x)` into `relu(x)`; whoever read x or a view of it afterwards reads the result."""
    writers = [node for node in model.graph.nodes if _written(node) is not None]
    return _Writes(model).replace() if writers else False


def _written(node: Node) -> Node | None:
    """The tensor that a call changes in place."""
    op = overload(node)
    if op is None or not op._schema.name.endswith("_") or not op._schema.is_mutable or not node.args:
        return None
    return node.args[0] if isinstance(node.args[0], Node) else None


def _out_of_place(op: OpOverload) -> tuple[OpOverload, tuple[str, ...]] | None:
    """The overload that makes a new tensor of the same arguments, and what `op` calls these, in its order.

    Its own name for an argument may be another (dropout_ says `self`, dropout `input`), and so may be the
    overload's (pow_.Scalar) or the order (polygamma_).
    """
    signature = [(a.name, str(a.type)) for a in op._schema.arguments]
    packet = getattr(aten, _plain_name(op._schema.name.removeprefix("aten::")), None)
    for name in (op._overloadname, *(packet.overloads() if packet is not None else ())):
        plain = getattr(packet, name, None)
        if plain is None or plain._schema.is_mutable or len(plain._schema.returns) != 1:
            continue
        theirs = [(a.name, str(a.type)) for a in plain._schema.arguments]
        if [t for _, t in theirs] == [t for _, t in signature]:
            return plain, tuple(n for n, _ in signature)
        if sorted(theirs) == sorted(signature):
            return plain, tuple(n for n, _ in theirs)
    return None


def _plain_name(name: str) -> str:
    """`relu_` is `relu`, and `__iand__`, which `a &= b` calls, is `__and__`."""
    return f"__{name[3:]}" if name.startswith("__i") else name.removesuffix("_")


class _Writes:
    """Goes through a graph once; knows of every tensor which memory it shows, and what is there now."""

    def __init__(self, model: GraphModule):
        self.model = model
        self._shown: dict[Node, Node] = {}  # of a view, what it is a view of
        self._now: dict[Node, dict[Node, Node]] = {}  # of a written memory, by tensor, what has its value now
        self._first: dict[Node, Node] = {}  # what calls of several views were given

    def replace(self) -> bool:
        changed = False
        for node in list(self.model.graph.nodes):
            target = _written(node)
            if target is not None and self._memory(target).op != "get_attr":
                self._write(node, target)
                changed = True
                continue
            shown = self._shown_by(node)
            self._read(node)
            if shown is not None:
                self._show(node, shown)
        return changed

    def _shown_by(self, node: Node) -> Node | None:
        if node.target in _SEVERAL:
            self._first[node] = cast(Node, node.args[0])
            return self._first[node]
        if node.target is operator.getitem:
            return self._first.get(cast(Node, node.args[0]))
        return _shown_by(node)

    def _show(self, node: Node, shown: Node) -> None:
        """Note a view; it was made of what is in the memory now, unless it is one of several made before."""
        self._shown[node] = shown
        values = self._now.get(self._memory(node))
        if values is None:
            return
        if node.target is operator.getitem and node.args[0] not in values:
            values[node] = self._view(node, self._present(shown, node), node)
        else:
            values[node] = node

    def _memory(self, node: Node) -> Node:
        while node in self._shown:
            node = self._shown[node]
        return node

    def _present(self, node: Node, reader: Node) -> Node:
        """The node that has what is in a tensor now; a view is made anew if what it shows has changed."""
        values = self._now.get(self._memory(node))
        if values is None:
            return node
        if node not in values:
            values[node] = self._view(node, self._present(self._shown[node], reader), reader)
        return values[node]

    def _read(self, node: Node) -> None:
        if not self._now or node.op not in ("call_function", "output"):
            return
        instead = {n: self._present(n, node) for n in node.all_input_nodes if n not in self._first}
        node.args, node.kwargs = map_arg((node.args, node.kwargs), lambda n: instead.get(n, n))

    def _view(self, node: Node, source: Node, reader: Node) -> Node:
        """What a view shows of another value of the tensor it is a view of."""
        if node.target is operator.getitem:
            several = cast(Node, node.args[0])
            parts = insert(reader, several.target, (source, *several.args[1:]), several, several.kwargs)
            return insert(reader, operator.getitem, (parts, node.args[1]), node)
        if op_name(node) in RESHAPES:  # the new value may lie in memory in another way
            return _reshaped(source, node, reader)
        return insert(reader, node.target, (source, *node.args[1:]), node, node.kwargs)

    def _write(self, node: Node, target: Node) -> None:
        op = cast(OpOverload, overload(node))
        plain = _out_of_place(op)
        if op_name(node) == "aten.fill_diagonal_.default":
            value = self._fill_diagonal(node, target)
        elif plain is None:
            fail("ON208", f"node '{node.name}'", f"{op_name(node)} has no form that makes a new tensor",
                 "Write it without in-place assignment.")  # fmt: skip
        else:
            self._read(node)
            call, names = plain
            args = [bind_args(node)[name] for name in names]
            keywords = {a.name: v for a, v in zip(call._schema.arguments, args, strict=True) if a.kwarg_only}
            value = insert(node, call, tuple(args[: len(args) - len(keywords)]), node, keywords)
        if op_name(node) in _RESHAPING:
            # From here on the name stands for the tensor as it is seen now.
            for user in [u for u in target.users if u in _nodes_after(node)]:
                user.replace_input_with(target, node)
            node.replace_all_uses_with(value)
            self._shown[value] = target
            self.model.graph.erase_node(node)
            return
        value = self._as_before(value, target, node)
        node.replace_all_uses_with(target)
        values = {target: value}
        while target in self._shown:
            shown = self._shown[target]
            value = self._with_part(self._present(shown, node), target, value, node)
            target = shown
            values[target] = value
        self._now[target] = values
        self.model.graph.erase_node(node)

    def _as_before(self, value: Node, target: Node, before: Node) -> Node:
        """In the type and shape of the tensor that is written to, which do not change."""
        new, old = tensor_of(value), tensor_of(target)
        assert new is not None and old is not None
        if new.dtype != old.dtype:
            value = insert(before, aten.to.dtype, (value, old.dtype), before)
        if not same_shape(new, old):
            value = insert(before, aten.expand_as.default, (value, target), before)
        return value

    def _with_part(self, whole: Node, view: Node, part: Node, before: Node) -> Node:
        """A tensor with another value in the part of it that a view shows."""
        name, args = op_name(view), bind_args(view) if op_name(view) else {}
        shape = tensor_of(self._shown[view])
        assert shape is not None
        if name in RESHAPES:
            return _reshaped(part, self._shown[view], before)
        if name == "aten.select.int":
            return insert(before, aten.select_scatter.default,
                          (whole, part, args["dim"], args["index"]), before)  # fmt: skip
        if name == "aten.slice.Tensor":
            return insert(before, aten.slice_scatter.default, (whole, part, *list(args.values())[1:]), before)
        if name == "aten.permute.default":
            dims = [d % shape.dim() for d in args["dims"]]
            return insert(before, aten.permute.default,
                          (part, [dims.index(d) for d in range(len(dims))]), before)  # fmt: skip
        if name in ("aten.transpose.int", "aten.t.default", "aten.mT.default", "aten.numpy_T.default"):
            return insert(before, view.target, (part, *view.args[1:]), before)
        if _is_static(shape):
            return self._with_places(whole, view, part, before)
        fail("ON208", f"node '{view.name}'",
             f"a part of a tensor without a fixed size is changed through {name or view.target}",
             "Write it without in-place assignment, or export with fixed sizes.")  # fmt: skip

    def _with_places(self, whole: Node, view: Node, part: Node, before: Node) -> Node:
        """The same for any view: the places it shows are known, and chosen from the part."""
        like = cast(torch.Tensor, tensor_of(self._shown[view]))
        places = numbered(like)
        if view.target is operator.getitem:
            several = cast(Node, view.args[0])
            shown = _call(several, {self._shown[view]: places})[cast(int, view.args[1])]
        else:
            shown = _call(view, {self._shown[view]: places})
        chosen, new = torch.arange(like.numel()).view(like.shape), None
        if not bool((shown < 0).any()):  # else it shows memory that only an enclosing tensor has
            chosen.view(-1)[shown.reshape(-1)] = like.numel() + torch.arange(shown.numel())
            new = replace_places(self.model, before, whole, part, chosen)
        if new is None:
            problem = f"{shown.numel()} elements are changed through {view.target}"
            fail("ON208", f"node '{view.name}'", problem,
                 "Write it without in-place assignment.")  # fmt: skip
        return new

    def _fill_diagonal(self, node: Node, target: Node) -> Node:
        args, like = bind_args(node), cast(torch.Tensor, tensor_of(target))
        on = torch.zeros(like.shape, dtype=torch.bool).fill_diagonal_(True, args["wrap"])
        mask = add_constant(self.model, node, on, "diagonal")
        return insert(node, aten.masked_fill.Scalar,
                      (self._present(target, node), mask, args["fill_value"]), node)  # fmt: skip


_SEVERAL = frozenset(
    op
    for name in ("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "hsplit", "vsplit", "dsplit")
    for op in (getattr(getattr(aten, name), o) for o in getattr(aten, name).overloads())
)


def _shown_by(node: Node) -> Node | None:
    """The tensor whose memory a call's result shows; None if it has memory of its own.

    Some calls give a view or a copy as their argument lies in memory, and some (dropout) the argument itself.
    """
    op = overload(node)
    if op is None or op.namespace != "aten" or not node.args or not isinstance(node.args[0], Node):
        return None
    viewing = any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)
    source, result = tensor_of(node.args[0]), tensor_of(node)
    if source is None or result is None or not (viewing or op_name(node).startswith("aten.dropout.")):
        return None
    if not _is_static(source) or not _is_static(result):
        return node.args[0]
    on_meta = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
    others = {n: torch.empty_like(cast(Any, n.meta["val"]), device="meta") for n in node.all_input_nodes[1:]}
    try:
        shown = _call(node, {**others, node.args[0]: on_meta})
    except (RuntimeError, TypeError, ValueError):
        return node.args[0]
    same = shown.untyped_storage()._cdata == on_meta.untyped_storage()._cdata
    return node.args[0] if same else None


def _call(node: Node, values: dict[Node, Any]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: values[n])
    with torch.no_grad():
        return cast(Any, node.target)(*args, **kwargs)


def _reshaped(node: Node, like: Node, before: Node) -> Node:
    shape = cast(torch.Tensor, tensor_of(like)).shape
    if not all(isinstance(d, int) for d in shape):
        return insert(before, aten.reshape_as.default, (node, like), before)
    return insert(before, aten.reshape.default, (node, list(shape)), before)


def _is_static(tensor: torch.Tensor) -> bool:
    return all(isinstance(d, int) for d in (*tensor.shape, *tensor.stride()))


def _nodes_after(node: Node) -> set[Node]:
    nodes = set()
    while (node := node.next).op != "root":
        nodes.add(node)
    return nodes
