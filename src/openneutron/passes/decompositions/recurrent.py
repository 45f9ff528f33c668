"""Recurrent layers, unrolled: Neutron programs are static, so the number of steps is known."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from openneutron.fx import bind_args, op_name
from openneutron.passes.graph import fake_mode, trace_on

Tensor = torch.Tensor
# (input projection of a step, state, recurrent weight and bias) -> new state
Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor | None], tuple[Tensor, ...]]


def _gates(x: Tensor, count: int) -> list[Tensor]:
    size = x.shape[-1] // count
    return [torch.ops.aten.slice.Tensor(x, 1, i * size, (i + 1) * size) for i in range(count)]


def _gru_cell(
    projected: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
    (hidden,) = state
    input_reset, input_update, input_new = _gates(projected, 3)
    hidden_reset, hidden_update, hidden_new = _gates(F.linear(hidden, weight, bias), 3)
    reset = torch.sigmoid(input_reset + hidden_reset)
    update = torch.sigmoid(input_update + hidden_update)
    new = torch.tanh(input_new + reset * hidden_new)
    return (new + update * (hidden - new),)


def _lstm_cell(
    projected: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
    hidden, cell = state
    input_gate, forget_gate, candidate, output_gate = _gates(projected + F.linear(hidden, weight, bias), 4)
    cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(candidate)
    return (torch.sigmoid(output_gate) * torch.tanh(cell), cell)


def _simple_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(
        projected: Tensor, state: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, ...]:
        return (activation(projected + F.linear(state[0], weight, bias)),)

    return cell


class _Unrolling:
    """Writes the steps of a layer into a graph; what every step computes is traced once, then copied."""

    def __init__(self, node: Node):
        self.graph = Graph()
        self._given: dict[Node, Node] = {}
        for source in node.all_input_nodes:
            self._given[source] = self.graph.placeholder(source.name)
            self._given[source].meta["val"] = source.meta["val"]
        self.arguments: dict[str, Any] = map_arg(bind_args(node), self._given.__getitem__)
        self._mode = fake_mode(node.graph)
        self._traced: dict[Hashable, Graph] = {}

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """What a function of tensors gives, as a node or several; where one is called again, as before."""
        nodes = [n for n in given if isinstance(n, Node)]
        kinds = tuple(_kind(n) if isinstance(n, Node) else n for n in given)
        traced = self._traced.get((function, kinds))
        if traced is None:

            def on_tensors(*tensors: Tensor) -> Any:
                values = iter(tensors)
                return function(*(next(values) if isinstance(g, Node) else g for g in given))

            traced = trace_on(on_tensors, [_value(n) for n in nodes]).graph
            self._traced[function, kinds] = traced
        return self._copy(traced, nodes)

    def _copy(self, traced: Graph, nodes: list[Node]) -> Any:
        env: dict[Node, Node] = dict(zip(traced.find_nodes(op="placeholder"), nodes, strict=True))
        for inner in traced.nodes:
            if inner.op == "call_function":
                args, kwargs = map_arg((inner.args, inner.kwargs), env.__getitem__)
                env[inner] = self.add(inner.target, args, kwargs, inner.meta["val"])
        return map_arg(traced.output_node().args[0], env.__getitem__)

    def add(self, target: Any, args: Any, kwargs: Any, value: Any) -> Node:
        """One call, with the name that tracing would give it."""
        name = self.graph._target_to_str(target._schema.name.split("::")[-1])
        made = self.graph.create_node("call_function", target, args, kwargs, name)
        made.meta["val"] = value
        return made

    def join(self, parts: Sequence[Node], dim: int) -> Node:
        """Tensors side by side."""
        with self._mode, torch.no_grad():
            value = torch.cat([n.meta["val"] for n in parts], dim)
        return self.add(torch.ops.aten.cat.default, (list(parts), dim) if dim else (list(parts),), {}, value)

    def layer(
        self,
        cell: Cell,
        x: Node,
        state: tuple[Node, ...],
        weights: list[Node],
        has_biases: bool,
        backwards: bool,
    ) -> tuple[list[Node], tuple[Node, ...]]:
        """One layer in one direction over x (time, batch, features): outputs by time, and the last state."""
        input_weight, recurrent_weight, *rest = weights
        input_bias, recurrent_bias = rest[:2] if has_biases else (None, None)
        projection = (
            rest[2:] if has_biases else rest
        )  # of an LSTM with proj_size: its hidden state is projected

        def step(
            projected: Tensor, weight: Tensor, bias: Tensor | None, *others: Tensor
        ) -> tuple[Tensor, ...]:
            count = len(others) - len(projection)
            state = cell(projected, others[:count], weight, bias)
            for weight in others[count:]:
                state = (F.linear(state[0], weight), *state[1:])
            return state

        # One product for all steps: a single large matrix keeps the NPU busier than one small one per step.
        projected = self.call(F.linear, x, input_weight, input_bias)
        steps = range(_value(x).shape[0])
        with self._mode, torch.no_grad():
            part = _value(projected).select(0, 0)
        outputs: list[Node] = []
        for index in reversed(steps) if backwards else steps:
            here = self.add(torch.ops.aten.select.int, (projected, 0, index), {}, part)
            state = self.call(step, here, recurrent_weight, recurrent_bias, *state, *projection)
            outputs.append(state[0])
        return outputs[::-1] if backwards else outputs, state


def unroll(node: Node) -> GraphModule:
    """The graph of a recurrent layer, to be put in its place."""
    to = _Unrolling(node)
    args = to.arguments
    cell, hx, params = LAYERS[op_name(node)], args["hx"], args["params"]
    states = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    x, layers, directions = args["input"], args["num_layers"], 2 if args["bidirectional"] else 1
    per_layer = len(params) // (layers * directions)
    swap, rows = partial(torch.transpose, dim0=0, dim1=1), partial(torch.unsqueeze, dim=0)
    if args["batch_first"]:
        x = to.call(swap, x)
    final: list[tuple[Node, ...]] = []
    for layer in range(layers):
        sides = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = list(params[index * per_layer : (index + 1) * per_layer])
            state = tuple(to.call(torch.select, s, 0, index) for s in states)
            outputs, last = to.layer(cell, x, state, weights, args["has_biases"], backwards=direction == 1)
            sides.append(to.join([to.call(rows, o) for o in outputs], 0))
            final.append(last)
        x = to.join(sides, -1) if directions == 2 else sides[0]
        if args["train"] and args["dropout"] and layer + 1 < layers:
            x = to.call(F.dropout, x, args["dropout"])
    if args["batch_first"]:
        x = to.call(swap, x)
    ends = (to.join([to.call(rows, s[i]) for s in final], 0) for i in range(len(states)))
    to.graph.output((x, *ends))
    return GraphModule(torch.nn.Module(), to.graph)


def _value(node: Node) -> Tensor:
    return node.meta["val"]


def _kind(node: Node) -> Hashable:
    value = _value(node)
    return value.dtype, tuple(value.shape), value.stride()


def _cell(cell: Cell) -> Callable[..., Any]:
    """One step on its own: nn.GRUCell, nn.LSTMCell."""

    def decomposition(
        input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:  # fmt: skip
        states = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        result = cell(F.linear(input, w_ih, b_ih), states, w_hh, b_hh)
        return result if isinstance(hx, tuple | list) else result[0]

    return decomposition


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "aten.gru_cell.default": _cell(_gru_cell),
    "aten.lstm_cell.default": _cell(_lstm_cell),
}

LAYERS: dict[str, Cell] = {
    "aten.gru.input": _gru_cell,
    "aten.lstm.input": _lstm_cell,
    "aten.rnn_tanh.input": _simple_cell(torch.tanh),
    "aten.rnn_relu.input": _simple_cell(torch.relu),
}
