"""Steps of recurrent layers: one range for all of them, and for nothing else."""

import pytest
import torch
from torch import nn

from openneutron.fx import op_name
from openneutron.pipeline import quantize_model


class Sequence(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Loop(nn.Module):
    """Two cells called step by step, as people write it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRUCell(4, 6), nn.LSTMCell(6, 5)

    def forward(self, x):
        a, b = x.new_zeros(1, 6), (x.new_zeros(1, 5), x.new_zeros(1, 5))
        for step in range(x.shape[1]):
            a = self.first(x[:, step], a)
            b = self.second(a, b)
        return b[0]


class Deep(nn.Module):
    """One layer again and again, but on no sequence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(6):
            x = torch.relu(self.layer(x)) * 3
        return x


def scales(model, name, shape):
    """How often each output scale of an operator occurs."""
    torch.manual_seed(0)
    samples = [(torch.randn(shape),) for _ in range(3)]
    quantized = quantize_model(model.eval(), samples, accuracy="fast")
    found = [n for n in quantized.graph.nodes if op_name(n) == name]
    outputs = [user for n in found for user in n.users]
    assert len(outputs) == len(found)
    return {s: [n.args[1] for n in outputs].count(s) for s in {n.args[1] for n in outputs}}


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_all_steps_have_one_range(kind):
    layer = getattr(nn, kind)(4, 6, batch_first=True)
    found = scales(Sequence(layer), "aten.linear.default", (1, 9, 4))
    # The product of all inputs, and those of the steps; the first one's is a constant.
    assert sorted(found.values()) == [1, 8]


def test_cells_called_one_after_the_other():
    found = scales(Loop(), "aten.linear.default", (1, 8, 4))
    assert max(found.values()) >= 7 and len(found) <= 8  # of 30 products


def test_layers_that_share_weights_in_depth_have_ranges_of_their_own():
    found = scales(Deep(), "aten.relu.default", (1, 4))
    assert len(found) == 6


def test_tensors_with_many_readers_are_joined_as_torchao_would(monkeypatch):
    model = Sequence(nn.LSTM(4, 6, batch_first=True)).eval()
    samples = [(torch.randn(1, 7, 4),) for _ in range(2)]
    found = []
    for many in (64, 3):
        monkeypatch.setattr("openneutron.quantize.annotation.sharing._MANY", many)
        quantized = quantize_model(model, samples, accuracy="fast")
        found.append([(n.name, str(n.target), str(n.args)) for n in quantized.graph.nodes])
    assert found[0] == found[1]
