"""Buffers that a program writes to: int8 where all who touch them quantize, and with their initial values.

A quantized model reads a buffer through a quantize step and writes what a dequantize step made. Where all
have the same parameters, the buffer itself can be int8, and both steps go: from run to run no value changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from openneutron.fx import op_name
from openneutron.partition.constants import DEQUANTIZE_TENSOR, QUANTIZE_TENSOR
from openneutron.passes.functional import is_functional
from openneutron.quantize.stateful import mark_written, rename_buffers, written_buffers


def with_shared_states(
    programs: Mapping[str, ExportedProgram], shared: Collection[str]
) -> dict[str, ExportedProgram]:
    """The methods, functional, with what they share as a state even where it is only read."""
    made = {}
    for name, program in programs.items():
        made[name] = program if is_functional(program) else program.run_decompositions({})
        mark_written(made[name], shared)
    return made


def is_int8_in_all(programs: Iterable[ExportedProgram], target: str) -> bool:
    """Whether all methods that have a state read and write it with the same parameters."""
    found = set()
    for program in programs:
        signature = program.graph_signature
        for spec, new in zip(signature.output_specs, program.graph.output_node().args[0], strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION and spec.target == target:
                placeholders = program.graph.find_nodes(op="placeholder")
                (state,) = (n for n in placeholders if signature.inputs_to_buffers.get(n.name) == target)
                found.add(_parameters(state, new))
    return len(found) == 1 and None not in found


def keep_states_in_int8(program: ExportedProgram, in_float: Collection[str] = ()) -> None:
    """Make buffers int8 whose readers all quantize them as what is written was quantized.

    Those that other methods have `in_float` stay so.
    """
    signature, graph = program.graph_signature, program.graph
    output = graph.output_node()
    names = {target: name for name, target in signature.inputs_to_buffers.items()}
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    taken: set[Node] = set()  # by states: torch takes two that become the same tensor for one
    for at, spec in enumerate(signature.output_specs):
        values = list(output.args[0])
        if spec.kind is not OutputKind.BUFFER_MUTATION or not isinstance(values[at], Node):
            continue
        target = str(spec.target)
        while op_name(values[at]) == "aten.clone.default" and values[at].args[0] not in values:
            values[at] = values[at].args[0]  # nothing is written over here
        state, new = nodes[names[target]], values[at]
        parameters = None if target in in_float else _parameters(state, new)
        if new is not state and parameters is not None:
            becomes = new.args[0]
            if op_name(becomes) == QUANTIZE_TENSOR and becomes.args[0] in nodes.values():
                becomes = becomes.args[0]  # another state, which is handed on
            parameters = None if becomes in taken else parameters
            taken.add(becomes)
        if parameters is None:
            output.args = (tuple(values),)
            continue
        values[at] = new if new is state else new.args[0]
        output.args = (tuple(values),)  # at once: it may be what another state is read as
        stored = program.state_dict if target in program.state_dict else program.constants
        stored[target] = torch.ops.quantized_decomposed.quantize_per_tensor(stored[target], *parameters)
        fake = state.meta["val"]
        state.meta = {**state.meta, "val": fake.to(torch.int8)}
        for reader in [user for user in state.users if user is not output]:
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
        is_other = isinstance(value, Node) and value.op == "placeholder"
        if (
            spec.kind is OutputKind.BUFFER_MUTATION
            and is_other
            and signature.inputs_to_buffers.get(value.name) != spec.target  # it stays as it is
        ):
            with graph.inserting_before(output):
                values[at] = graph.call_function(torch.ops.aten.clone.default, (value,))
            values[at].meta = dict(value.meta)
            spec.arg.name = values[at].name
    output.args = (tuple(values),)
    return functional


def name_states_apart(programs: Mapping[str, ExportedProgram], shared: Collection[str]) -> None:
    """Give each method's states names that no other method has: ExecuTorch takes one name for one state."""
    for method, program in programs.items() if len(programs) > 1 else ():
        own = set(program.graph_signature.buffers_to_mutate.values()) - set(shared)
        rename_buffers(program, {name: f"{method}:{name}" for name in own})


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
    if state.meta["val"].dtype != torch.float32:
        return None
    readers = [user for user in state.users if user.op != "output"]
    steps = {tuple(user.args[1:]) if op_name(user) == QUANTIZE_TENSOR else None for user in readers}
    if new is not state:
        steps.add(tuple(new.args[1:]) if op_name(new) == DEQUANTIZE_TENSOR else None)
        if len(readers) < len(state.users):  # it is handed on, in float
            return None
    return steps.pop() if len(steps) == 1 else None
