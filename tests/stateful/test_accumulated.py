"""What adds up over a long time in small steps is float in the delegate; what is only chosen stays int8."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from openneutron.fx import op_name
from openneutron.litert.file import read
from openneutron.litert.ir import Tensor
from openneutron.litert.reference import Reference
from openneutron.pipeline import compile_model, convert_model
from openneutron.quantize.sequences import outputs_over
from openneutron.run.program import load_program
from tests.stateful.networks import CHANNELS, Filter, Held, frames


class Slow(nn.Module):
    """A mean over a hundred frames of what a layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(CHANNELS, CHANNELS, 1)
        self.register_buffer("mean", torch.zeros(1, CHANNELS, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.99).add_(self.layer(x), alpha=0.01)
        return torch.relu(self.mean) - self.mean


class Gru(nn.Module):
    """A cell that forgets slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(CHANNELS, CHANNELS)
        with torch.no_grad():
            self.cell.bias_ih[CHANNELS : 2 * CHANNELS] += 3.0
        self.register_buffer("h", torch.zeros(1, CHANNELS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.copy_(self.cell(x.flatten(1), self.h))
        return torch.tanh(self.h * 2)


# With int8 states they reach 25, 23 and 7 dB at most.
@pytest.mark.parametrize(("kind", "states"), [(Slow, 1), (Gru, 1), (Filter, 2)])
def test_it_is_exact_enough_after_a_thousand_steps(kind: type[nn.Module], states: int):
    torch.manual_seed(1)
    module = nn.Sequential(kind(), nn.Flatten(1), nn.Linear(CHANNELS, 3)).eval()
    sequences = [frames(200, seed) for seed in range(5)]
    compiled = compile_model(module, sequences[0][0], calibration=sequences)
    assert not compiled.rejected and len(compiled.partitions) == 1
    assert [size for _, size in compiled.states] == [4 * CHANNELS] * states
    assert len([n for n in compiled.edge.graph.nodes if "quantize" in op_name(n)]) == 2
    given = frames(1200, 99)
    program = load_program(compiled.pte)
    signal = noise = 0.0
    for x, (wanted,) in zip(given, outputs_over(module, given), strict=True):
        found = torch.from_numpy(program.run(x)[0])
        signal, noise = signal + float(wanted.square().sum()), noise + float((found - wanted).square().sum())
    assert 10 * math.log10(signal / noise) > 29


def test_what_is_only_chosen_is_int8():
    module = nn.Sequential(Held(), nn.Flatten(1), nn.Linear(CHANNELS, 3)).eval()
    compiled = compile_model(module, frames(1, 0)[0], calibration=[frames(32, 0)])
    assert [size for _, size in compiled.states] == [CHANNELS]


def test_a_litert_file_has_it_in_float():
    torch.manual_seed(0)
    module = nn.Sequential(Slow(), nn.Flatten(1), nn.Linear(CHANNELS, 3)).eval()
    raw = convert_model(module, frames(1, 0)[0], calibration=[frames(40, 0)])
    assert [(s.name, str(s.initial.dtype)) for s in read(raw).states] == [("0.mean", "float32")]
    (port,), (result,) = read(raw).given, read(raw).returned
    reference, given = Reference(raw), frames(30, 3)
    for (x,), (wanted,) in zip(given, outputs_over(module, given), strict=True):
        (found,) = reference.run([_int8(x, port)])
        np.testing.assert_allclose(_float(found, result), wanted.numpy(), atol=0.1)


def _int8(x: torch.Tensor, port: Tensor) -> np.ndarray:
    assert port.quant is not None
    return np.clip(np.round(x.numpy() / port.quant.scale[0]) + port.quant.zero_point[0], -128, 127).astype(
        np.int8
    )


def _float(x: np.ndarray, port: Tensor) -> np.ndarray:
    assert port.quant is not None
    return (x.astype(np.float32) - port.quant.zero_point[0]) * port.quant.scale[0]
