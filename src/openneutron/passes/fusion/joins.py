"""What is joined only to be taken apart again, or to be scaled part by part, is not joined before that.

A concatenation has one scale for all its parts once it is int8. Detectors write boxes and scores into one
tensor, then change the boxes: of the scores nothing would be left. Every rule keeps the float function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.passes.graph import add_constant, constant, insert
from openneutron.passes.patterns import only_user

aten = torch.ops.aten
_CAT, _SLICE = "aten.cat.default", "aten.slice.Tensor"
_NEUTRAL = {"aten.mul.Tensor": 1.0, "aten.add.Tensor": 0.0, "aten.sub.Tensor": 0.0}
_RATIO = 4.0  # of factors that parts with one scale may have


def take_from_parts(model: GraphModule) -> bool:
    """Let a slice of a concatenation that lies in one part read that part."""
    changed = False
    for node in list(model.graph.nodes):
        cat = node.args[0] if op_name(node) == _SLICE else None
        if not isinstance(cat, Node) or (joined := _parts(cat)) is None:
            continue
        axis, parts, sizes = joined
        args, total = bind_args(node), sum(sizes)
        bounds = args["start"] or 0, total if args["end"] is None else args["end"]
        if (
            args["dim"] % _rank(cat) != axis
            or args["step"] != 1
            or not all(isinstance(b, int) for b in bounds)
        ):
            continue
        start, end = (min(max(b + total if b < 0 else b, 0), total) for b in bounds)
        before = 0
        for part, size in zip(parts, sizes, strict=True):
            low, high = start - before, end - before
            before += size
            if 0 <= low < high <= size:
                whole = (low, high) == (0, size)
                taken = part if whole else insert(node, aten.slice.Tensor, (part, axis, low, high), node)
                node.replace_all_uses_with(taken)
                model.graph.erase_node(node)
                changed = True
                break
    return changed


def compute_in_parts(model: GraphModule) -> bool:
    """Apply numbers that are of different size for the parts of a concatenation to every part by itself."""
    changed = False
    for cat in list(model.graph.nodes):
        joined, step = _parts(cat), only_user(cat)
        if joined is None or step is None or op_name(step) not in _NEUTRAL or len(step.args) != 2:
            continue
        axis, parts, sizes = joined
        other = step.args[0] if step.args[1] is cat else step.args[1]
        value = constant(model, other)
        if value is None or (numbers := _split(value, cat, axis, sizes)) is None:
            continue
        neutral = _NEUTRAL[op_name(step)]
        if not _differ(numbers, neutral):
            continue
        made = []
        for part, share in zip(parts, numbers, strict=True):
            if bool((share == neutral).all()) and (op_name(step) != "aten.sub.Tensor" or step.args[0] is cat):
                made.append(part)
                continue
            number = add_constant(model, step, share.clone(), f"{step.name}_part")
            operands = tuple(part if a is cat else number for a in step.args)
            made.append(insert(step, step.target, operands, part))
        step.replace_all_uses_with(insert(step, aten.cat.default, (made, axis), cat))
        model.graph.erase_node(step)
        model.graph.erase_node(cat)
        changed = True
    return changed


def _parts(node: Node) -> tuple[int, list[Node], list[int]] | None:
    """The axis, the parts and their sizes of a concatenation of known size."""
    if op_name(node) != _CAT:
        return None
    args = bind_args(node)
    tensors, values = args["tensors"], [tensor_of(part) for part in args["tensors"]]
    rank = _rank(node)
    if not rank or any(v is None or v.dim() != rank for v in values):
        return None  # torch lets a concatenation hold empty tensors of one dimension
    axis = args["dim"] % rank
    sizes = [v.shape[axis] for v in values if v is not None]
    return (axis, list(tensors), sizes) if all(isinstance(size, int) for size in sizes) else None


def _rank(node: Node) -> int:
    value = tensor_of(node)
    return 0 if value is None else value.dim()


def _split(value: Tensor, cat: Node, axis: int, sizes: list[int]) -> tuple[Tensor, ...] | None:
    """The numbers of every part; None if all parts have the same, or if they make more of the tensor."""
    joined = tensor_of(cat)
    place = axis - _rank(cat) + value.dim()
    if joined is None or place < 0 or value.shape[place] != sum(sizes) or not value.is_floating_point():
        return None
    if torch.broadcast_shapes(value.shape, joined.shape) != joined.shape:
        return None
    return value.split(sizes, place)


def _differ(numbers: Sequence[Tensor], neutral: float) -> bool:
    """Whether parts are left as they are beside others that are not, or get factors of different size."""
    untouched = [bool((n == neutral).all()) for n in numbers]
    if all(untouched) or any(untouched):
        return not all(untouched)
    sizes = [float(n.abs().max()) for n in numbers]
    return neutral == 1.0 and max(sizes) > _RATIO * min(sizes)
