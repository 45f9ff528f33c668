"""Steps of a recurrent layer: what one cell computes again and again has one range for all steps.

A layer that is unrolled calls the same weights once a step, and between two such calls the graph repeats
itself. Corresponding values of the steps get the same parameters, as in every int8 implementation of such a
cell: then each step is the same kernels on other addresses, which the open converter writes down as a loop.
Only sequences count: each step must read the next part of a common tensor. Layers of a deep network that
share their weights have ranges of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import groupby, pairwise, takewhile
from typing import Any

from torch.fx import Node
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantizer import QuantizationSpec, SharedQuantizationSpec
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from openneutron.fx import bind_args, is_float, op_name, tensor_of
from openneutron.ops.spec import OpSpec, Weighted

LEAST = 4  # steps; with fewer there is nothing to gain
_PARTS = ("aten.select.int", "aten.slice.Tensor")

Steps = list[list[Node]]  # the nodes of each step, in the same order; of the last one some may be missing


def share_between_steps(
    nodes: Iterable[Node], find: Callable[[str], OpSpec | None], constants: Collection[Node]
) -> None:
    """Let the corresponding values of all steps refer to the parameters of the first."""
    for steps in find_steps(nodes, find, constants):
        for position, first in enumerate(steps[0]):
            _share(first, [step[position] for step in steps[1:] if position < len(step)], constants)


def find_steps(
    nodes: Iterable[Node], find: Callable[[str], OpSpec | None], constants: Collection[Node]
) -> list[Steps]:
    """The steps of every recurrent layer, from each call of its weights to the next."""
    order = [n for n in nodes if n.op == "call_function" and n not in constants]
    calls: dict[Hashable, list[int]] = {}
    for position, node in enumerate(order):
        spec = find(op_name(node))
        if spec is not None and isinstance(intent := spec.quantize, Weighted):
            weight = bind_args(node)[intent.weight]
            if weight in constants:
                calls.setdefault((op_name(node), weight.op, weight.target), []).append(position)
    kinds = [_kind(node, constants) for node in order] if any(len(c) >= LEAST for c in calls.values()) else []
    return [steps for begins in calls.values() for steps in _repeats(order, kinds, begins, constants)]


def _repeats(
    order: Sequence[Node], kinds: Sequence[Hashable], begins: list[int], constants: Collection[Node]
) -> Iterable[Steps]:
    """Runs of parts of the graph that repeat one another; the last one as far as it does."""
    if len(begins) < LEAST:
        return
    for _, run in groupby(pairwise(begins), key=lambda span: tuple(kinds[slice(*span)])):
        spans = list(run)
        steps = [list(order[slice(*span)]) for span in spans]
        if len(steps) >= LEAST and _is_sequence(steps, constants):
            (first, end), behind = spans[0], spans[-1][1]
            alike = takewhile(
                lambda pair: pair[0] == pair[1], zip(kinds[first:end], kinds[behind:], strict=False)
            )
            yield [*steps, list(order[behind : behind + sum(1 for _ in alike)])]


def _kind(node: Node, constants: Collection[Node]) -> Hashable:
    """What a node computes, whatever it reads; of a part, wherever it begins."""
    value = tensor_of(node)
    shape = None if value is None else (tuple(map(str, value.shape)), value.dtype)
    numbers: tuple[Any, ...] = ()
    if op_name(node) not in _PARTS:
        flat = pytree.tree_leaves((node.args, node.kwargs))
        numbers = tuple(str(n) for n in flat if not isinstance(n, Node))
    held = tuple(str(n.target) for n in node.all_input_nodes if n in constants and n.op == "get_attr")
    return op_name(node), shape, numbers, held


def _is_sequence(steps: Steps, constants: Collection[Node]) -> bool:
    """Whether every step reads another part of one tensor, which is none of theirs."""
    inside = {node for step in steps for node in step}
    for same in zip(*steps, strict=True):
        source = same[0].args[0] if op_name(same[0]) in _PARTS else None
        if not isinstance(source, Node) or source in inside or source in constants:
            continue
        if all(n.args[0] is source for n in same) and len({str(n.args[1:]) for n in same}) == len(same):
            return True
    return False


def _share(first: Node, others: Iterable[Node], constants: Collection[Node]) -> None:
    """Join the outputs of corresponding nodes, and what each reads with a range of its own."""
    known = first.meta.get(Q_ANNOTATION_KEY)
    for node in others:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if known is None or annotation is None:
            continue
        if _observed(known.output_qspec) and _observed(annotation.output_qspec):
            annotation.output_qspec = SharedQuantizationSpec(first)
        for there, here in zip(first.all_input_nodes, node.all_input_nodes, strict=False):
            if here in constants or not is_float(here):
                continue
            if _observed(known.input_qspec_map.get(there)) and _observed(
                annotation.input_qspec_map.get(here)
            ):
                annotation.input_qspec_map[here] = SharedQuantizationSpec((there, first))


def _observed(spec: Any) -> bool:
    return isinstance(spec, QuantizationSpec)
