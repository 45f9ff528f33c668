"""What a graph remembers, as a file has it: variables, read at the start of a run and assigned at its end.

In memory a state is an input and an output (`Graph.states`). A file has handles (VAR_HANDLE), READ_VARIABLE,
ASSIGN_VARIABLE, and CALL_ONCE of a second subgraph that assigns the initial values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from openneutron.diagnostics import fail
from openneutron.litert.ir import RESOURCE, Builtin, Graph, Op, State, Tensor, constant

OF_VARIABLES = (Builtin.CALL_ONCE, Builtin.VAR_HANDLE, Builtin.READ_VARIABLE, Builtin.ASSIGN_VARIABLE)


def as_variables(graph: Graph) -> list[Graph]:
    """The subgraphs of a file: the graph with its states as variables, and one that sets these at first."""
    if not graph.states:
        return [graph]
    taken = {t.name for t in graph.tensors()}

    def handle(state: State) -> Op:
        name = f"{state.name}_handle"
        while name in taken:
            name += "_"
        taken.add(name)
        return Op(Builtin.VAR_HANDLE, [], [Tensor(name, (), RESOURCE)],
                  {"container": "", "sharedName": state.name})  # fmt: skip

    states = graph.state_tensors()
    first, main = ([handle(state) for state in graph.states] for _ in range(2))
    reads = [Op(Builtin.READ_VARIABLE, [h.output], [t]) for h, (_, t, _) in zip(main, states, strict=True)]
    writes = [
        Op(Builtin.ASSIGN_VARIABLE, [h.output, new], []) for h, (_, _, new) in zip(main, states, strict=True)
    ]
    once = Op(Builtin.CALL_ONCE, [], [], {"initSubgraphIndex": 1})
    sets = [
        Op(Builtin.ASSIGN_VARIABLE, [h.output, constant(f"{s.name}_initial", s.initial, t.quant)], [])
        for h, (s, t, _) in zip(first, states, strict=True)
    ]
    body = Graph(graph.given, graph.returned, [once, *main, *reads, *graph.ops, *writes], graph.name)
    return [body, Graph([], [], [op for pair in zip(first, sets, strict=True) for op in pair], "initial")]


def from_variables(main: Graph, others: Sequence[Graph], where: str) -> Graph:
    """The graph with the variables of a file as its states; a variable that nothing sets starts from zero."""
    if others and not any(op.kind is Builtin.CALL_ONCE for op in main.ops):
        fail("ON303", where, f"the model has {1 + len(others)} subgraphs; control flow is not supported")
    if not any(op.kind in OF_VARIABLES for op in main.ops):
        return main
    initial = _initial_values(others, where)
    names: dict[Tensor, str] = {}
    first: dict[str, Tensor] = {}  # what a run reads before it assigns
    now: dict[str, Tensor] = {}
    instead: dict[Tensor, Tensor] = {}
    ops: list[Op] = []
    for op in main.ops:
        if op.kind is Builtin.VAR_HANDLE:
            names[op.output] = str(op.options.get("sharedName", "") or op.output.name)
        elif op.kind is Builtin.READ_VARIABLE:
            name = _name(names, op, where)
            if name in now:
                instead[op.output] = now[name]
            else:
                first[name] = now[name] = op.output
        elif op.kind is Builtin.ASSIGN_VARIABLE:
            value = op.operand(1)
            now[_name(names, op, where)] = instead.get(value, value)
        elif op.kind is not Builtin.CALL_ONCE:
            inputs = [t if t is None else instead.get(t, t) for t in op.inputs]
            ops.append(replace(op, inputs=inputs))
    outputs = [instead.get(t, t) for t in main.outputs]
    states = [State(name, _initial(initial.get(name), tensor, name, where)) for name, tensor in first.items()]
    for name, tensor in first.items():
        new = now[name]
        if (new.shape, new.dtype, new.quant) != (tensor.shape, tensor.dtype, tensor.quant):
            fail("ON303", where, f"variable {name} is read as {tensor!r} and assigned {new!r}",
                 "A variable must have one shape, one type and one quantization.")  # fmt: skip
    ends = [*main.inputs, *first.values()], [*outputs, *(now[name] for name in first)]
    return Graph(*ends, ops, main.name, tuple(states))


def _initial_values(others: Sequence[Graph], where: str) -> dict[str, np.ndarray]:
    names: dict[Tensor, str] = {}
    values: dict[str, np.ndarray] = {}
    for op in (op for graph in others for op in graph.ops):
        if op.kind is Builtin.VAR_HANDLE:
            names[op.output] = str(op.options.get("sharedName", "") or op.output.name)
        elif op.kind is Builtin.ASSIGN_VARIABLE and op.operand(1).is_const:
            values[_name(names, op, where)] = op.operand(1).array
        else:
            _not_constant(op, where)
    return values


def _not_constant(op: Op, where: str) -> NoReturn:
    fail("ON303", where, f"the initial value of a variable is computed ({op.kind.name})",
         "Export the model with constants as initial values.")  # fmt: skip


def _name(names: dict[Tensor, str], op: Op, where: str) -> str:
    if op.operand(0) not in names:
        fail("ON303", where, f"{op.kind.name} of a handle that is no VAR_HANDLE",
             "Variables that are passed in are not supported.")  # fmt: skip
    return names[op.operand(0)]


def _initial(value: np.ndarray | None, tensor: Tensor, name: str, where: str) -> np.ndarray:
    if value is None:
        zero = tensor.quant.zero_point[0] if tensor.quant is not None else 0
        return np.full(tensor.shape, zero, tensor.dtype)
    if str(value.dtype) != tensor.dtype or value.size != tensor.elements:
        start = f"{value.dtype}{list(value.shape)}"
        fail("ON303", where, f"variable {name} is {tensor!r}, and starts from {start}",
             "A variable must have one shape and one type.")  # fmt: skip
    return value.reshape(tensor.shape)
