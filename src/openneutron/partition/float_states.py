"""States that are float in the NPU: what adds up over time, step by small step, is more than 8 bits hold.

The operators that make such a state anew of the old one read and give float tensors; so does what moves it.
Everything else that reads it quantizes what it reads, in the NPU too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from openneutron.fx import bind_args, op_name
from openneutron.ops import find
from openneutron.partition.constants import DEQUANTIZE


class FloatStates:
    """The states of a program that may be float in the NPU, and the nodes that have their values."""

    def __init__(
        self, program: ExportedProgram, is_float_activation: Callable[[Node], bool], is_partition: bool
    ):
        self.nodes: set[Node] = set()
        self._is_float_activation, self._is_partition = is_float_activation, is_partition
        signature = program.graph_signature
        results = program.graph.output_node().args[0]
        written = {
            spec.target: value
            for spec, value in zip(signature.output_specs, results, strict=True)
            if spec.kind is OutputKind.BUFFER_MUTATION
        }
        quantizes = any(op_name(node) in DEQUANTIZE for node in program.graph.nodes)
        # Each state with what it becomes, and where that was moved from.
        self._states: dict[Node, list[Node]] = {}
        inputs = program.graph.find_nodes(op="placeholder") if quantizes or is_partition else []
        for node in filter(is_float_activation, inputs):
            new = written.get(signature.inputs_to_buffers.get(node.name))
            if isinstance(new, Node):
                self._states[node] = [new]
                while self._moves_float(self._states[node][-1]):
                    self._states[node].append(self._states[node][-1].all_input_nodes[0])
            elif is_partition:  # ExecuTorch's, or another partition makes it
                self._follow(node)

    def hold(self, operators: Sequence[Node]) -> bool:
        """Whether operators that hand float values to one another make new states of old ones in float."""
        read = [s for n in operators for s in n.all_input_nodes if s not in operators]
        if self._is_partition and any(s in self.nodes for s in read):
            self.nodes.update(operators)
            return True
        old = [moved_from(s) for s in read if self._is_float_activation(s)]
        made = [values[-1] in operators for values in self._states.values()]
        functions = (source for n in operators if _is_function(n) for source in n.all_input_nodes)
        if not any(made) or not old or not all(state in self._states for state in old):
            return False
        if any(map(self._is_float_activation, functions)):
            return False
        self.nodes.update(operators)
        for (state, values), is_made in zip(self._states.items(), made, strict=True):
            if is_made or state in old:
                self.nodes.update(values)
                self._follow(state)
        return True

    def _follow(self, state: Node) -> None:
        """Note a state and what it is moved to."""
        self.nodes.add(state)
        left = [state]
        while left:
            new = {user for user in left.pop().users if self._moves_float(user)} - self.nodes
            self.nodes |= new
            left += new

    def _moves_float(self, node: Node) -> bool:
        return moves(node) and len(node.all_input_nodes) == 1 and self._is_float_activation(node)


def moved_from(node: Node) -> Node:
    """Where a value was moved from."""
    while moves(node):
        node = node.all_input_nodes[0]
    return node


def moves(node: Node) -> bool:
    """Whether an operator only lays values out anew."""
    spec = find(op_name(node)) if node.op == "call_function" else None
    return spec is not None and spec.moves_values


def _is_function(node: Node) -> bool:
    spec = find(op_name(node))
    real = spec.real_of(bind_args(node)) if spec is not None else None
    return real is not None and real.function
