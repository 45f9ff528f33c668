"""Affine steps and parallel branches go into the layers beside them, and the float function stays."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from openneutron.fx import op_name
from openneutron.passes import ATEN_PASSES, PTQ, run_passes
from openneutron.quantize.export import export_model

F = nn.functional
X = (1, 6, 9, 9)


def canonical(module: nn.Module, *shape: int, seed: int = 0) -> Counter:
    """The operators of a model after the passes, which must compute what it computed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape or X, generator=generator)
    module = module.eval()
    passed = run_passes(export_model(module, (x,)).module(check_guards=False), ATEN_PASSES, PTQ)
    for scale in (1.0, 30.0):
        with torch.no_grad():
            wanted, found = module(x * scale), passed(x * scale)
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1e-6)
    return Counter(op_name(n).split(".")[1] for n in passed.graph.nodes if n.op == "call_function")


class Between(nn.Module):
    """A layer, an affine step with numbers of some shape, and another layer."""

    def __init__(self, first: nn.Module, second: nn.Module, shape: tuple[int, ...], seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = first, second
        self.scale, self.shift = (nn.Parameter(torch.randn(shape) + s) for s in (2.0, 0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * self.scale + self.shift)


LAYERS = {
    "dense": (nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 4, 3), (8, 1, 1), X),
    "one number": (nn.Conv2d(6, 8, 3, bias=False), nn.Conv2d(8, 4, 1), (), X),
    "depthwise": (nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 6, 3, groups=6), (1, 6, 1, 1), X),
    "grouped": (nn.Conv2d(6, 8, 1, groups=2), nn.Conv2d(8, 8, 3, groups=4), (8, 1, 1), X),
    "transposed": (nn.ConvTranspose2d(6, 8, 2, stride=2), nn.Conv2d(8, 4, 1), (8, 1, 1), X),
    "transposed groups": (nn.ConvTranspose2d(6, 8, 2, 2, groups=2), nn.Conv2d(8, 4, 1), (8, 1, 1), X),
    "linear": (nn.Linear(6, 8), nn.Linear(8, 3), (8,), (4, 6)),
    "1-D": (nn.Conv1d(6, 8, 3), nn.Conv1d(8, 4, 3), (8, 1), (1, 6, 12)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_affine_steps_go_into_the_layer_before(name):
    first, second, shape, given = LAYERS[name]
    assert not {"mul", "add", "batch_norm"} & canonical(Between(first, second, shape), *given).keys()


@pytest.mark.parametrize("padding", [0, 1])
def test_affine_steps_go_into_the_layers_behind_where_no_border_is_in_the_way(padding):
    class Behind(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.left, self.right = nn.Conv2d(6, 4, 3, padding=padding), nn.Conv2d(6, 4, 3, padding=padding)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(x) * 3.0 - 1.0
            return F.relu(self.left(y)) - F.relu(self.right(y))

    found = canonical(Behind())
    # Around the image a layer reads zeros, not what the step makes of zeros.
    assert (found["mul"] + found["add"] + found["batch_norm"] > 0) == bool(padding)


class Reparameterised(nn.Module):
    """RepVGG's and LCNetV3's block: kernels of several sizes, and the tensor itself, each with its norm."""

    def __init__(self, groups: int, identity: bool, norms: bool):
        super().__init__()
        torch.manual_seed(2)
        self.large = nn.Conv2d(6, 6, 3, padding=1, groups=groups, bias=not norms)
        self.wide = nn.Conv2d(6, 6, (1, 3), padding=(0, 1), groups=groups)
        self.small = nn.Conv2d(6, 6, 1, groups=groups, bias=not norms)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) if norms else nn.Identity() for _ in range(3))
        for norm in self.norms:
            if norms:
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.3, 3)
                nn.init.uniform_(norm.weight, -2, 2)
        self.identity = identity

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.large(x)) + self.norms[1](self.small(x)) + self.wide(x)
        return F.relu(y + self.norms[2](x) if self.identity else y)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize("norms", [False, True])
def test_parallel_branches_are_one_layer(groups, identity, norms):
    found = canonical(Reparameterised(groups, identity, norms))
    plain = identity and not norms  # the tensor itself, unscaled, is added: a skip connection
    assert found == Counter({"conv2d": 1, "relu": 1, **({"add": 1} if plain else {})})


def test_branches_of_different_strides_or_inputs_stay():
    class Different(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.a, self.b = nn.Conv2d(6, 4, 3, stride=2, padding=1), nn.Conv2d(6, 4, 1, stride=2)
            self.c = nn.Conv2d(6, 4, 3, stride=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(F.relu(x)) + self.c(F.pad(x, (1, 1, 1, 1)))

    assert canonical(Different())["conv2d"] >= 2


def test_a_product_that_is_added_to_its_factor_is_one_product():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(4)
            self.gate = nn.Conv2d(6, 6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)))

    assert canonical(Gated())["mul"] == 1


def test_what_changes_nothing_goes():
    class Nothing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu((x + torch.zeros(6, 1, 1)) * torch.ones(()) / 1.0 - 0.0)

    assert canonical(Nothing()) == Counter({"relu": 1})


def test_weights_that_are_shared_stay_the_users():
    shared = nn.Conv2d(6, 6, 1)
    before = {k: v.clone() for k, v in shared.state_dict().items()}

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = shared

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(F.relu(self.layer(x) * 2.0)) + 1.0

    canonical(Twice())
    assert all(torch.equal(v, before[k]) for k, v in shared.state_dict().items())
