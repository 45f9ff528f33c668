"""Concatenations inside a network: small parts that others read keep their own scale."""

import pytest
import torch
from torch import nn

from openneutron import compile_model
from openneutron.pipeline import quantize_model


class Skip(nn.Module):
    """What a layer gives is read by two layers, and joined to something `ratio` times as large."""

    def __init__(self, ratio):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.both, self.alone, self.ratio = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 4, 1), ratio

    def forward(self, x):
        small = nn.functional.silu(self.first(x))
        large = nn.functional.silu(self.second(small)) * self.ratio
        return self.both(torch.cat([large, small], 1)) / self.ratio, self.alone(small)


def data():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 3, 8, 8, generator=generator),) for _ in range(16)]


@pytest.mark.parametrize("ratio", [30.0, 100.0])
def test_a_small_part_that_others_read_keeps_its_scale(ratio):
    module, samples, told = Skip(ratio).eval(), data(), []
    quantized = quantize_model(module, samples[:12], watch=told.append)
    with torch.no_grad():
        pairs = [(module(*x)[1], quantized(*x)[1]) for x in samples[12:]]
    noise, signal = (
        sum(float(v.square().sum()) for v in side)
        for side in zip(*((a - b, a) for a, b in pairs), strict=True)
    )
    assert signal > 10**2.4 * noise  # with one scale for all it is 22 dB, and 16 at the larger ratio
    program = compile_model(module, samples[0], calibration=samples[:12])
    assert len(program.partitions) == 1 and program.rejected == ()
    assert program.verification is not None and not program.verification.skipped


def test_parts_of_like_size_are_joined_as_they_are():
    kernels = [
        compile_model(Skip(ratio).eval(), data()[0], calibration=data()).summary()["cycles_estimated"]
        for ratio in (1.5, 30.0)
    ]
    assert kernels[0] < kernels[1]  # one more table


class JoinedTwice(nn.Module):
    """Boxes and scores are joined for an output, and for a layer inside."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.inside = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        y = self.body(x)
        joined = torch.cat([y[:, :4] * 500, torch.sigmoid(y[:, 4:])], 1)
        return joined.flatten(2), self.inside(joined)


def test_what_goes_to_an_output_is_joined_behind_the_dequantize_step():
    module, told = JoinedTwice().eval(), []
    quantize_model(module, data()[:12], watch=told.append)
    assert not any(part.is_lost for part in told[0].parts if part.output == 0)
