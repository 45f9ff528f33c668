"""Groups of operators that are not quantized in between.

A function of one tensor, however many element-wise operators and numbers spell it, is one group: it is
rounded once, and the compiler makes one table of 256 entries of it.

Other groups hold values with a range no 8 bits hold. Squares, exponentials, reciprocals and norms, and sums
of such, lose everything when they are rounded to 256 steps. From each of them a group grows: forwards until
the range is an ordinary one again, backwards over operators that nobody else reads. The open converter
computes a group as one island, in float.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from openneutron.fx import bind_args, is_float, op_name, tensor_of, values_of
from openneutron.ops.spec import OpSpec, Reach, Real
from openneutron.passes.patterns import is_fusible_activation

TABLES = "openneutron_tables"  # in a model's meta: a function of some channels costs no more than of all
_MOST = 32  # operators of a group
_PRODUCTS = ("aten.mul.Tensor", "aten.div.Tensor")
_ARITHMETIC = (*_PRODUCTS, "aten.add.Tensor", "aten.sub.Tensor")
_NEVER_BEFORE = ("aten.relu", "aten.hardtanh", "aten.clamp", "aten.sigmoid", "aten.tanh")
_SIZE_RATIO = 4


@dataclass
class _Grower:
    find: Callable[[str], OpSpec | None]
    may: Callable[[Node], bool]
    constants: Collection[Node]
    position: Mapping[Node, int]

    def real(self, node: Node) -> Real | None:
        """How a node is computed in an island; None if it cannot or may not be in one."""
        spec = self.find(op_name(node)) if node.op == "call_function" else None
        if spec is None or spec.real is None or node in self.constants or not self.may(node):
            return None
        return None if any(map(_is_integer, node.all_input_nodes)) else spec.real_of(bind_args(node))

    def starts(self, node: Node) -> bool:
        """Whether a node's own result is wide, or is a truth value, which has no int8 form."""
        real = self.real(node)
        if real is None:
            return False
        if real.reach is Reach.WIDE or not is_float(node):
            return True
        args = node.args
        return op_name(node) == "aten.mul.Tensor" and args[0] is args[1]

    def is_wide(self, node: Node, group: set[Node]) -> bool:
        """Whether a member's result is wide: by itself, or as its operands in the group are."""
        if self.starts(node):
            return True
        real = self.real(node)
        if real is None or real.reach is not Reach.AS_OPERANDS:
            return False
        return any(n in group and self.is_wide(n, group) for n in node.all_input_nodes)

    def grow(self, seed: Node) -> set[Node]:
        """The group around a wide node."""
        group = {seed}
        changed = True
        while changed and len(group) < _MOST:
            changed = False
            for node in list(group):
                for user in node.users:
                    if user not in group and self._joins(node, user, group) and self.is_whole(user, group):
                        group.add(user)
                        changed = True
            for node in list(group):
                for source in node.all_input_nodes:
                    if (
                        source not in group
                        and self._is_only_for(source, group)
                        and self.is_whole(source, group)
                    ):
                        group.add(source)
                        changed = True
        return group

    def _joins(self, node: Node, user: Node, group: set[Node]) -> bool:
        """Whether what reads a member belongs to the group."""
        real, member = self.real(user), self.real(node)
        if not is_float(user):
            return self._is_taken(user)
        if real is None or member is None:
            return False
        if member.function and any(n in group for n in node.all_input_nodes):
            return False  # a function of a float value is the last of its island
        if self.is_wide(node, group):
            return not real.function or (real.monotone and all(n is node for n in user.all_input_nodes))
        if real.function:
            return False
        name = op_name(user)
        if name in _PRODUCTS and values_of(node) * _SIZE_RATIO <= values_of(user):
            return True  # a factor for each channel or row
        others = [n for n in user.all_input_nodes if n is not node]
        return name in _ARITHMETIC and bool(others) and all(n in self.constants for n in others)

    def _is_only_for(self, node: Node, group: set[Node]) -> bool:
        """Whether a node computes for the group alone, and may be computed in it."""
        real = self.real(node)
        if not is_float(node):
            return self._is_taken(node)
        if real is None or op_name(node).startswith(_NEVER_BEFORE) or real.function:
            return False
        return bool(node.users) and all(user in group for user in node.users)

    def _is_taken(self, truth: Node) -> bool:
        """Whether a truth value can be in a group, and all who read it too."""
        return self.real(truth) is not None and all(self.real(user) is not None for user in truth.users)

    def is_whole(self, new: Node, group: set[Node]) -> bool:
        """Whether nothing outside reads the group and is read by it, if a node joins.

        A statistic that is read again behind a layer is such a case: it leaves the group quantized.
        """
        first = min(map(self.position.__getitem__, group))
        seen: set[Node] = set()
        pending = [n for n in new.all_input_nodes if n not in group]
        while pending:
            node = pending.pop()
            if node in seen or self.position[node] < first:
                continue
            seen.add(node)
            if any(source in group for source in node.all_input_nodes):
                return False
            pending += node.all_input_nodes
        return True


def _is_integer(node: Node) -> bool:
    """Whether a tensor has integers: what compares them is the CPU's, and gives a mask from outside."""
    tensor = tensor_of(node)
    return tensor is not None and not tensor.is_floating_point() and tensor.dtype != torch.bool


def find_groups(
    nodes: Iterable[Node],
    find: Callable[[str], OpSpec | None],
    may: Callable[[Node], bool],
    constants: Collection[Node],
) -> dict[Node, set[Node]]:
    """For each node of a group of two or more, its group; no edge inside one is quantized."""
    nodes = list(nodes)
    grower = _Grower(find, may, constants, {node: index for index, node in enumerate(nodes)})
    wide = _wide_groups(nodes, grower)
    # A group of wide values that is a part of a function is computed in it; any other keeps its nodes.
    functions = _functions(nodes, grower, ())
    covered = {n for function in functions for n in function if n in wide and wide[n] <= function}
    others = {node: group for node, group in wide.items() if node not in covered}
    found = {node: function for function in _functions(nodes, grower, others) for node in function}
    return {**others, **found}


def _wide_groups(nodes: Iterable[Node], grower: _Grower) -> dict[Node, set[Node]]:
    found: dict[Node, set[Node]] = {}
    for node in nodes:
        if node in found or not grower.starts(node):
            continue
        group = grower.grow(node)
        for other in [found[n] for n in group if n in found]:
            group |= other
        if len(group) > 1 and _is_sound(group, grower) and all(grower.is_whole(n, group) for n in group):
            found.update(dict.fromkeys(group, group))
    return found


def _functions(nodes: Iterable[Node], grower: _Grower, taken: Collection[Node]) -> list[set[Node]]:
    """The sets of two or more element-wise operators that together are a function of one tensor.

    Nobody else reads what is computed inside of one.
    """
    order = {node: place for place, node in enumerate(nodes)}
    found: list[set[Node]] = []
    inside: set[Node] = set()
    for end in reversed(list(order)):
        if end in inside or end in taken or not is_float(end):
            continue
        operands = _operands_of_function(end, grower)
        group, best, read = {end}, {end}, set(operands)
        while read:
            if len(read) == 1:
                best = set(group)
            elif len(group) - len(best) > _MOST:
                break  # each end of a long chain of two tensors would walk through all of it
            last = max(read, key=order.__getitem__)
            operands = _operands_of_function(last, grower)
            if last in taken or not operands or not all(user in group for user in last.users):
                break
            if values_of(last) != values_of(end):
                break
            group.add(last)
            read = {n for n in read if n is not last} | set(operands)
        if len(best) > 1 and not (len(best) == 2 and _is_one_kernel(end, best, grower)):
            found.append(best)
            inside |= best
    return found


def _is_one_kernel(end: Node, pair: set[Node], grower: _Grower) -> bool:
    """Whether two operators are one that has the other as its fused activation."""
    (first,) = pair - {end}
    spec = grower.find(op_name(first))
    return spec is not None and spec.fuses_activation and is_fusible_activation(end) and len(first.users) == 1


def _operands_of_function(node: Node, grower: _Grower) -> list[Node]:
    """The tensors that a node is an element-wise function of, numbers aside; none if it is no such node."""
    real = grower.real(node)
    if real is None or real.reduces or _is_in_layer(node, grower):
        return []
    operands = [n for n in node.all_input_nodes if n not in grower.constants]
    numbers = [n for n in node.all_input_nodes if n in grower.constants]
    same = all(values_of(n) == values_of(node) for n in operands) and all(values_of(n) == 1 for n in numbers)
    return operands if same and values_of(node) else []


def _is_in_layer(node: Node, grower: _Grower) -> bool:
    """Whether a node is an activation that is computed in the layer, or the sum of two tensors, before it."""
    source = node.args[0] if is_fusible_activation(node) else None
    if not isinstance(source, Node) or len(source.users) != 1:
        return False
    spec = grower.find(op_name(source))
    if spec is None or not spec.fuses_activation:
        return False
    return spec.real is None or len([n for n in source.all_input_nodes if n not in grower.constants]) > 1


def _is_sound(group: set[Node], grower: _Grower) -> bool:
    """Whether a group can be an island: a function of a float value has one operand, and no reader inside."""
    for node in group:
        real = grower.real(node)
        assert real is not None
        inside = [n for n in node.all_input_nodes if n in group]
        if real.function and inside and (any(u in group for u in node.users) or len(inside) > 1):
            return False
        if not is_float(node) and not all(user in group for user in node.users):
            return False
    return True
