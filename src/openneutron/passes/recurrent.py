"""Recurrent layers, unrolled: Neutron programs are static, so the number of steps is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

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


def _run_layer(
    cell: Cell, x: Tensor, state: tuple[Tensor, ...], weights: list[Tensor], has_biases: bool, backwards: bool
) -> Any:
    """One layer in one direction over x (time, batch, features): the outputs by time, and the last state."""
    input_weight, recurrent_weight, *rest = weights
    input_bias, recurrent_bias = rest[:2] if has_biases else (None, None)
    projection = rest[2:] if has_biases else rest  # of an LSTM with proj_size: its hidden state is projected
    # One product for all steps: a single large matrix keeps the NPU busier than one small one per step.
    projected = F.linear(x, input_weight, input_bias)
    outputs: list[Tensor] = []
    for step in reversed(range(x.shape[0])) if backwards else range(x.shape[0]):
        state = cell(projected.select(0, step), state, recurrent_weight, recurrent_bias)
        for weight in projection:
            state = (F.linear(state[0], weight), *state[1:])
        outputs.append(state[0])
    return outputs[::-1] if backwards else outputs, state


def _unroll(
    cell: Cell, x: Tensor, states: tuple[Tensor, ...], params: list[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    directions = 2 if bidirectional else 1
    per_layer = len(params) // (num_layers * directions)
    if batch_first:
        x = x.transpose(0, 1)
    final: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        sides = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = list(params[index * per_layer : (index + 1) * per_layer])
            state = tuple(s.select(0, index) for s in states)
            outputs, last = _run_layer(cell, x, state, weights, has_biases, backwards=direction == 1)
            sides.append(torch.cat([o.unsqueeze(0) for o in outputs], 0))
            final.append(last)
        x = torch.cat(sides, -1) if bidirectional else sides[0]
        if train and dropout and layer + 1 < num_layers:
            x = F.dropout(x, dropout)
    if batch_first:
        x = x.transpose(0, 1)
    return (x, *(torch.cat([s[i].unsqueeze(0) for s in final], 0) for i in range(len(states))))


def _recurrent(cell: Cell) -> Callable[..., Any]:
    def decomposition(
        input: Tensor, hx: Any, params: list[Tensor], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        states = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        return _unroll(
            cell, input, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )

    return decomposition


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
    "aten.gru.input": _recurrent(_gru_cell),
    "aten.lstm.input": _recurrent(_lstm_cell),
    "aten.rnn_tanh.input": _recurrent(_simple_cell(torch.tanh)),
    "aten.rnn_relu.input": _recurrent(_simple_cell(torch.relu)),
}
