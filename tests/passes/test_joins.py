"""What is joined only to be taken apart again is not joined, and the float function stays."""

import pytest
import torch
from torch import nn

from openneutron.fx import op_name
from openneutron.passes import ATEN_PASSES, PTQ, run_passes
from openneutron.pipeline import quantize_model

SHAPE = (1, 3, 8, 8)


class Detector(nn.Module):
    """Boxes in pixels and scores below 1."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.box, self.scores = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 4, 1),
            nn.Conv2d(8, 5, 1),
        )
        self.register_buffer("grid", 40 * torch.arange(64.0).reshape(1, 1, 8, 8))
        self.register_buffer("size", torch.tensor([640.0] * 4 + [1.0] * 5).reshape(1, 9, 1, 1))

    def parts(self, x):
        y = torch.relu(self.body(x))
        return self.box(y), self.scores(y)


class WrittenInPlace(Detector):
    def forward(self, x):
        z = torch.cat(self.parts(x), 1).sigmoid().clone()
        z[:, :2] = (z[:, :2] * 2 - 0.5 + self.grid) * 8
        z[:, 2:4] = (z[:, 2:4] * 2) ** 2 * 100
        return z.flatten(2)


class ScaledTogether(Detector):
    def forward(self, x):
        box, scores = self.parts(x)
        return torch.cat([box, torch.sigmoid(scores)], 1) * self.size


class MovedTogether(Detector):
    def forward(self, x):
        box, scores = self.parts(x)
        return torch.cat([box * 100, torch.sigmoid(scores)], 1) - self.size.where(self.size > 1, 0.0)


class TakenApart(Detector):
    def forward(self, x):
        box, scores = self.parts(x)
        z = torch.relu(torch.cat([box * 3000, scores * 0.01], 1))
        return z[:, :4], z[:, -5:]


@pytest.mark.parametrize("kind", [WrittenInPlace, ScaledTogether, MovedTogether, TakenApart])
def test_small_parts_are_not_lost_and_float_stays(kind):
    module, generator = kind().eval(), torch.Generator().manual_seed(0)
    samples = [(torch.randn(SHAPE, generator=generator),) for _ in range(12)]
    exported = torch.export.export(module, samples[0]).module(check_guards=False)
    passed = run_passes(exported, ATEN_PASSES, PTQ)
    told = []
    quantize_model(module, samples, accuracy="fast", watch=told.append)
    with torch.no_grad():
        for expected, found in zip(module(*samples[1]), passed(*samples[1]), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert told[0].parts and not any(part.is_lost for part in told[0].parts)


def slices(x, y):
    z = torch.cat([x, y], 1)
    return z[:, 1:3], z[:, 3:], z[:, 2:5], z[:, :-4], z[:, ::2], z[:, 3:100], z[:, :, 1:2]


def test_only_a_slice_within_a_part_reads_it():
    class Slices(nn.Module):
        def forward(self, x, y):
            return slices(x, y)

    inputs = torch.randn(1, 3, 4), torch.randn(1, 4, 4)
    passed = run_passes(torch.export.export(Slices(), inputs).module(check_guards=False), ATEN_PASSES, PTQ)
    for found, expected in zip(passed(*inputs), slices(*inputs), strict=True):
        assert torch.equal(found, expected)
    of_joined = [n for n in passed.graph.nodes if op_name(n) == "aten.slice.Tensor" and len(n.args) > 1]
    assert sum(op_name(n.args[0]) == "aten.cat.default" for n in of_joined) == 3  # 2:5, ::2, another axis


def test_numbers_of_like_size_are_applied_to_the_joined_tensor():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("factors", torch.tensor([1.0, 2.0, 1.5, 3.0]).reshape(1, 4, 1))

        def forward(self, x, y):
            return torch.cat([x, y], 1) * self.factors

    inputs = torch.randn(1, 2, 4), torch.randn(1, 2, 4)
    passed = run_passes(torch.export.export(Plain(), inputs).module(check_guards=False), ATEN_PASSES, PTQ)
    assert sum(op_name(n) == "aten.mul.Tensor" for n in passed.graph.nodes) == 1
