"""What stays in float at the model's borders, because it joins or parts things of different size.

A detector that returns boxes in pixels and scores below 1 as one tensor would have one scale for both, and no
score would be left. The concatenation, and what lays it out anew, goes behind the dequantize step: each part
keeps its own scale. The same of an input that holds several things, which are read by slices.

An input keeps the whole range that was seen: black and white are what an image has most of, and other
samples are no nearer to the middle. So does an output with the shape of an input, which is likely a state
that is fed back: there clipping adds up over time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from openneutron.fx import bind_args, is_float, op_name, same_shape, tensor_of, watch
from openneutron.ops.spec import OpSpec, Weighted
from openneutron.passes.graph import constants_only
from openneutron.quantize.annotation.observer import RangeObserver
from openneutron.quantize.annotation.sharing import NextState

RATIO = 4.0  # of the sizes of parts that may have one scale
_LONGEST_UPDATE = 16  # operators between an old state and a new one; a loop written out has more
_CHOOSES = {"aten.maximum.default", "aten.minimum.default", "aten.where.self", "aten.relu.default"}
"""Element by element, but exact in int8: each result is one of the operands, or the zero point."""
Find = Callable[[str], OpSpec | None]


def different_parts(
    model: GraphModule,
    samples: Sequence[tuple[Any, ...]],
    find: Find,
    states: Mapping[str, NextState] | None = None,
) -> set[Node]:
    """The nodes at the borders that join or part tensors of different size, on these samples.

    States are no borders: nobody outside sees them, and each has one scale.
    """
    tail = tail_of(model, find, states or {})
    head = [n for n in _head(model, find) if n.all_input_nodes[0].name not in (states or {})]
    asked = {n for node in tail for n in node.all_input_nodes} | set(head)
    if not asked or not samples:
        return set()
    sizes = sizes_of(model, samples, asked)
    found: set[Node] = set()
    constants = constants_only(model.graph.nodes)
    for node in tail:  # in order: what lays out a result that stays in float stays so too
        parts = [n for n in node.all_input_nodes if is_float(n) and n not in constants]
        if any(n in found for n in parts) or _differ(sizes[n] for n in parts):
            found.add(node)
    sources = {n.all_input_nodes[0] for n in head}
    for source in sources:
        slices = [n for n in head if n.all_input_nodes[0] is source]
        if len(slices) == len(source.users) and _differ(sizes[n] for n in slices):
            found.update(slices)
    return found


def accumulated(
    model: GraphModule, states: Mapping[str, NextState], find: Find, is_free: Callable[[Node], bool]
) -> tuple[set[Node], set[Node]]:
    """What makes new states of old ones by element-wise arithmetic; these states, and what only moves them.

    So do recurrent cells, filters and means: such a state adds up what is rounded, step after step, and what
    is left of it each time is close to all. 8 bits hold neither, so that it is float. It may pass through
    other states before it is worked into itself again, as those of a filter do. What is shared with other
    methods has a scale of theirs.
    """
    results = pytree.tree_leaves(model.graph.output_node().args)
    inputs = {node.name: node for node in model.graph.find_nodes(op="placeholder")}
    own = {
        inputs[name]: results[following.output]
        for name, following in states.items()
        if following.parameters is None and name in inputs and is_float(inputs[name])
    }
    before = {old: _moved(old, find, lambda n: list(n.users)) for old in own}
    after = {old: _moved(new, find, lambda n: n.all_input_nodes) for old, new in own.items()}
    between = {(a, b): _between(before[a], after[b], find) for a in own for b in own}
    leads = {a: [b for b in own if between[a, b] or own[b] in before[a]] for a in own}
    updates: set[Node] = set()
    moves: set[Node] = set()
    for loop in _loops(leads):
        found: set[Node] = set().union(*(between[a, b] for a in loop for b in loop))
        if not any(_rounds(n) for n in found) or len(found) > _LONGEST_UPDATE or not all(map(is_free, found)):
            continue
        moved = {n for s in loop for n in before[s] if any(_leads_to(n, u, before[s]) for u in found)}
        moved |= {n for s in loop for n in after[s] if any(_leads_to(u, n, after[s]) for u in found)}
        if all(len(n.all_input_nodes) < 2 for n in moved - found):  # a part of a longer state is int8
            updates |= found
            moves |= moved | loop
    return _with_operands(updates, find), {n for n in moves - updates if n.op != "output"}


def _loops(leads: Mapping[Node, list[Node]]) -> list[set[Node]]:
    """Sets of states that all lead to one another."""
    reached: dict[Node, set[Node]] = {}
    for state in leads:
        found: set[Node] = set()
        left = [state]
        while left:
            new = set(leads[left.pop()]) - found
            found |= new
            left += new
        reached[state] = found
    loops = [frozenset(b for b in reached[a] if a in reached[b]) for a in leads]
    return [set(loop) for loop in dict.fromkeys(loops) if loop]


def _rounds(node: Node) -> bool:
    return op_name(node) not in _CHOOSES


def state_updates(model: GraphModule, find: Find) -> tuple[set[Node], set[Node]]:
    """The same where states are only guessed at: no buffers, but inputs and outputs that are fed back.

    In a model that has other inputs and outputs beside them, an input and an output of one shape are states,
    if what a layer computes is worked into it; the operators between them are computed in float, and so are
    their other operands where nobody else reads them.
    """
    (end,) = (n for n in model.graph.nodes if n.op == "output")
    outputs = [n for n in pytree.tree_leaves(end.args) if isinstance(n, Node) and tensor_of(n) is not None]
    inputs = [n for n in model.graph.nodes if n.op == "placeholder" and tensor_of(n) is not None]
    updates: set[Node] = set()
    moves: set[Node] = set()
    if len(inputs) < 2 or len(outputs) < 2:
        return updates, moves
    for a in inputs:
        for b in outputs:
            if not is_float(a) or not same_shape(a.meta["val"], b.meta["val"]):
                continue
            before, after = (
                _moved(a, find, lambda n: list(n.users)),
                _moved(b, find, lambda n: n.all_input_nodes),
            )
            between = _between(before, after, find)
            if between and len(between) <= _LONGEST_UPDATE and _reads_layers(between, find):
                updates |= between
                moves |= {n for n in before if any(_leads_to(n, u, before) for u in between)}
                moves |= {n for n in after if any(_leads_to(u, n, after) for u in between)}
    moves -= updates
    return _with_operands(updates, find), {n for n in moves if n.op == "call_function"}


def _between(before: set[Node], after: set[Node], find: Find) -> set[Node]:
    """The element-wise operators on the ways from an old state to a new one."""
    reached: set[Node] = set()
    for node in next(iter(before)).graph.nodes:
        reads = any(n in before or n in reached for n in node.all_input_nodes)
        if reads and node not in before and _is_update(node, find):
            reached.add(node)
    wanted: set[Node] = set()
    for node in reversed(list(next(iter(before)).graph.nodes)):
        if node in reached and (node in after or any(u in wanted or u in after for u in node.users)):
            wanted.add(node)
    return wanted


def _reads_layers(updates: set[Node], find: Find) -> bool:
    """Whether a layer with weights is behind any operand."""
    seen: set[Node] = set()
    left = list(updates)
    while left:
        for source in left.pop().all_input_nodes:
            spec = find(op_name(source)) if source.op == "call_function" else None
            if spec is not None and isinstance(spec.quantize, Weighted):
                return True
            if source not in seen:
                seen.add(source)
                left.append(source)
    return False


def _is_update(node: Node, find: Find) -> bool:
    spec = find(op_name(node)) if node.op == "call_function" and is_float(node) else None
    real = spec.real_of(bind_args(node)) if spec is not None else None
    return real is not None and not (real.reduces or real.function)


def _leads_to(first: Node, last: Node, within: set[Node]) -> bool:
    """Whether one node's values reach another through nodes of a set."""
    seen, left = {first}, [first]
    while left:
        node = left.pop()
        if node is last:
            return True
        for user in node.users:
            if user not in seen and (user in within or user is last):
                seen.add(user)
                left.append(user)
    return False


def _with_operands(updates: set[Node], find: Find) -> set[Node]:
    """With what computes operands for them and for nothing else: gates, functions of int8 tensors."""
    found, left = set(updates), list(updates)
    while left:
        for source in left.pop().all_input_nodes:
            spec = find(op_name(source)) if source.op == "call_function" and is_float(source) else None
            real = spec.real_of(bind_args(source)) if spec is not None else None
            if source in found or real is None or real.reduces:
                continue
            if all(user in found for user in source.users):
                found.add(source)
                if not real.function:
                    left.append(source)
    return found


def tail_of(model: GraphModule, find: Find, states: Mapping[str, NextState]) -> list[Node]:
    """The operators that only move values on their way to the outputs that are no states, in order."""
    found: set[Node] = set()
    results = pytree.tree_leaves(model.graph.output_node().args)
    kept = {results[following.output] for following in states.values()}
    for node in reversed(model.graph.nodes):
        users = [user for user in node.users if user.op != "output"]
        if (
            node.users
            and node not in kept
            and only_moves(node, find)
            and all(user in found for user in users)
        ):
            found.add(node)
    return [node for node in model.graph.nodes if node in found]


def _head(model: GraphModule, find: Find) -> list[Node]:
    """The operators that take a part of an input."""
    found = []
    for node in model.graph.nodes:
        if not only_moves(node, find) or len(node.all_input_nodes) != 1:
            continue
        source = node.all_input_nodes[0]
        whole, part = (n.meta.get("val") for n in (source, node))
        if source.op == "placeholder" and isinstance(whole, Tensor) and isinstance(part, Tensor):
            sizes = part.numel(), whole.numel()
            if all(isinstance(size, int) for size in sizes) and sizes[0] < sizes[1]:
                found.append(node)
    return found


def only_moves(node: Node, find: Find) -> bool:
    """Whether an operator only lays values out anew."""
    spec = find(op_name(node)) if node.op == "call_function" and is_float(node) else None
    return spec is not None and spec.moves_values


def _differ(sizes: Iterable[float]) -> bool:
    known = [size for size in sizes if size > 0]
    return len(known) > 1 and max(known) > RATIO * min(known)


def sizes_of(model: GraphModule, samples: Sequence[tuple[Any, ...]], asked: set[Node]) -> dict[Node, float]:
    """The largest value of each of these nodes on samples."""
    found = dict.fromkeys(asked, 0.0)

    def look(node: Node, value: Tensor) -> None:
        if value.numel() and value.is_floating_point():
            found[node] = max(found[node], float(value.abs().max()))

    watch(model, samples, asked, look)
    return found


def kept_whole(prepared: GraphModule, find: Find) -> set[RangeObserver]:
    """The observers whose tensors keep all of the range that was seen: inputs, and states fed back."""
    (end,) = (n for n in prepared.graph.nodes if n.op == "output")
    outputs = [n for n in pytree.tree_leaves(end.args) if isinstance(n, Node) and tensor_of(n) is not None]
    inputs = [n for n in prepared.graph.nodes if n.op == "placeholder" and tensor_of(n) is not None]
    states = [b for b in outputs if any(same_shape(a.meta["val"], b.meta["val"]) for a in inputs)]
    nodes = {n for a in inputs for n in _moved(a, find, lambda n: list(n.users))}
    nodes |= {n for b in states for n in _moved(b, find, lambda n: n.all_input_nodes)}
    found = (prepared.get_submodule(str(n.target)) for n in nodes if n.op == "call_module")
    return {observer for observer in found if isinstance(observer, RangeObserver)}


def _moved(node: Node, find: Find, following: Callable[[Node], list[Node]]) -> set[Node]:
    """A node with the observers, and what only moves its values, on one side of it."""
    found, left = {node}, [node]
    while left:
        for other in following(left.pop()):
            if other not in found and (other.op == "call_module" or only_moves(other, find)):
                found.add(other)
                left.append(other)
    return found
