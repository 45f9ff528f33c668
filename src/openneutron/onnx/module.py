"""An ONNX graph as a torch module: a submodule per node, a parameter per weight, by their own names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from openneutron.fx import remove_assertions
from openneutron.onnx.spec import Call, Node, OnnxOp, Store, execute
from openneutron.onnx.values import Tensor, Value, as_array, as_tensor


@dataclass(frozen=True, eq=False)
class Step:
    """A node that remains: what it reads and makes, by names that are unique in the graph."""

    node: Node
    op: OnnxOp
    version: int
    inputs: tuple[str, ...]  # empty: not given
    outputs: tuple[str, ...]
    tensors: frozenset[str]  # the constants that it reads as tensors, and those derived from them


@dataclass(frozen=True, eq=False)
class ImportedGraph:
    """A graph whose shapes are all known and whose constants are all computed."""

    inputs: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    outputs: tuple[str, ...]
    output_names: tuple[str, ...]  # in the file: an output may be a value of another name
    steps: tuple[Step, ...]
    constants: Mapping[str, Tensor]
    widen: bool = False  # half precision is float32


def attribute_name(name: str) -> str:
    """A name that a torch module can have as an attribute, and an fx node too."""
    text = re.sub(r"\W+", "_", name).strip("_") or "value"
    return f"_{text}" if text[0].isdigit() else text


class OnnxNode(torch.nn.Module):
    """One node; its name in the module tree is the ONNX node's."""

    def __init__(self, step: Step, constants: Mapping[str, Tensor]):
        super().__init__()
        self.step = step
        self.statics = [as_array(constants[n]) if n in constants else None for n in step.inputs]

    def forward(self, values: Sequence[Value | None], store: Store) -> tuple[Value, ...]:
        """Compute the node."""
        step = self.step
        return execute(step.op, Call(step.node, step.version, values, self.statics, store))


class OnnxModule(torch.nn.Module):
    """An imported graph, to be exported, quantized or trained like any other module."""

    def __init__(self, graph: ImportedGraph):
        super().__init__()
        self._graph = graph
        self._plain = dict(graph.constants)  # also those that are only read while importing
        self._attributes: dict[str, str] = {}
        wanted = {name for step in graph.steps for name in step.tensors}
        wanted.update(name for name in graph.outputs if name in graph.constants)
        statistics = {s.inputs[i] for s in graph.steps for i in s.op.statistics if i < len(s.inputs)}
        taken = set(dir(self))
        for name in (n for n in graph.constants if n in wanted):
            self._attributes[name] = attribute = _fresh(attribute_name(name), taken)
            tensor = graph.constants[name]
            if tensor.is_floating_point() and name not in statistics:
                self.register_parameter(attribute, torch.nn.Parameter(tensor))
            else:
                self.register_buffer(attribute, tensor)
        self._modules_in_order: list[str] = []
        for step in graph.steps:
            attribute = _fresh(attribute_name(step.node.name), taken)
            self.add_module(attribute, OnnxNode(step, graph.constants))
            self._modules_in_order.append(attribute)
        self.eval()

    @property
    def example_inputs(self) -> tuple[Tensor, ...]:
        """Inputs of the right shapes and types; real ones are drawn at random, the same every time."""
        generator = torch.Generator().manual_seed(0)
        return tuple(
            torch.randn(shape, generator=generator).to(dtype)
            if dtype.is_floating_point
            else torch.zeros(shape, dtype=dtype)
            for _, shape, dtype in self._graph.inputs
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs in the file."""
        return tuple(name for name, _, _ in self._graph.inputs)

    @property
    def port_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of inputs and outputs in the file."""
        return self.input_names, self._graph.output_names

    @property
    def is_quantized(self) -> bool:
        """Whether the file has quantized activations, so that it is taken as it is."""
        return any(
            step.op.name == "QuantizeLinear" or step.op.name.startswith(("QLinear", "QGemm"))
            for step in self._graph.steps
        )

    def forward(self, *inputs: Tensor) -> Any:
        """Compute the graph."""
        values: dict[str, Any] = dict(zip(self.input_names, inputs, strict=True))
        store = Store(self._constant, None, self._graph.widen)
        for step, name in zip(self._graph.steps, self._modules_in_order, strict=True):
            given = [self._value(values, n) if n else None for n in step.inputs]
            results = getattr(self, name)(given, store)
            values.update((n, v) for n, v in zip(step.outputs, results, strict=False) if n)
        outputs = tuple(as_tensor(self._value(values, n)) for n in self._graph.outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    def _value(self, values: Mapping[str, Any], name: str) -> Any:
        if name in values:
            return values[name]
        return getattr(self, self._attributes[name]) if name in self._attributes else self._plain[name]

    def _constant(self, name: str) -> Tensor | None:
        return getattr(self, self._attributes[name]) if name in self._attributes else None

    def export_program(self, inputs: tuple[Any, ...]) -> ExportedProgram:
        """What torch.export makes of it, with nodes named after those of the file."""
        program = torch.export.export(self, inputs)
        remove_assertions(program)
        _name_nodes(program)
        return program


def _fresh(name: str, taken: set[str]) -> str:
    fresh, count = name, 0
    while fresh in taken:
        count += 1
        fresh = f"{name}_{count}"
    taken.add(fresh)
    return fresh


def _name_nodes(program: ExportedProgram) -> None:
    """Name each operator after the ONNX node it comes from; the last of several has the plain name."""
    groups: dict[str, list[torch.fx.Node]] = {}
    for node in program.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if node.op == "call_function" and stack:
            path = str(list(stack.values())[-1][0])
            if path:
                groups.setdefault(path, []).append(node)
    renamed: dict[str, str] = {}
    for path, nodes in groups.items():
        for node in reversed(nodes):
            old = node.name
            node._rename(path if node is nodes[-1] else f"{path}_{node.name}")
            renamed[old] = node.name
    for spec in program.graph_signature.output_specs:
        if spec.arg.name in renamed:
            spec.arg.name = renamed[spec.arg.name]
    program.graph_module.recompile()
