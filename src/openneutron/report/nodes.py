"""The graph of a program with its delegates opened: every operator, where it runs, and what it reads."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from openneutron.converter.protocol import Partition
from openneutron.estimate.cpu_cost import operator_of
from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.litert.ir import Graph
from openneutron.package.program import CompiledProgram, inside
from openneutron.partition.clusters import is_compute

Ids = tuple[int, ...]


@dataclass
class NodeEntry:
    """An operator, a program input or a program output; `aliases` are nodes that stand for its result."""

    id: int
    name: str
    op: str
    where: str  # npu, cpu or io
    partition: int | None
    method: str
    inputs: Ids
    shape: tuple[int, ...]
    dtype: str
    macs: int = 0
    aliases: list[str] = field(default_factory=list)


def program_nodes(program: CompiledProgram) -> list[NodeEntry]:
    """Every operator of a compiled program in execution order, with its inputs and outputs."""
    walk = _Walk()
    for method, exported in program.methods.items():
        walk.program(method, exported)
    return walk.nodes


class NodeWalk:
    """Collects operators as a walk comes by them, in one method of a program and one partition at a time."""

    def __init__(self) -> None:
        self.nodes: list[NodeEntry] = []
        self.method = ""
        self.partition: int | None = None  # None outside delegates

    def append(self, name: str, op: str, inputs: Ids, shape: Sequence[int], dtype: str, macs: int = 0) -> Ids:
        """An operator where the walk is; its id."""
        where = "npu" if self.partition is not None else "io" if op in ("input", "output") else "cpu"
        entry = NodeEntry(
            len(self.nodes), name, op, where, self.partition, self.method, inputs, tuple(shape), dtype, macs
        )
        self.nodes.append(entry)
        return (entry.id,)


class _Walk(NodeWalk):
    def __init__(self) -> None:
        super().__init__()
        self._partitions = count()

    def program(self, method: str, exported: ExportedProgram) -> None:
        self.method = method
        specs = exported.graph_signature.input_specs
        users = {s.arg.name for s in specs if s.kind is InputKind.USER_INPUT and hasattr(s.arg, "name")}
        made: dict[Node, Ids] = {}
        outputs: dict[Node, list[Ids]] = {}  # of delegates
        for node in exported.graph.nodes:
            if node.op == "placeholder":
                made[node] = self._add(node, "input", ()) if node.name in users else ()
            elif node.op == "output":
                self._outputs(node, made)
            elif node.op != "call_function":
                made[node] = ()
            elif node.target is executorch_call_delegate:
                lowered = getattr(exported.graph_module, node.args[0].target)
                arguments = [made[a] for a in node.args[1:]]
                self.partition = next(self._partitions)
                outputs[node] = self._delegate(lowered, arguments)
                self.partition = None
                made[node] = tuple(i for ids in outputs[node] for i in ids)
            elif node.target is operator.getitem:
                source, index = node.args
                made[node] = outputs[source][index] if source in outputs else made[source]
            else:
                name = op_name(node) or str(node.target)
                made[node] = self._add(node, name, _sources(node, made))

    def _outputs(self, node: Node, made: dict[Node, Ids]) -> None:
        values = node.args[0] if isinstance(node.args[0], list | tuple) else [node.args[0]]
        for number, value in enumerate(values):
            if isinstance(value, Node):
                self.append(f"output_{number}", "output", made[value], *_type(value))

    def _delegate(self, lowered: Any, arguments: list[Ids]) -> list[Ids]:
        """The nodes of a partition; what its outputs are made by."""
        info = lowered.meta.get("_delegate_info_meta")
        if isinstance(info, Partition) and info.lowered.naive is info.lowered.graph:
            return self._litert(info.lowered.graph, arguments)
        inner = inside(lowered)
        names = iter(arguments)
        users = set(inner.graph_signature.user_inputs)
        made: dict[Node, Ids] = {}
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                made[node] = next(names, ()) if node.name in users else ()
            elif node.op == "output":
                return [made[value] for value in node.args[0]]
            elif not is_compute(node):  # quantization around an operator, or a pick of one of its results
                made[node] = _sources(node, made)
                if node.target is operator.getitem:
                    for entry in made[node]:
                        self.nodes[entry].aliases.append(node.name)
            else:
                # Without an input that is no constant it is computed at compile time.
                inputs = _sources(node, made)
                made[node] = self._add(node, op_name(node), inputs) if inputs else ()
        return []

    def _litert(self, graph: Graph, arguments: list[Ids]) -> list[Ids]:
        """The operators of a LiteRT model, named after what they write."""
        made: dict[str, Ids] = {t.name: ids for t, ids in zip(graph.given, arguments, strict=True)}
        for op in graph.ops:
            inputs = [made.get(t.name, ()) for t in op.inputs if t is not None]
            ids = tuple(dict.fromkeys(i for source in inputs for i in source))
            out = op.outputs[0]
            entry = self.append(out.name, op.custom_name or op.kind.name, ids, out.shape, out.dtype)
            made |= {t.name: entry for t in op.outputs}
        return [made.get(t.name, ()) for t in graph.returned]

    def _add(self, node: Node, op: str, inputs: Ids) -> Ids:
        macs = operator_of(node).macs if node.op == "call_function" else 0
        shape, dtype = _type(node)
        dtype = dtype if self.partition is None else _quantized_type(node)
        return self.append(node.name, op, inputs, shape, dtype, macs)


def _sources(node: Node, made: dict[Node, Ids]) -> Ids:
    return tuple(dict.fromkeys(i for source in node.all_input_nodes for i in made.get(source, ())))


def _type(node: Node) -> tuple[tuple[int, ...], str]:
    """Shape and type of a result."""
    tensor = tensor_of(node)
    value = node.meta.get("val")
    if tensor is None and isinstance(value, tuple | list):
        tensor = next((v for v in value if isinstance(v, torch.Tensor)), None)
    if tensor is None:
        return (), type(value).__name__
    return tuple(int(d) for d in tensor.shape), str(tensor.dtype).removeprefix("torch.")


def _quantized_type(node: Node) -> str:
    """The type a delegated operator's result has on the NPU; the Edge program computes it in float."""
    for user in node.users:
        if op_name(user).startswith("quantized_decomposed.quantize_per"):
            return str(bind_args(user)["dtype"]).removeprefix("torch.")
    inner = (u for u in node.users if u.op == "call_function")
    return next(map(_quantized_type, inner), _type(node)[1])
