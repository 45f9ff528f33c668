"""A whole model as one LiteRT graph: int8 where it is quantized, float elsewhere, for any LiteRT runtime."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.fx import bind_args, op_name, overload, remove_assertions, sources, tensor_of
from openneutron.litert.build import Builder
from openneutron.litert.build import Names as FreshNames
from openneutron.litert.ir import Graph, Quant, Tensor
from openneutron.lower.convert import append_cluster, results_of
from openneutron.lower.layout import strip_border_transposes
from openneutron.lower.real import ANY, RealBuilder, RealValue, real_lowering
from openneutron.lower.states import finish_with_states
from openneutron.ops import find
from openneutron.ops.spec import Call, Lowering, Value
from openneutron.partition.clusters import Cluster, find_clusters, is_compute
from openneutron.partition.constants import (
    DEQUANTIZE,
    DEQUANTIZE_TENSOR,
    QUANTIZE_TENSOR,
    Constants,
    per_tensor_quant,
)
from openneutron.passes.base import run_passes
from openneutron.passes.edge import EDGE_PASSES

Names = tuple[Sequence[str], Sequence[str]]
"""Of inputs and outputs."""


def lower_whole(
    program: ExportedProgram, channels_last_io: bool = False, names: Names | None = None
) -> Graph:
    """The LiteRT graph of an exported model; with `channels_last_io` inputs and outputs are N, H, W, C."""
    program = _decomposed(program)
    graph = finish_with_states(_Whole(program).convert())
    if channels_last_io:
        graph, _, _ = strip_border_transposes(graph)
    if names is not None:
        _name_ports(graph, names)
    return graph.verify()


def _name_ports(graph: Graph, names: Names) -> None:
    """Call inputs and outputs by their names in the model's file."""
    ports = [*zip(graph.given, names[0], strict=True), *zip(graph.returned, names[1], strict=True)]
    wanted = {id(tensor): name for tensor, name in ports}
    taken = FreshNames([*wanted.values(), *(t.name for t in graph.tensors())])
    for tensor in graph.tensors():
        if id(tensor) in wanted:
            tensor.name = wanted[id(tensor)]
        elif tensor.name in wanted.values():
            tensor.name = taken.fresh(tensor.name)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    """Only operators that have a form in LiteRT, or none that could be decomposed into such."""
    table = torch.export.default_decompositions()
    for node in program.graph.nodes:
        op = overload(node)
        if op is not None and (find(op_name(node)) is not None or real_lowering(op_name(node))):
            table.pop(op, None)
    program = program.run_decompositions(table)
    remove_assertions(program)
    graph = program.graph
    for node in [n for n in graph.nodes if op_name(n) in DEQUANTIZE and len(n.users) > 1]:
        for user in list(node.users)[1:]:  # a dequantize step for each reader, as clusters want it
            with graph.inserting_after(node):
                copy = graph.node_copy(node)
            user.replace_input_with(node, copy)
    run_passes(program.graph_module, EDGE_PASSES)
    _restore_names(program)
    return program


def _restore_names(program: ExportedProgram) -> None:
    """Operators have the names of the model they come from, not those of the last time it was traced."""
    renamed: dict[str, str] = {}
    for node in program.graph.nodes:
        origins = sources(node) if is_compute(node) else []
        if origins and origins[-1].name != node.name:
            old = node.name
            node._rename(origins[-1].name)
            renamed[old] = node.name
    for spec in program.graph_signature.output_specs:
        if spec.arg.name in renamed:
            spec.arg.name = renamed[spec.arg.name]


class _Whole:
    def __init__(self, program: ExportedProgram):
        self.program = program
        self.constants = Constants(program)
        clusters, _ = find_clusters(program)
        self.ends: dict[Node, Cluster] = {(c.body or (c.node,))[-1]: c for c in clusters}
        self.inside = {node for c in clusters for node in c.members}
        self.build = Builder("main")
        self.real = RealBuilder(self.build)
        self.tensors: dict[str, Tensor] = {}

    def convert(self) -> Graph:
        """Inputs, every node in order, outputs."""
        specs = self.program.graph_signature.input_specs
        users = {s.arg.name for s in specs if s.kind is InputKind.USER_INPUT and hasattr(s.arg, "name")}
        lowering, real = Lowering(self.build, self._lookup), Lowering(self.real, self._lookup)
        results, written = results_of(self.program), self.program.graph_signature.buffers_to_mutate
        becomes = dict(zip(written.values(), results, strict=False))  # what buffers become comes first
        states: dict[str, Tensor] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                target = self.program.graph_signature.inputs_to_buffers.get(node.name)
                if node.name in users:
                    self._input(node)
                elif target in becomes:
                    states[target] = self._state(node, target, becomes[target])
            elif node in self.ends:
                append_cluster(self.build, lowering, self.ends[node], self.tensors)
            elif node.op == "call_function" and node not in self.inside:
                self._node(node, real)
        for target, state in states.items():
            new = self._output(becomes[target])
            if new.quant != state.quant:  # it is returned in int8 too, and remembered in float
                new = self.tensors.get(becomes[target].name) or self.build.dequantize(new)
            self.build.remember(state, new)
        return self.build.graph([self._output(n) for n in results[len(written) :]])

    def _lookup(self, value: Value) -> Tensor:
        return self.tensors[value.name]

    def _input(self, node: Node) -> None:
        tensor = tensor_of(node)
        if tensor is None:
            fail("ON305", node.name, "is an input that is not a tensor", "Give the model tensors only.")
        steps = list(node.users)
        quants = {per_tensor_quant(u) for u in steps if op_name(u) == QUANTIZE_TENSOR}
        quantized = len(quants) == 1 and all(op_name(u) == QUANTIZE_TENSOR for u in steps)
        quant = quants.pop() if quantized else None
        dtype = "int8" if quant is not None else _dtype(tensor, node)
        made = self.build.input(node.name, list(tensor.shape), dtype, quant)
        self.tensors[node.name] = made
        for step in steps if quantized else ():
            self.tensors[step.name] = made

    def _state(self, node: Node, target: str, new: Any) -> Tensor:
        """A buffer that is written: int8 if all who read it quantize as what is written was quantized."""
        initial = {**self.program.state_dict, **self.program.constants}[target].detach().cpu()
        steps = [user for user in node.users if user.op != "output"]
        quants = {per_tensor_quant(u) if op_name(u) == QUANTIZE_TENSOR else None for u in steps}
        quant = quants.pop() if len(quants) == 1 else None
        if quant is not None and op_name(new) == DEQUANTIZE_TENSOR and per_tensor_quant(new) == quant:
            rounded = torch.ops.quantized_decomposed.quantize_per_tensor(initial, *steps[0].args[1:])
            made = self.build.state(target, np.ascontiguousarray(rounded.numpy()), quant)
            self.tensors.update((step.name, made) for step in steps)
        else:
            made = self.build.state(target, np.ascontiguousarray(initial.numpy()))
            self.tensors[node.name] = made
        return made

    def _output(self, node: Any) -> Tensor:
        if not isinstance(node, Node):
            fail("ON305", "output", f"is {node!r}, not a tensor", "Return tensors only.")
        if op_name(node) in DEQUANTIZE:
            tensor = self.tensors.get(bind_args(node)["input"].name)
            if tensor is not None and tensor.quant is not None:
                return tensor
        if node.name not in self.tensors:
            fail("ON305", node.name, "is an output that does not depend on any input", "Leave it out.")
        return self.tensors[node.name]

    # -- nodes outside of clusters

    def _node(self, node: Node, real: Lowering) -> None:
        if node.name in self.tensors or self.constants.find(node) is not None:
            return
        name = op_name(node)
        if node.target is operator.getitem:
            source, index = node.args
            if index == 0 and isinstance(source, Node):
                self.tensors[node.name] = self.tensors[source.name]
            elif node.users:
                fail("ON305", node.name, f"is result {index} of {source}, which LiteRT does not have", "")
            return
        with self.build.origin(node.name):
            if name == QUANTIZE_TENSOR:
                self.tensors[node.name] = self._quantized(node)
            elif name == DEQUANTIZE_TENSOR:
                self.tensors[node.name] = self.build.dequantize(self._tensor(bind_args(node)["input"]))
            else:
                self.tensors[node.name] = self._real(node, name, real)

    def _quantized(self, node: Node) -> Tensor:
        quant, source = per_tensor_quant(node), self._tensor(bind_args(node)["input"])
        if quant is None or bind_args(node)["dtype"] != torch.int8:
            _refuse(node, "it does not quantize to int8 with constant parameters")
        assert quant is not None
        return self.build.quantize(source, quant)

    def _real(self, node: Node, name: str, real: Lowering) -> Tensor:
        spec, lower = find(name), real_lowering(name)
        if lower is None and spec is not None:
            lower = spec.lower
        if lower is None:
            _refuse(node, "LiteRT has no form for it that OpenNeutron writes")
        assert lower is not None
        args = {key: self._argument(value) for key, value in bind_args(node).items()}
        value = node.meta.get("val")
        out: Any = value[0] if isinstance(value, tuple | list) else value
        call = Call(node.name, name, args, RealValue(node.name, tuple(out.shape), _dtype(out, node), ANY))
        try:
            result = lower(real, call)
        except OpenNeutronError:
            raise
        except Exception as error:
            _refuse(node, f"this use of it has no form in LiteRT ({type(error).__name__}: {error})")
        if result.shape != tuple(out.shape):
            _refuse(node, f"it came out as {list(result.shape)} instead of {list(out.shape)}")
        return result

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(self._argument(v) for v in value)
        if not isinstance(value, Node):
            return value
        tensor = tensor_of(value)
        assert tensor is not None, f"{value.name} is not a tensor"
        shape, dtype = tuple(tensor.shape), _dtype(tensor, value)
        constant = self.constants.find(value)
        if constant is None:
            self._tensor(value)
            return RealValue(value.name, shape, dtype, ANY)
        array = _real_array(constant[0].array(), constant[0].quant)
        quant = ANY if array.dtype == np.float32 else None
        return RealValue(value.name, shape, str(array.dtype), quant, lambda: array)

    def _tensor(self, node: Node) -> Tensor:
        if node.name not in self.tensors:
            const = self.constants.find(node)
            if const is None:
                _refuse(node, "its value is not known")
            assert const is not None
            constant = const[0]
            array = constant.array() if constant.quant is not None else _real_array(constant.array(), None)
            self.tensors[node.name] = self.build.const(array, constant.quant, name=node.name)
        return self.tensors[node.name]


def _real_array(array: np.ndarray, quant: Quant | None) -> np.ndarray:
    """A constant in float, its quantization undone."""
    if quant is None:
        return array.astype(np.float32) if array.dtype.kind == "f" else array
    shape = [1] * array.ndim
    if not quant.is_per_tensor:
        shape[quant.axis] = -1
    scale = np.array(quant.scale, np.float64).reshape(shape)
    zero = np.array(quant.zero_point, np.float64).reshape(shape)
    return ((array.astype(np.float64) - zero) * scale).astype(np.float32)


def _dtype(tensor: torch.Tensor, node: Node) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ("float32", "int8", "int32", "int64", "bool", "uint8", "int16"):
        _refuse(node, f"it has the type {name}")
    return name


def _refuse(node: Node, reason: str) -> None:
    fail(
        "ON305",
        f"{node.name} ({op_name(node) or node.target})",
        reason,
        "Write the model without it, or compile it: what the NPU does not take runs on the CPU there.",
    )
