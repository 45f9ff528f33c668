"""A quantized graph is an exported program without tracing, and the same one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from openneutron.fast_export.lift import lift
from openneutron.fast_export.recurrent_shapes import shapes_of_few_steps
from openneutron.pipeline import quantize_model
from openneutron.quantize.export import export_model


class Mixed(nn.Module):
    """Convolution, a constant of its own, an operator of the CPU, a recurrent layer, two results."""

    def __init__(self):
        super().__init__()
        self.conv, self.lstm = nn.Conv2d(3, 4, 3, padding=1), nn.LSTM(16, 6, batch_first=True)
        self.register_buffer("table", torch.randn(1, 4, 1, 1), persistent=False)

    def forward(self, x):
        y = self.conv(x).relu() * self.table
        z, _ = self.lstm(y.mean(1).atan())
        return {"map": y, "steps": z[:, -1] + torch.tensor([1.0])}


def described(program):
    """Everything of a graph that later stages look at; constants that nobody reads aside."""
    return [
        (
            n.op,
            n.name,
            str(n.target),
            str(n.args),
            str(n.kwargs),
            [
                (tuple(v.shape), v.stride(), v.dtype)
                for v in pytree.tree_leaves(n.meta.get("val"))
                if n.op != "output"
            ],
        )
        for n in program.graph.nodes
        if n.op != "placeholder" or n.users
    ]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_the_same_as_traced(order):
    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 12, 16),) for _ in range(2)]
    model = quantize_model(Mixed().eval(), samples, accuracy="fast")
    inputs = (samples[0][0].to(memory_format=order),)
    lifted, traced = lift(model, inputs), torch.export.export(model, inputs)
    assert lifted is not None and described(lifted) == described(traced)
    wanted, found = (program.module(check_guards=False)(*inputs) for program in (traced, lifted))
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[k], found[k]) for k in wanted)
    kinds = {spec.target: spec.kind for spec in traced.graph_signature.input_specs}
    assert all(kinds[spec.target] is spec.kind for spec in lifted.graph_signature.input_specs)


def test_what_only_tracing_tells_is_traced():
    torch.manual_seed(0)
    model = quantize_model(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), [(torch.randn(2, 4),)])
    assert lift(model, (torch.randn(3, 4),)) is None  # another shape
    assert lift(model, (torch.randn(2, 4).double(),)) is None
    writes = torch.export.export(nn.ReLU(inplace=True), (torch.randn(2, 4),)).module(check_guards=False)
    assert lift(writes, (torch.randn(2, 4),)) is None
    assert export_model(writes, (torch.randn(2, 4),)) is not None


@pytest.mark.parametrize("shape", [(5, 3, 8), (7, 1, 8), (1, 9, 8)])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [False, True])
def test_results_of_a_recurrent_layer_lie_as_those_of_all_its_steps(kind, first, shape):
    layer, inputs = kind(8, 6, 2, batch_first=first, bidirectional=True).eval(), (torch.randn(shape),)
    with shapes_of_few_steps():
        found = torch.export.export(layer, inputs)
    assert described(found) == described(torch.export.export(layer, inputs))
