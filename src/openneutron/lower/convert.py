"""Edge -> LiteRT: each cluster is lowered by its entry in the operator table, then the graph is laid out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from openneutron.diagnostics import fail
from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Quant, Tensor
from openneutron.litert.rules import run
from openneutron.lower.groups import SPLIT_GROUPS
from openneutron.lower.layout import strip_border_transposes
from openneutron.lower.real import ANY, RealBuilder
from openneutron.lower.states import finish_with_states
from openneutron.ops.common import quantized
from openneutron.ops.spec import OPEN, FixedOutput, FloatLowering, Lowering, Value
from openneutron.partition.clusters import Cluster, Part, find_clusters
from openneutron.partition.constants import DEQUANTIZE, DEQUANTIZE_TENSOR, QUANTIZE_TENSOR, per_tensor_quant
from openneutron.targets.chip import Target


@dataclass(frozen=True)
class Lowered:
    """A partition as a LiteRT graph; a flag per input and output says whether the runtime transposes it."""

    graph: Graph
    input_channels_last: tuple[bool, ...]
    output_channels_last: tuple[bool, ...]
    naive: Graph  # before layout inference and optimization, for tests and reports


def lower_program(
    program: ExportedProgram,
    converter: str = OPEN,
    npu_transposes: bool = True,
    target: Target | None = None,
) -> Lowered:
    """The LiteRT graph of a delegated program: every operator of it must be part of a cluster."""
    unknown = [
        name for name, t in {**program.state_dict, **program.constants}.items() if isinstance(t, FakeTensor)
    ]
    assert not unknown, f"the values of {unknown[0]} are not known yet"
    naive = _Converter(program, converter, target).convert()
    graph = finish_with_states(naive if converter == OPEN else run(naive, [SPLIT_GROUPS]))
    ins, outs = [False] * len(graph.given), [False] * len(graph.returned)
    if not npu_transposes:
        graph, ins, outs = strip_border_transposes(graph)
    return Lowered(graph.verify(), tuple(ins), tuple(outs), naive)


def lower_cluster(cluster: Cluster) -> Graph:
    """The LiteRT graph of one cluster alone, its activations as inputs."""
    build = Builder(cluster.node.name)
    inputs: dict[str, Tensor] = {}

    def lookup(value: Value) -> Tensor:
        if value.name not in inputs:
            inputs[value.name] = build.input(value.name, value.shape, value.dtype, value.quant)
        return inputs[value.name]

    tensors: dict[str, Tensor] = {}
    append_cluster(build, Lowering(build, lookup), cluster, tensors)
    results = [tensors[value.name] for part in cluster.parts for value in part.outputs]
    return build.graph(list(dict.fromkeys(results or tensors.values())))


class _Converter:
    def __init__(self, program: ExportedProgram, converter: str, target: Target | None):
        self.program = program
        self.clusters, rejected = find_clusters(program, converter, target, is_partition=True)
        if rejected:
            first = rejected[0]
            fail(
                "ON304",
                first.node.name,
                f"{first.op} cannot be lowered: {first.reject.reason}",
                first.reject.hint,
            )
        self.build = Builder("neutron")
        self.tensors: dict[str, Tensor] = {}  # by the name of the node that holds the int8 value

    def convert(self) -> Graph:
        """Inputs, then every cluster in order, then outputs."""
        users = self._user_inputs()
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in users:
                self._input(node)
        states = self._states()
        lowering = Lowering(self.build, self._lookup)
        for cluster in self.clusters:
            append_cluster(self.build, lowering, cluster, self.tensors)
        outputs: list[Tensor] = []
        written = self.program.graph_signature.buffers_to_mutate
        results = results_of(self.program)
        for node, target in zip(results, written.values(), strict=False):  # they come first
            self.build.remember(states[target], self.tensors[node.name])
        for node in results[len(written) :]:
            tensor = self._output(node)
            # Each output is memory of its own: an input given back, or what is there already, is copied.
            taken = tensor in outputs or tensor in self.build.inputs
            outputs.append(self._copy(tensor) if taken else tensor)
        return self.build.graph(outputs)

    def _states(self) -> dict[str, Tensor]:
        """The buffers that the program writes to, as they are at the start of a run."""
        signature, states = self.program.graph_signature, {}
        stored = {**self.program.state_dict, **self.program.constants}
        written = dict(zip(signature.buffers_to_mutate.values(), results_of(self.program), strict=False))
        for node in self.program.graph.find_nodes(op="placeholder"):
            target = signature.inputs_to_buffers.get(node.name)
            if target is None or target not in signature.buffers_to_mutate.values():
                continue
            initial = np.array(stored[target].detach().cpu().numpy(), order="C")  # a number keeps its rank
            value, quant = node, None
            while initial.dtype == np.int8 and quant is None:
                quant = self._input_quant(value)
                if quant is None and op_name(value) == QUANTIZE_TENSOR:
                    quant = per_tensor_quant(value)
                elif quant is None:  # what is only handed on has the parameters that it is written with
                    value = written[signature.inputs_to_buffers[value.name]]
            states[target] = self.build.state(target, initial, quant)
            self.tensors[node.name] = states[target]
        return states

    def _user_inputs(self) -> set[str]:
        specs = self.program.graph_signature.input_specs
        return {s.arg.name for s in specs if s.kind is InputKind.USER_INPUT and hasattr(s.arg, "name")}

    def _lookup(self, value: Value) -> Tensor:
        return self.tensors[value.name]

    def _input(self, node: Node) -> None:
        """An input arrives in the memory order of its tensor; operators see its logical dimensions."""
        order, shape, dtype = _memory(node)
        physical = self.build.input(node.name, [shape[d] for d in order], dtype, self._input_quant(node))
        self.tensors[node.name] = self.build.transpose(physical, [order.index(d) for d in range(len(shape))])

    def _input_quant(self, node: Node) -> Quant | None:
        quants = {per_tensor_quant(u) for u in node.users if op_name(u) == DEQUANTIZE_TENSOR}
        if len(quants) > 1:
            fail("ON304", node.name, "is read with two sets of quantization parameters")
        return quants.pop() if quants else None

    def _output(self, node: Node) -> Tensor:
        """An output leaves in the memory order ExecuTorch expects of it."""
        tensor = self._float_output(node) if op_name(node) in DEQUANTIZE else self.tensors[node.name]
        order, _, _ = _memory(node)
        return self.build.transpose(tensor, order)

    def _copy(self, tensor: Tensor) -> Tensor:
        """A reshape to the same shape; the optimizer leaves it where two ends of the graph would meet."""
        shape = self.build.ints(tensor.shape, f"{tensor.name}_shape")
        return self.build.op(
            Builtin.RESHAPE,
            [tensor, shape],
            tensor.shape,
            tensor.quant,
            dtype=tensor.dtype,
            options={"newShape": tensor.shape},
        )

    def _float_output(self, node: Node) -> Tensor:
        return self.build.dequantize(self.tensors[bind_args(node)["input"].name])


def append_cluster(build: Builder, lowering: Lowering, cluster: Cluster, tensors: dict[str, Tensor]) -> None:
    """Append what a cluster computes; `tensors` has the int8 values by the names of their nodes."""
    if not cluster.is_island:
        (part,) = cluster.parts
        with build.origin(*(n.name for n in part.body or (part.node,))):
            _keep(part, _result(build, lowering, part), tensors)
        return
    inside: dict[str, Tensor] = {}
    at = FloatLowering(lowering, inside)
    clamped = any(part.spec.real is not None and part.spec.real.unbounded for part in cluster.parts)
    for part in cluster.parts:
        assert part.spec.real is not None, f"{part.node} cannot stand in an island"
        with build.origin(part.node.name):
            inside[part.last.name] = tensors[part.last.name] = part.spec.real.body(at, part.call)
            if part.outputs:
                assert part.call.out.quant is not None
                result = quantized(build, inside[part.last.name], part.call.out.quant, clamped)
                _keep(part, result, tensors)


def _keep(part: Part, result: Tensor, tensors: dict[str, Tensor]) -> None:
    expected = part.call.out
    if result.shape != expected.shape or result.quant != expected.quant:
        fail("ON301", part.node.name, f"lowered to {result!r}, expected {expected} {expected.quant}")
    tensors.update((node.name, result) for node in part.outputs or part.body[-1:])


def _result(build: Builder, lowering: Lowering, part: Part) -> Tensor:
    """What an operator computes; requantized where LiteRT fixes the parameters and a quantizer did not."""
    intent, call = part.spec.quantize, part.call
    if call.out.quant is None and call.out.dtype == "float32":  # a state, moved in float
        moved = replace(call, out=replace(call.out, quant=ANY))
        return part.spec.lower(lowering.on(RealBuilder(build)), moved)
    if not isinstance(intent, FixedOutput) or call.out.quant is None:
        return part.spec.lower(lowering, call)
    fixed = Quant.per_tensor(intent.scale, intent.zero_point)
    result = part.spec.lower(lowering, replace(call, out=replace(call.out, quant=fixed)))
    return build.requantize(result, call.out.quant)


def _memory(node: Node) -> tuple[list[int], tuple[int, ...], str]:
    """The dimensions of a tensor from outermost to innermost in memory, its shape and its type."""
    tensor = tensor_of(node)
    assert tensor is not None, f"{node.name} is not a tensor"
    return list(tensor.dim_order()), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def results_of(program: ExportedProgram) -> list[Any]:
    """What a program returns: nodes, or plain values among them."""
    values = program.graph.output_node().args[0]
    return list(values) if isinstance(values, list | tuple) else [values]
