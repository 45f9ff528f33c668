"""Whole models in float as LiteRT: what lowerings in integers do otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter
from torch import nn

from openneutron.diagnostics import OpenNeutronError
from openneutron.pipeline import convert_model

NETWORKS = {
    "padded pooling": nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2, 1)),
    "ReLU6": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Conv2d(4, 4, 3), nn.Hardtanh()),
    "batch norm and clamp": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardtanh(-0.3, 0.4)),
    "average pooling": nn.Sequential(nn.AvgPool2d(3, 2, 1), nn.Sigmoid()),
    "linear": nn.Sequential(nn.Flatten(), nn.Linear(192, 7), nn.LayerNorm(7), nn.Softmax(1)),
    "exponential units": nn.Sequential(nn.Conv2d(3, 4, 3), nn.ELU(0.5)),
    "transposed": nn.Sequential(nn.ConvTranspose2d(3, 4, 3, 2, 1), nn.LeakyReLU(0.1)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_float_models_compute_what_pytorch_does(name):
    torch.manual_seed(0)
    module, x = NETWORKS[name].eval(), torch.randn(1, 3, 8, 8) - 2
    interpreter = Interpreter(model_content=convert_model(module, (x,)))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x.numpy())
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    with torch.no_grad():
        wanted = module(x).numpy()
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_channels_last_at_the_borders():
    module, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 8, 8)
    interpreter = Interpreter(model_content=convert_model(module, (x,), channels_last_io=True))
    assert interpreter.get_input_details()[0]["shape"].tolist() == [1, 8, 8, 3]
    assert interpreter.get_output_details()[0]["shape"].tolist() == [1, 6, 6, 4]


def test_an_operator_without_a_form_is_named():
    class Unusual(nn.Module):
        def forward(self, x):
            return torch.erfinv(x)

    with pytest.raises(OpenNeutronError, match=r"ON305.*erfinv"):
        convert_model(Unusual(), (torch.rand(2, 3),))
