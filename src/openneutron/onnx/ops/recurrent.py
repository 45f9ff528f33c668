"""LSTM, GRU and RNN: torch's own layers where they compute the same, unrolled where they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from openneutron.onnx.spec import Call, Case, OnnxOp, Unsupported
from openneutron.onnx.values import Tensor

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}  # torch's gates among ONNX's
_DEFAULT = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
Function = Callable[[Tensor], Tensor]


def _recurrent(call: Call) -> Any:
    kind = call.node.op
    x = call.tensor(0)
    turned = bool(call.attr("layout", 0))
    x = x.transpose(0, 1) if turned else x
    direction = call.choice("direction", ("forward", "reverse", "bidirectional"), "forward")
    count = 2 if direction == "bidirectional" else 1
    hidden = int(call.attr("hidden_size", call.shape(2)[-1]))
    start = [_state(call, i, count, int(x.shape[1]), hidden, x.dtype, turned) for i in _states(kind)]
    if _is_plain(call, kind, count):
        y, *last = _as_layer(call, kind, x, start, direction, count)
    else:
        y, *last = _unrolled(call, kind, x, start, direction, count, hidden)
    if turned:
        y, last = y.permute(2, 0, 1, 3), [s.transpose(0, 1) for s in last]
    return (y, *last)[: len(call.node.outputs)]


def _states(kind: str) -> tuple[int, ...]:
    return (5, 6) if kind == "LSTM" else (5,)


def _state(
    call: Call, index: int, count: int, batch: int, hidden: int, dtype: torch.dtype, turned: bool
) -> Tensor:
    if not call.has(index):
        return torch.zeros(count, batch, hidden, dtype=dtype)
    state = call.tensor(index)
    return state.transpose(0, 1) if turned else state


def _is_plain(call: Call, kind: str, count: int) -> bool:
    """Whether torch's layer computes exactly this."""
    activations = tuple(call.attr("activations", _DEFAULT[kind] * count))
    plain = activations == _DEFAULT[kind] * count
    if kind == "RNN":
        plain = activations in (("Tanh",) * count, ("Relu",) * count)
    constant = all(call.is_static(i) for i in (1, 2)) and (not call.has(3) or call.is_static(3))
    special = "clip" in call.node.attributes or call.attr("input_forget", 0) or call.has(7) or _lengths(call)
    if kind == "GRU" and not call.attr("linear_before_reset", 0):
        return False
    return bool(plain and constant and not special)


def _lengths(call: Call) -> list[int] | None:
    """The length of each sequence; None if all are whole."""
    if not call.has(4):
        return None
    lengths = call.ints(4, "sequence_lens")
    return None if set(lengths) == {call.shape(0)[1 if call.attr("layout", 0) else 0]} else lengths


def _weights(call: Call, kind: str, which: int) -> list[Tensor]:
    """Weights and biases of one direction with the gates in torch's order, as constants."""

    def reordered(index: int, first: int = 0) -> Tensor:
        whole = call.real_constant(index)[which]
        size = call.shape(2)[-1] * _GATES[kind]
        gates = whole[first : first + size].chunk(_GATES[kind])
        return torch.cat([gates[i] for i in _ORDER[kind]]).contiguous()

    size = call.shape(2)[-1] * _GATES[kind]
    parts = [("input", 1, 0), ("recurrent", 2, 0)]
    if call.has(3):
        parts += [("input_bias", 3, 0), ("recurrent_bias", 3, size)]
    return [
        call.constant(f"{label}_{which}", lambda index=index, first=first: reordered(index, first))  # type: ignore[misc]
        for label, index, first in parts
    ]


def _as_layer(
    call: Call, kind: str, x: Tensor, start: list[Tensor], direction: str, count: int
) -> tuple[Tensor, ...]:
    flat = [w for which in range(count) for w in _weights(call, kind, which)]
    x = x.flip(0) if direction == "reverse" else x
    common = (flat, call.has(3), 1, 0.0, False, count == 2, False)
    if kind == "LSTM":
        y, *last = torch.lstm(x, start, *common)
    elif kind == "GRU":
        y, *last = torch.gru(x, start[0], *common)
    else:
        relu = call.attr("activations", ["Tanh"])[0] == "Relu"
        y, *last = (torch.rnn_relu if relu else torch.rnn_tanh)(x, start[0], *common)
    y = y.flip(0) if direction == "reverse" else y
    steps, batch = int(x.shape[0]), int(x.shape[1])
    y = y.reshape(steps, batch, count, -1)
    return (y.transpose(1, 2) if count > 1 else y.reshape(steps, 1, batch, -1), *last)


# --------------------------------------------------------------------------------------------------
# Step by step


def _function(name: str, alpha: Any, beta: Any) -> Function:
    """An activation by its name, with ONNX's defaults for its parameters."""
    defaults = {
        "Affine": (1.0, 0.0),
        "LeakyRelu": (0.01, 0.0),
        "ThresholdedRelu": (1.0, 0.0),
        "ScaledTanh": (1.0, 1.0),
        "HardSigmoid": (0.2, 0.5),
        "Elu": (1.0, 0.0),
    }
    first, second = defaults.get(name, (0.0, 0.0))
    a, b = float(first if alpha is None else alpha), float(second if beta is None else beta)
    functions: dict[str, Function] = {
        "Sigmoid": torch.sigmoid,
        "Tanh": torch.tanh,
        "Relu": torch.relu,
        "Affine": lambda x: x * a + b,
        "LeakyRelu": lambda x: F.leaky_relu(x, a),
        "ThresholdedRelu": lambda x: F.threshold(x, a, 0.0),
        "ScaledTanh": lambda x: a * torch.tanh(b * x),
        "HardSigmoid": lambda x: torch.clamp(a * x + b, 0, 1),
        "Elu": lambda x: F.elu(x, a),
        "Softsign": F.softsign,
        "Softplus": F.softplus,
    }
    if name not in functions:
        raise Unsupported(f"its activation {name} is not read", f"Read: {', '.join(functions)}.")
    return functions[name]


def _unrolled(
    call: Call, kind: str, x: Tensor, start: list[Tensor], direction: str, count: int, hidden: int
) -> tuple[Tensor, ...]:
    names = list(call.attr("activations", _DEFAULT[kind] * count))
    alphas, betas = list(call.attr("activation_alpha", [])), list(call.attr("activation_beta", []))
    functions = [
        _function(n, alphas[i] if i < len(alphas) else None, betas[i] if i < len(betas) else None)
        for i, n in enumerate(names)
    ]
    each = len(_DEFAULT[kind])
    weights, recurrent = call.tensor(1), call.tensor(2)
    bias = call.optional(3)
    lengths = _lengths(call)
    ys, lasts = [], []
    for which in range(count):
        backwards = direction == "reverse" or which == 1
        cell = _Cell(call, kind, functions[which * each : (which + 1) * each], hidden, which)
        cell.weights(weights[which], recurrent[which], None if bias is None else bias[which])
        y, last = cell.run(x, [s[which] for s in start], backwards, lengths)
        ys.append(y)
        lasts.append(last)
    states = [torch.stack(parts) for parts in zip(*lasts, strict=True)]
    return (torch.stack(ys, 1), *states)


class _Cell:
    """One direction of a layer, one step at a time."""

    def __init__(self, call: Call, kind: str, functions: list[Function], hidden: int, which: int):
        self.call, self.kind, self.functions, self.hidden = call, kind, functions, hidden
        clip = call.attr("clip")
        self.clip: Function = (lambda v: v) if clip is None else (lambda v: torch.clamp(v, -clip, clip))
        self.peephole = call.tensor(7)[which] if call.has(7) else None

    def weights(self, weight: Tensor, recurrent: Tensor, bias: Tensor | None) -> None:
        self.weight, self.recurrent = weight, recurrent
        half = _GATES[self.kind] * self.hidden
        self.input_bias = None if bias is None else bias[:half]
        self.recurrent_bias = None if bias is None else bias[half:]

    def run(
        self, x: Tensor, state: list[Tensor], backwards: bool, lengths: list[int] | None
    ) -> tuple[Tensor, list[Tensor]]:
        steps = int(x.shape[0])
        rows: list[Tensor] = [torch.zeros(0)] * steps
        for i in range(steps):
            t = steps - 1 - i if backwards else i
            new = self.step(F.linear(x[t], self.weight, self.input_bias), state)
            y = new[0]
            if lengths is not None:  # a sequence that is over keeps its state and gives zeros
                on = torch.tensor([t < n for n in lengths]).reshape(-1, 1)
                new = [torch.where(on, n, s) for n, s in zip(new, state, strict=True)]
                y = torch.where(on, y, torch.zeros_like(y))
            state, rows[t] = new, y
        return torch.stack(rows), state

    def step(self, projected: Tensor, state: list[Tensor]) -> list[Tensor]:
        size, h = self.hidden, state[0]
        if self.kind == "RNN":
            return [
                self.functions[0](self.clip(projected + F.linear(h, self.recurrent, self.recurrent_bias)))
            ]
        if self.kind == "GRU":
            f, g = self.functions
            pz, pr, ph = projected.split(size, 1)
            if self.call.attr("linear_before_reset", 0):
                rz, rr, rh = F.linear(h, self.recurrent, self.recurrent_bias).split(size, 1)
                z, r = f(self.clip(pz + rz)), f(self.clip(pr + rr))
                new = g(self.clip(ph + r * rh))
            else:
                part, last = self.recurrent[: 2 * size], self.recurrent[2 * size :]
                bias = self.recurrent_bias
                rz, rr = F.linear(h, part, None if bias is None else bias[: 2 * size]).split(size, 1)
                z, r = f(self.clip(pz + rz)), f(self.clip(pr + rr))
                new = g(self.clip(ph + F.linear(r * h, last, None if bias is None else bias[2 * size :])))
            return [(1 - z) * new + z * h]
        f, g, last_function = self.functions
        c = state[1]
        i, o, forget, candidate = (projected + F.linear(h, self.recurrent, self.recurrent_bias)).split(
            size, 1
        )
        if self.peephole is not None:
            pi, po, pf = self.peephole.split(size)
            i, forget = i + pi * c, forget + pf * c
        i = f(self.clip(i))
        forget = 1 - i if self.call.attr("input_forget", 0) else f(self.clip(forget))
        c = forget * c + i * g(self.clip(candidate))
        if self.peephole is not None:
            o = o + po * c
        return [f(self.clip(o)) * last_function(c), c]


def _case(kind: str, label: str, count: int, **attributes: Any) -> Case:
    gates = _GATES[kind]
    shapes = ((5, 2, 3), (count, gates * 4, 3), (count, gates * 4, 4), (count, 2 * gates * 4))
    return Case(
        label, shapes, {"hidden_size": 4, **attributes}, (1, 2, 3), outputs=3 if kind == "LSTM" else 2
    )


def _cases(kind: str, **attributes: Any) -> tuple[Case, ...]:
    return (
        _case(kind, "forward", 1, **attributes),
        _case(kind, "reverse", 1, direction="reverse", **attributes),
        _case(kind, "bidirectional", 2, direction="bidirectional", **attributes),
    )


OPERATORS: tuple[OnnxOp, ...] = (
    OnnxOp("LSTM", 22, _recurrent, oldest=7, cases=_cases("LSTM")),
    OnnxOp("GRU", 22, _recurrent, oldest=7, cases=_cases("GRU", linear_before_reset=1) + _cases("GRU")),
    OnnxOp("RNN", 22, _recurrent, oldest=7, cases=_cases("RNN")),
)
