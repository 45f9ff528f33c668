"""A state that is an input and an output of one shape stays in float, through the NPU, and does not drift."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model, quantize_model
from tests.programs import assert_runs_exactly

SIZE = 16


class Lstm(nn.Module):
    """One step of a cell, its two states in one tensor, as voice detectors have them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = nn.LSTMCell(SIZE, SIZE), nn.Linear(SIZE, 4)
        with torch.no_grad():
            self.cell.bias_ih[SIZE : 2 * SIZE] += 4.0  # it forgets slowly

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h, c = self.cell(x, (state[0], state[1]))
        return self.head(h), torch.stack([h, c])

    state = (2, 1, SIZE)


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.cell, self.head = nn.GRUCell(SIZE, SIZE), nn.Linear(SIZE, 4)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.cell(x, state)
        return self.head(h), h

    state = (1, SIZE)


class Average(nn.Module):
    """A moving average: the simplest state there is."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = state * 0.99 + self.layer(x) * 0.01
        return torch.relu(mean), mean

    state = (1, SIZE)


def stream(model, steps: int, state: torch.Tensor) -> list[torch.Tensor]:
    generator, found = torch.Generator().manual_seed(5), []
    with torch.no_grad():
        for _ in range(steps):
            output, state = model(torch.randn(1, SIZE, generator=generator), state)
            found.append(torch.cat([output.reshape(-1), state.reshape(-1)]))
    return found


def samples(module: nn.Module, count: int = 12) -> list[tuple[torch.Tensor, ...]]:
    generator, state, found = torch.Generator().manual_seed(9), torch.zeros(module.state), []
    with torch.no_grad():
        for _ in range(4 * count):
            x = torch.randn(1, SIZE, generator=generator)
            found.append((x, state))
            state = module(x, state)[1]
    return found[::4]


@pytest.mark.parametrize("kind", [Lstm, Gru, Average])
def test_a_state_does_not_drift(kind):
    module = kind().eval()
    given = samples(module)
    quantized = quantize_model(module, given)
    exact, found = (stream(m, 300, torch.zeros(module.state)) for m in (module, quantized))
    late = slice(200, 300)
    signal = sum(float(a.square().sum()) for a in exact[late])
    noise = sum(float((a - b).square().sum()) for a, b in zip(exact[late], found[late], strict=True))
    assert 10 * math.log10(signal / noise) > 20


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(x)


def test_a_model_that_gives_what_it_takes_has_no_state():
    """A residual network maps an input to an output of its shape, and nothing is fed back."""
    program = compile_model(Residual().eval(), (torch.randn(1, SIZE),), calibration=[(torch.randn(1, SIZE),)])
    (partition,) = program.partitions
    assert {t.dtype for t in (*partition.lowered.graph.inputs, *partition.lowered.graph.outputs)} == {"int8"}


@pytest.mark.parametrize("kind", [Lstm, Gru, Average])
@pytest.mark.parametrize("mode", ["performance", "size"])
def test_the_npu_takes_it_in_float(kind, mode):
    module = kind().eval()
    given = samples(module)
    options = CompileOptions(optimise=mode)
    # It is verified against the quantized model, which rounds where the program rounds.
    program = compile_model(module, given[0], calibration=given, options=options)
    assert len(program.partitions) == 1
    assert not {"aten.mul.Tensor", "aten.add.Tensor"} & {r.op for r in program.rejected}
    assert "float32" in {t.dtype for t in program.partitions[0].lowered.graph.inputs}
    assert_runs_exactly(program, lambda seed: given[seed % len(given)], len(given))
