"""Everything that PyTorch can do in place, and has a sense in evaluation, is accepted."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from openneutron import compile_model
from openneutron.passes.canonical.writes import _out_of_place

aten = torch.ops.aten
IN_PLACE = [
    name
    for name in dir(nn)
    if inspect.isclass(kind := getattr(nn, name))
    and issubclass(kind, nn.Module)
    and "inplace" in inspect.signature(kind.__init__).parameters
]


@pytest.mark.parametrize("name", IN_PLACE)
def test_every_layer_that_may_work_in_place(name):
    layer = nn.Threshold(0.1, 0.5, inplace=True) if name == "Threshold" else getattr(nn, name)(inplace=True)
    shape = (1, 3, *[4] * (3 if "3d" in name else 1 if "1d" in name else 2))
    program = compile_model(layer.eval(), (torch.randn(shape),), calibration=[(torch.randn(shape),)])
    assert program.verification is not None and not program.verification.skipped


def and_or(y):
    mask = y > 0
    mask &= y < 1
    mask |= y > 2
    return torch.where(mask, y, 0.0)


WRITES = {
    "dropout with keywords": lambda y: torch.dropout_(y, p=0.5, train=False),
    "alpha and keywords": lambda y: y.add_(other=y.sigmoid(), alpha=2),
    "and, or": and_or,
    "an overload of another name": lambda y: y.abs_().pow_(2.0),
    "a comparison": lambda y: y.gt_(0),
    "a chain": lambda y: F.elu_(F.celu_(F.selu_(F.leaky_relu_(y)))).clamp_(min=-0.5).clamp_max_(0.5),
    "through an expanded view": lambda y: (y[:, None].expand(-1, 3, -1)[:, 0].mul_(2), y)[1],
    "through a part of the memory": lambda y: (y[1:].as_strided((2, 2), (1, 1)).copy_(y[:2, 4:6] * 2), y)[1],
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_compute_what_eager_does(name):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.last(WRITES[name](self.first(x).clone()))

    inputs = (torch.randn(4, 8),)
    program = compile_model(Net().eval(), inputs, calibration=[inputs])
    assert program.verification is not None and not program.verification.skipped


def test_operators_whose_in_place_form_names_or_orders_its_arguments_otherwise():
    assert _out_of_place(aten.dropout_.default) == (aten.dropout.default, ("self", "p", "train"))
    assert _out_of_place(aten.polygamma_.default) == (aten.polygamma.default, ("n", "self"))
    assert _out_of_place(aten.__iand__.Tensor) == (aten.__and__.Tensor, ("self", "other"))
    assert _out_of_place(aten.normal_.default) is None  # nothing that could be computed beforehand
