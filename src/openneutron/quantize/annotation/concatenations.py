"""Concatenations inside a network do not force one scale on parts of very different size.

What a concatenation joins has one scale, and by default everything that its parts are read by has it too. A
part that is much smaller than others, and that others read as well, keeps its own scale for those: a step of
requantization stands between it and the concatenation, one table over the part. Where the joined tensor also
goes to an output, the output is joined by itself, behind the dequantize step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron.fx import is_float, op_name
from openneutron.ops.spec import Shared
from openneutron.passes.graph import add_constant, constants_only, insert
from openneutron.quantize.annotation.borders import RATIO, Find, sizes_of, tail_of
from openneutron.quantize.annotation.sharing import NextState

aten = torch.ops.aten
_CAT = "aten.cat.default"


def separate_parts(
    model: GraphModule,
    samples: Sequence[tuple[Any, ...]],
    find: Find,
    states: Mapping[str, NextState] | None = None,
) -> int:
    """Let small parts of concatenations inside keep their own scales, in place; how many steps that takes."""
    constants, tail = constants_only(model.graph.nodes), set(tail_of(model, find, states or {}))
    parts = {
        cat: [n for n in cat.all_input_nodes if is_float(n) and n not in constants]
        for cat in model.graph.nodes
        if op_name(cat) == _CAT and is_float(cat) and cat not in tail
    }
    if not samples or not any(len(found) > 1 for found in parts.values()):
        return 0
    sizes = sizes_of(model, samples, {n for found in parts.values() for n in found})
    count = 0
    for cat, found in parts.items():
        largest = max((sizes[n] for n in found), default=0.0)
        small = [n for n in found if 0 < sizes[n] * RATIO < largest]
        if small:
            _join_for_outputs(cat, tail)
        for part in small:
            if _is_read_elsewhere(part, find):
                _requantize(model, part, cat)
                count += 1
    if count:
        model.graph.lint()
        model.recompile()
    return count


def _join_for_outputs(cat: Node, tail: set[Node]) -> None:
    """Join the parts once more for what only lays them out on their way to the outputs."""
    users = [user for user in cat.users if user in tail or user.op == "output"]
    if not users or len(users) == len(cat.users):
        return
    again = insert(next(iter(cat.users)), aten.cat.default, tuple(cat.args), cat, cat.kwargs)
    for user in users:
        user.replace_input_with(cat, again)


def _is_read_elsewhere(part: Node, find: Find) -> bool:
    """Whether what computes a part, however it is laid out since, is read by more than the concatenation."""
    node = part
    while len(node.users) == 1:
        spec = find(op_name(node)) if node.op == "call_function" else None
        if spec is None or not isinstance(spec.quantize, Shared) or len(node.all_input_nodes) != 1:
            return False
        node = node.all_input_nodes[0]
    return node.op == "call_function"


def _requantize(model: GraphModule, part: Node, cat: Node) -> None:
    """A step with parameters of its own between a part and what joins it: times one."""
    one = add_constant(model, cat, torch.ones(()), f"{part.name}_one")
    cat.replace_input_with(part, insert(cat, aten.mul.Tensor, (part, one), part))
