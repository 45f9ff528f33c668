"""A stand-in for an operator the NPU does not take: it reads and writes the same tensors, on the NPU.

What it computes is of no interest. It takes the place of the operator in the quantized module, with the
quantize and dequantize steps a quantizer would have put around it, so that partitioning, layout inference and
scheduling treat the program as they would if the operator were supported.
"""

from __future__ import annotations

import copy
import operator
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron.fx import op_name, tensor_of
from openneutron.passes.edge import DEQUANTIZE, QUANTIZE

_PARAMETERS = (0.05, 0, -128, 127, torch.int8)  # where the module has none: any will do
_quantized = torch.ops.quantized_decomposed


class NoStandIn(Exception):
    """The operator has no float tensor to read or several results, so that nothing can take its place."""


def source_node(module: GraphModule, node: Node) -> str | None:
    """The node of the quantized module that a node of the Edge program comes from."""
    names = {n.name for n in module.graph.nodes if n.op == "call_function"}
    pending = list(node.meta.get("from_node", ()))
    while pending:
        source = pending.pop()
        if source.name in names:
            return str(source.name)
        pending += source.from_node
    return None


def replace_node(module: GraphModule, name: str) -> tuple[GraphModule, str]:
    """A copy of the module with a stand-in for the operator of that name, and what to say about it."""
    changed = GraphModule(module, copy.deepcopy(module.graph))
    node = next(n for n in changed.graph.nodes if n.name == name)
    last = _result(node)
    out = tensor_of(last)
    sources = [n for n in node.all_input_nodes if _is_float(n) and n.op != "get_attr" and not _is_weight(n)]
    if out is None or out.dtype != torch.float32 or not sources:
        raise NoStandIn
    build = _Builder(changed, last)
    shape = tuple(int(d) for d in out.shape)
    value = build.shaped(build.quantized(sources[0]), shape)
    remark = "A stand-in of its size was compiled in its place."
    used = [sources[0]]
    for source in sources[1:]:
        if _broadcasts(_shape(source), shape):
            value = build.step(torch.ops.aten.maximum.default, (value, build.quantized(source)))
            used.append(source)
    if len(used) == 1:
        value = build.step(torch.ops.aten.abs.default, (value,))
    elif len(used) < len(sources):
        remark += " The stand-in reads only those inputs that fit its shape."
    quantizers = [u for u in last.users if op_name(u) == QUANTIZE]
    if len(quantizers) == len(last.users):  # its own quantize steps follow: ours would be one too many
        value = value.args[0].args[0]  # type: ignore[union-attr, assignment]
    last.replace_all_uses_with(value)
    changed.graph.eliminate_dead_code()
    changed.recompile()
    return changed, remark


class _Builder:
    """Puts operators in front of a node, each with quantize and dequantize steps behind it."""

    def __init__(self, module: GraphModule, before: Node):
        self._graph = module.graph
        self._before = before

    def quantized(self, node: Node) -> Node:
        """The node behind a dequantize step: its own or a new one."""
        return node if op_name(node) == DEQUANTIZE else self._dequantized(node, _PARAMETERS)

    def step(self, op: Any, args: tuple[Any, ...]) -> Node:
        """An operator with quantization behind it; the parameters are those of its first input."""
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(op, args)
        return self._dequantized(node, args[0].args[1:])

    def shaped(self, node: Node, shape: tuple[int, ...]) -> Node:
        """The same values in another shape: cut or repeated to its size."""
        had = _shape(node)
        if had == shape:
            return node
        size, need = prod(had), prod(shape)
        if size != need:
            node = self.step(torch.ops.aten.reshape.default, (node, [size]))
            if size < need:
                node = self.step(torch.ops.aten.repeat.default, (node, [-(-need // size)]))
            node = self.step(torch.ops.aten.slice.Tensor, (node, 0, 0, need))
        return self.step(torch.ops.aten.reshape.default, (node, list(shape)))

    def _dequantized(self, node: Node, parameters: tuple[Any, ...]) -> Node:
        with self._graph.inserting_before(self._before):
            q = self._graph.call_function(_quantized.quantize_per_tensor.default, (node, *parameters))
            return self._graph.call_function(_quantized.dequantize_per_tensor.default, (q, *parameters))


def _result(node: Node) -> Node:
    """The node that is the operator's result: itself, or the one of several results that is used."""
    if tensor_of(node) is not None:
        return node
    picks = list(node.users)
    if len(picks) != 1 or picks[0].target is not operator.getitem:
        raise NoStandIn
    return picks[0]


def _shape(node: Node) -> tuple[int, ...]:
    tensor = tensor_of(node)
    if tensor is None and op_name(node) in (QUANTIZE, DEQUANTIZE):
        return _shape(node.all_input_nodes[0])  # of a step the quantizer added
    assert tensor is not None, node.name
    return tuple(int(d) for d in tensor.shape)


def _is_float(node: Node) -> bool:
    tensor = tensor_of(node)
    return op_name(node) == DEQUANTIZE or (tensor is not None and tensor.dtype == torch.float32)


def _is_weight(node: Node) -> bool:
    """Whether a dequantize step is that of a constant."""
    return bool(node.all_input_nodes) and node.all_input_nodes[0].op == "get_attr"


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    padded = (1,) * (len(to) - len(shape)) + shape
    return len(padded) == len(to) and all(a in (1, b) for a, b in zip(padded, to, strict=True))
