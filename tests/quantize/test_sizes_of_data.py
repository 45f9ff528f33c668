"""Models whose data decides how large a tensor is: detections above a threshold, the places of a mask."""

import pytest
import torch
from torch import nn

from openneutron import compile_model
from openneutron.diagnostics import OpenNeutronError


class Net(nn.Module):
    def __init__(self, choose):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.choose = choose

    def forward(self, x):
        return self.choose(self.first(x), self.last)


def scaled_in_place(y, last):
    y = y.clone()
    y[y < 0] *= 0.1
    return last(y)


def kept_rows(y, last):
    kept = y[:, 3] > 0
    return last(y)[kept, :3], y[kept, 3].sigmoid()


CHOICES = {
    "values": lambda y, last: last(y)[y > 0],
    "rows in the middle": lambda y, last: last(y[y[:, 0] > 0]),
    "detections": kept_rows,
    "places, which eager PyTorch gives in columns": lambda y, last: (torch.nonzero(y > 0), last(y)),
    "a part that is scaled": scaled_in_place,
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_can_be_computed_is_delegated(name):
    torch.manual_seed(2)
    inputs = (torch.randn(16, 4),)
    calibration = [(torch.randn(16, 4),) for _ in range(4)]  # int8 changes how many are chosen
    program = compile_model(Net(CHOICES[name]).eval(), inputs, calibration=calibration)
    assert program.partitions and program.verification is not None


def test_an_order_in_memory_that_cannot_be_written_down():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)

        def forward(self, x):
            y = self.conv(x)
            return y[:, :, y.mean((0, 1, 3)) > 0]

    inputs = (torch.randn(1, 2, 6, 6),)
    with pytest.raises(OpenNeutronError, match=r"ON205.*the data decides"):
        compile_model(Columns().eval(), inputs, calibration=[inputs])
