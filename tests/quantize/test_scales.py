"""Scales have no floor: weights and activations of any size are quantized alike.

What the arithmetic needs remains: the product of an input's and a weight's scale is the scale of the bias,
and both must be ordinary float32 numbers; a bias must fit 32 bits.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from openneutron.pipeline import compile_model, quantize_model
from openneutron.quantize.annotation.number_formats import FLOOR
from openneutron.quantize.annotation.observer import EFFECT, RangeObserver


class Net(nn.Module):
    def __init__(self, weights: float, activation: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.activation = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), activation
        with torch.no_grad():
            for layer in (self.first, self.second):
                layer.weight *= weights
                layer.bias *= weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.activation(self.first(x)))


def decibel(exact: torch.Tensor, found: torch.Tensor) -> float:
    signal, noise = (float(t.double().square().sum()) for t in (exact, exact - found))
    return 10 * math.log10(signal / noise)


SIZES = (1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6)


@pytest.mark.parametrize(
    ("inputs", "weights"), [(i, w) for i in SIZES for w in SIZES if 0.9e-12 < i * w < 1.1e6]
)
def test_any_size_is_quantized_alike(inputs, weights):
    """Inputs, weights and what is between the layers have any size; the second layer takes it back."""
    module = Net(weights, nn.ReLU()).eval()
    with torch.no_grad():
        module.first.bias *= inputs  # a bias belongs to the input's size
        module.second.weight /= weights * weights
        module.second.bias *= inputs / weights
    data = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(s)) * inputs,) for s in range(9)]
    quantized = quantize_model(module, data[:8], accuracy="fast")
    with torch.no_grad():
        assert decibel(module(*data[8]), quantized(*data[8])) > 30


@pytest.mark.parametrize("activation", [nn.ReLU6(), nn.Hardtanh(), nn.Hardswish(), nn.Sigmoid()], ids=str)
@pytest.mark.parametrize("weights", [1e-12, 1e-5])
def test_tiny_results_before_an_activation_with_bounds_compile(weights, activation):
    """Six is more steps of 1e-14 than LiteRT's 32 bits hold."""
    module = Net(weights, activation).eval()
    data = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(s)),) for s in range(8)]
    program = compile_model(module, data[0], calibration=data)  # verified against the quantized model
    assert len(program.partitions) == 1 and not program.rejected


def test_a_channel_that_is_switched_off_has_room_for_its_bias():
    """A batch norm may leave weights of 1e-9 and a bias of 1."""
    module = Net(1.0, nn.ReLU()).eval()
    with torch.no_grad():
        module.first.weight[2] *= 1e-9
        module.first.bias[2] = 1.0
    data = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(s)),) for s in range(9)]
    quantized = quantize_model(module, data[:8], per_channel=True)
    with torch.no_grad():
        assert decibel(module(*data[8]), quantized(*data[8])) > 30


def test_least_squares_are_of_what_a_function_makes_of_a_tensor():
    """Below -3 a hard-swish is flat: clipping to -2 would be no small error there, and -30 needs no room."""
    observer = RangeObserver(dtype=torch.int8, quant_min=-128, quant_max=127, eps=FLOOR)
    values = torch.cat([torch.linspace(-40, -3, 4000), torch.linspace(-3, 5, 1000)])
    observer(values)
    observer.function = nn.functional.hardswish
    low, high = observer.range()
    assert -4.5 <= low <= -2.8 and high > 4.5
    assert observer.range(EFFECT) == (low, high)  # without responses it is the same


def test_a_long_tail_that_carries_the_answer_is_kept():
    """Nearly all values of a tensor are small and do not matter; the layer behind reads the few large."""

    class Tail(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.spread, self.read = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 2, 1, bias=False)
            with torch.no_grad():
                self.read.weight[:, :6] *= 0.01

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.read(nn.functional.hardswish(self.spread(x)) ** 3).amax((2, 3))

    module = Tail().eval()
    data = [(torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(s)) * 3,) for s in range(13)]
    quantized = quantize_model(module, data[:12])
    with torch.no_grad():
        assert decibel(module(*data[12]), quantized(*data[12])) > 25
