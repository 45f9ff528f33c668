"""Constant propagation: what no input can change is computed now.

Calls are really made, in the program's order and on tensors that share memory as they will there, so that
writing into a fresh tensor (`mask[0:4] = 1`) is folded like anything else. Where an input is written into
such a tensor, it is no constant from there on.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from openneutron.fx import op_name, overload
from openneutron.passes.graph import add_constant, constant, copy_provenance, infer

# One result may be this large, or as large as what it is computed from; all of them together this large, and
# twice what the model has itself.
_ONE_RESULT = 16 << 20
_ALL_RESULTS = 256 << 20

# Operators that take only the shape and type of their first argument.
_LIKE = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("new_zeros", "new_ones", "new_full", "new_empty",
                 "zeros_like", "ones_like", "full_like", "empty_like")
)  # fmt: skip
_PYTHON = frozenset(
    f
    for module in (operator, math)
    for f in vars(module).values()
    if callable(f) and f is not operator.setitem
)
_SCALARS = (bool, int, float)


def fold_constants(model: GraphModule) -> bool:
    """Compute what no input can change, unless training may change it."""
    return _Folding(model, lambda value: not value.requires_grad).fold()


def fold_parameters(model: GraphModule) -> bool:
    """Compute what no input can change, functions of trained parameters included."""
    return _Folding(model).fold()


def fold_float(model: GraphModule) -> bool:
    """Compute what no input can change, except what is made from integers: weights stay quantized."""
    return _Folding(model, keep_quantized=True).fold()


def fold_quantized(model: GraphModule) -> GraphModule:
    """Store in int8 what is quantized and constant now that training is over, as calibration leaves it."""
    folding = _Folding(model)
    for node in list(model.graph.nodes):
        if folding.evaluate(node) and op_name(node).startswith("quantized_decomposed.quantize_"):
            node.replace_all_uses_with(add_constant(model, node, folding.values[node], "folded"))
    model.graph.eliminate_dead_code()
    model.recompile()
    return model


def is_write(node: Node) -> bool:
    """Whether a call changes one of its arguments."""
    op = overload(node)
    return op is not None and op._schema.is_mutable


def _written_arguments(node: Node) -> list[Node]:
    """The tensors a call changes."""
    op = overload(node)
    if op is None:
        return []
    written = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            written += [v for v in pytree.tree_leaves(value) if isinstance(v, Node)]
    return written


class _Folding:
    def __init__(
        self,
        model: GraphModule,
        may_fold: Callable[[torch.Tensor], bool] = lambda value: True,
        keep_quantized: bool = False,
    ):
        self.model = model
        self._keep_quantized = keep_quantized
        self.values: dict[Node, Any] = {}
        self._may_fold = may_fold
        self._state, self._rescaled = _state(model)
        self._copies: dict[str, torch.Tensor] = {}
        self._snapshots: dict[tuple[Node, int], Node] = {}
        stored = {t.untyped_storage() for t in (*model.parameters(), *model.buffers())}
        self._budget = _ALL_RESULTS + 2 * sum(s.nbytes() for s in stored)
        self._memory: set[int] = set()  # where the values are
        self._resized: set[Node] = set()  # nodes that read a number which is known only now

    def fold(self) -> bool:
        """Replace every constant that something else reads; calls nobody needs any more go."""
        changed = False
        for node in list(self.model.graph.nodes):
            if self.evaluate(node):
                continue
            self._forget_written(node)
            changed |= self._read_constants(node)
        return self._erase() or changed

    def evaluate(self, node: Node) -> bool:
        """Compute a node's value if it is a constant; whether it is."""
        if node.op == "get_attr":
            value = constant(self.model, node)
            if value is None or node.target in self._state or not self._may_fold(value):
                return False
            if node.target in self._rescaled:  # a copy: the parameter itself may be the caller's
                value = self._copies.setdefault(str(node.target), value.detach().clone())
            self.values[node] = value
            self._memory.add(_address(value))
            return True
        if node.op != "call_function" or not self._is_foldable(node):
            return False
        try:
            with torch.no_grad():
                value = self._call(node)
        except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError):
            return False  # what is wrong with it shows where it runs
        for tensor in _tensors([value]):
            if _address(tensor) not in self._memory:
                self._memory.add(_address(tensor))
                self._budget -= tensor.untyped_storage().nbytes()
        self.values[node] = value
        return True

    def _is_foldable(self, node: Node) -> bool:
        op = overload(node)
        if op is None:
            target: Any = node.target in _PYTHON
        else:
            target = torch.Tag.nondeterministic_seeded not in op.tags
            target &= not (self._keep_quantized and op.namespace == "quantized_decomposed")
        inputs = node.all_input_nodes
        if op in _LIKE:
            target, inputs = target and _is_static(node.args[0]), inputs[1:]
        if not target or any(n not in self.values for n in inputs):
            return False
        size, read = self._size(node), sum(map(_bytes, _tensors(self.values[n] for n in inputs)))
        return size is not None and size <= max(_ONE_RESULT, read) and size <= self._budget

    def _size(self, node: Node) -> int | None:
        """The bytes of a call's results, before it is made; None if they cannot be told."""
        results = _tensors([node.meta.get("val")])
        if any(not isinstance(d, int) for t in results for d in t.shape):  # a size that is a constant's value
            mode = FakeTensorMode()
            try:
                with mode:
                    results = _tensors([self._call(node, mode.from_tensor)])
            except (RuntimeError, TypeError, ValueError, IndexError):
                return None
            if any(not isinstance(d, int) for t in results for d in t.shape):
                return None
        return sum(map(_bytes, results))

    def _call(self, node: Node, stand_in: Callable[[torch.Tensor], Any] = lambda value: value) -> Any:
        def value_of(n: Node) -> Any:
            value = self.values.get(n)
            if n not in self.values:  # only its shape and type are looked at
                like = n.meta["val"]
                value = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
            return pytree.tree_map_only(torch.Tensor, stand_in, value)

        args, kwargs = map_arg((node.args, node.kwargs), value_of)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _forget_written(self, node: Node) -> None:
        """A tensor that a call writes something unknown into, and all that shares its memory, is unknown."""
        for written in _written_arguments(node):
            lost = {_address(t) for t in _tensors([self.values.get(written)])}
            for other, value in list(self.values.items()):
                if any(_address(t) in lost for t in _tensors([value])):
                    del self.values[other]

    def _read_constants(self, node: Node) -> bool:
        """Let a call that is not folded read constants, as they are at this point of the program."""
        constants = [n for n in node.all_input_nodes if n in self.values and not self._is_as_stored(n)]
        instead = {n: self._replacement(n, node) for n in constants}
        instead = {n: new for n, new in instead.items() if new is not n}
        if instead:
            node.args, node.kwargs = map_arg((node.args, node.kwargs), lambda n: instead.get(n, n))
        # A number that stood for a size was unknown when the program was exported.
        numbers = any(not isinstance(new, Node) for new in instead.values())
        if node.op == "call_function" and (numbers or not self._resized.isdisjoint(node.all_input_nodes)):
            infer(node)
            self._resized.add(node)
        return bool(instead)

    def _is_as_stored(self, node: Node) -> bool:
        return node.op == "get_attr" and node.target not in self._rescaled

    def _replacement(self, node: Node, reader: Node) -> Any:
        value = self.values[node]
        if isinstance(value, _SCALARS):
            return value
        if not isinstance(value, torch.Tensor):
            return node  # several results: those that pick one of them are constants
        key = (node, value._version)
        if key not in self._snapshots:
            self._snapshots[key] = add_constant(self.model, reader, value, "folded")
            copy_provenance(node, self._snapshots[key])
        return self._snapshots[key]

    def _erase(self) -> bool:
        """Writes are no dead code to torch; those into constants are, once nobody reads them."""
        changed = False
        for node in reversed(self.model.graph.nodes):
            if node in self.values and not node.users and node.op != "get_attr":
                self.model.graph.erase_node(node)
                changed = True
        return changed


def _state(model: GraphModule) -> tuple[set[Any], set[Any]]:
    """Parameters and buffers that the program itself changes: they have another value in the next run.

    The second set has parameters that only constants are written into, such as weights that are rescaled when
    a model is first run: they are constants, with the value they have then. A buffer may be a counter.
    """
    source: dict[Node, Node] = {}
    constants: set[Node] = set()
    state: set[Any] = set()
    by_inputs: set[Any] = set()
    for node in model.graph.nodes:
        if node.op == "get_attr":
            source[node] = node
        elif (op := overload(node)) is not None:
            shared = [
                a for a, s in zip(node.args, op._schema.arguments, strict=False) if s.alias_info is not None
            ]
            roots = [source[a] for a in shared if isinstance(a, Node) and a in source]
            if roots and any(r.alias_info is not None for r in op._schema.returns):
                source[node] = roots[0]
            written = {source[n].target for n in _written_arguments(node) if n in source}
            state |= written
            if not constants.issuperset(node.all_input_nodes) or torch.Tag.nondeterministic_seeded in op.tags:
                by_inputs |= written
                continue
        elif node.target is operator.getitem and node.args[0] in source:
            source[node] = source[node.args[0]]
        if node.op in ("get_attr", "call_function") and constants.issuperset(node.all_input_nodes):
            constants.add(node)
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    rescaled = (state - by_inputs) & parameters
    return state - rescaled, rescaled


def _is_static(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and all(
        isinstance(d, int) for d in (*value.shape, *value.stride())
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [t for value in values for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
