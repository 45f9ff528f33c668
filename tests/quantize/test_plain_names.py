"""Modules and buffers may be called anything: the model compiles, and computes what it computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from openneutron import compile_model, prepare_qat

NAMES = ['a"b', 'a"),exit(7),("', "a'b", "a\nb", "a\\b", "é", "a b", "\x1b[2J", "a\0b", "class", "lambda",
         "a[0]", "{x}", "%s", "\u202e", "graph", "code", "meta"]  # fmt: skip


class Net(nn.Module):
    """A layer, a block and a buffer of that name."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self._modules[name] = nn.Conv2d(1, 4, 3)
        self._modules[f"{name}2"] = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
        self._modules[f"{name}2"]._buffers[f"{name}x"] = torch.full((4, 1, 1), 0.5)
        self._buffers[f"{name}3"] = torch.full((4, 1, 1), 0.25)

    def forward(self, x):
        block = self._modules[f"{self.name}2"]
        return (
            block(self._modules[self.name](x)) * block._buffers[f"{self.name}x"]
            + self._buffers[f"{self.name}3"]
        )


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_model_with_this_name_in_it_compiles(name):
    torch.manual_seed(0)
    module, inputs = Net(name).eval(), (torch.randn(1, 1, 8, 8),)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    program = compile_model(module, inputs, calibration=[inputs])  # verified against the quantized model
    assert program.summary()["partitions"] == 1
    assert module.state_dict().keys() == before.keys(), "the caller's module is as it was"


def test_names_that_become_equal_stay_two():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            for i, name in enumerate(("a_b", 'a"b', "a\\b")):
                self._modules[name] = nn.Linear(3, 3)
                nn.init.constant_(self._modules[name].weight, i + 1.0)

        def forward(self, x):
            for layer in self._modules.values():
                x = layer(x)
            return x

    inputs = (torch.rand(1, 3),)
    assert compile_model(Two().eval(), inputs, calibration=[inputs]).summary()["partitions"] == 1


def test_training_with_such_a_name():
    inputs = (torch.randn(2, 1, 8, 8),)
    prepared = prepare_qat(Net('a"b'), inputs)
    prepared(*inputs)[0].sum().backward()


@pytest.mark.parametrize(
    "name", ["graph", "meta", "range_constraints", "validate_inputs", "_frozen_param_count"]
)
def test_a_buffer_named_as_what_torch_sets_on_its_modules(name):
    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.register_buffer(name, torch.full((3,), 0.25))

        def forward(self, x):
            return self.layer(x) + self._buffers[name]

    inputs = (torch.rand(1, 3),)
    assert compile_model(Added().eval(), inputs, calibration=[inputs]).summary()["partitions"] == 1
