"""Tensors that lie in memory in whatever order, on their way between the CPU and the NPU."""

import random

import pytest
import torch
from torch import nn

from openneutron import compile_model

SPECTRA = {
    "stft": (lambda x: torch.stft(x[0], 16, 8, center=False, return_complex=True).abs(), nn.Conv1d(9, 4, 3)),
    "real": (lambda x: torch.fft.rfft(x).real.permute(0, 2, 1), nn.Linear(4, 3)),
    "imag": (lambda x: torch.fft.rfft(x).imag[:, ::2], nn.Linear(33, 3)),
    "as real": (lambda x: torch.view_as_real(torch.fft.rfft(x)).permute(0, 3, 1, 2), nn.Conv2d(2, 3, 2)),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_a_partition_reads_what_the_cpu_leaves_in_an_odd_order(name):
    function, layer = SPECTRA[name]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(function(x))

    inputs = (torch.randn(2, 4, 64),)
    program = compile_model(Net().eval(), inputs, calibration=[inputs])
    assert program.partitions
    assert program.verification is not None and not program.verification.skipped


VIEWS = (
    lambda r, x: x.permute(r.sample(range(x.dim()), x.dim())),
    lambda r, x: x.movedim(r.randrange(x.dim()), r.randrange(x.dim())),
    lambda r, x: x[..., r.randrange(2) :: r.choice([1, 2])] if x.shape[-1] > 3 else x,
    lambda r, x: x.unsqueeze(0).expand(2, *x.shape) if x.dim() < 5 and x.numel() < 500 else x,
    lambda r, x: x.unfold(0, 2, 1) if x.dim() < 5 and x.shape[0] > 2 and x.numel() < 500 else x,
    lambda r, x: x.flip(r.randrange(x.dim())),
    lambda r, x: x.chunk(2, 0)[1] if x.shape[0] > 3 else x,
    lambda r, x: x.select(0, x.shape[0] - 1) if x.dim() > 3 else x,
    lambda r, x: x.diagonal(0, 0, 1) if x.dim() > 2 else x,
)


@pytest.mark.parametrize("seed", range(12))
def test_random_views_between_the_npu_and_the_cpu(seed):
    """Views of views, what only the CPU computes, layers, and views again, with inputs in any order."""

    def steps(x, layers=None):
        r, made = random.Random(seed), []
        for number in range(3):
            for _ in range(r.randrange(1, 4)):
                x = r.choice(VIEWS)(r, x)
            x = torch.atan(x) if r.random() < 0.5 else x
            made.append(nn.Linear(x.shape[-1], 4) if layers is None else layers[number])
            x = made[-1](x)
        return x, made

    class Net(nn.Module):
        def __init__(self, example):
            super().__init__()
            self.layers = nn.ModuleList(steps(example)[1])

        def forward(self, x):
            return steps(x, self.layers)[0]

    torch.manual_seed(seed)
    r = random.Random(~seed)
    shape = [r.randrange(2, 6) for _ in range(r.randrange(2, 5))]
    order = r.sample(range(len(shape)), len(shape))
    x = torch.randn([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])
    program = compile_model(Net(x).eval(), (x,), calibration=[(x,), (torch.randn(shape),)])
    assert program.verification is not None and not program.verification.skipped


def test_a_volume_in_channels_last_order():
    inputs = (torch.randn(1, 3, 2, 4, 4).contiguous(memory_format=torch.channels_last_3d),)
    model = nn.Sequential(nn.Conv3d(3, 3, 1), nn.Hardswish()).eval()
    program = compile_model(model, inputs, calibration=[inputs])
    assert program.verification is not None and not program.verification.skipped
