"""Buffers that a program writes to: int8 where all who touch them quantize, and with their initial values.

A quantized model reads a buffer through a quantize step and writes what a dequantize step made. Where all
have the same parameters, the buffer itself can be int8, and both steps go: from run to run no value changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from openneutron.fx import op_name
from openneutron.partition.constants import DEQUANTIZE_TENSOR, QUANTIZE_TENSOR
from openneutron.passes.functional import is_functional
from openneutron.quantize.stateful import written_buffers


def keep_states_in_int8(program: ExportedProgram) -> None:
    """Make buffers int8 whose readers all quantize them as what is written was quantized."""
    signature, graph = program.graph_signature, program.graph
    output = graph.output_node()
    names = {target: name for name, target in signature.inputs_to_buffers.items()}
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    for at, spec in enumerate(signature.output_specs):
        values = list(output.args[0])
        if spec.kind is not OutputKind.BUFFER_MUTATION or not isinstance(values[at], Node):
            continue
        target = str(spec.target)
        state, new = nodes[names[target]], values[at]
        parameters = _parameters(state, new)
        if parameters is None:
            continue
        values[at] = new.args[0]
        output.args = (tuple(values),)  # at once: it may be what another state is read as
        stored = program.state_dict if target in program.state_dict else program.constants
        stored[target] = torch.ops.quantized_decomposed.quantize_per_tensor(stored[target], *parameters)
        fake = state.meta["val"]
        state.meta = {**state.meta, "val": fake.to(torch.int8)}
        for reader in list(state.users):
            reader.replace_all_uses_with(state)
            graph.erase_node(reader)
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if isinstance(value, Node):
            spec.arg.name = value.name


def with_copied_states(program: ExportedProgram) -> ExportedProgram:
    """The program with a copy of what one buffer hands on to another: ExecuTorch writes them one by one."""
    if not written_buffers(program):
        return program
    functional = program if is_functional(program) else program.run_decompositions({})
    signature, graph = functional.graph_signature, functional.graph
    output = graph.output_node()
    values = list(output.args[0])
    for at, spec in enumerate(signature.output_specs):
        value = values[at]
        if spec.kind is OutputKind.BUFFER_MUTATION and isinstance(value, Node) and value.op == "placeholder":
            with graph.inserting_before(output):
                values[at] = graph.call_function(torch.ops.aten.clone.default, (value,))
            values[at].meta = dict(value.meta)
            spec.arg.name = values[at].name
    output.args = (tuple(values),)
    return functional


def start_from_initial_values(programs: Iterable[ExportedProgram]) -> list[Any]:
    """The passes with which ExecuTorch keeps the initial values of buffers that are written."""
    names = {
        name
        for program in programs
        for name, target in program.graph_signature.inputs_to_buffers.items()
        if target in program.graph_signature.buffers_to_mutate.values()
    }
    return [InitializedMutableBufferPass(sorted(names))] if names else []


def _parameters(state: Node, new: Node) -> tuple[object, ...] | None:
    """Scale, zero point, range and type with which a buffer is read and written, if they are the same."""
    if op_name(new) != DEQUANTIZE_TENSOR or not state.users or state.meta["val"].dtype != torch.float32:
        return None
    parameters = tuple(new.args[1:])
    steps = [user for user in state.users if op_name(user) == QUANTIZE_TENSOR]
    same = all(tuple(step.args[1:]) == parameters for step in steps)
    return parameters if same and len(steps) == len(state.users) else None
