"""What a model does to its own parameters."""

import torch
from torch import nn

from openneutron import compile_model, quantize_model


class Rescaled(nn.Module):
    """As RWKV does it: the weights of later blocks are divided when the model is first run."""

    def __init__(self, by):
        super().__init__()
        self.first, self.second, self.by, self.done = nn.Linear(16, 16), nn.Linear(16, 16), by, False

    def forward(self, x):
        before = self.second(x)
        if not self.done:
            with torch.no_grad():
                self.first.weight.div_(1)
                self.second.weight.div_(self.by)
            self.done = True
        return self.second(torch.relu(self.first(x))) + before


def test_weights_that_are_rescaled_in_forward_are_constants():
    model, inputs = Rescaled(4).eval(), (torch.randn(8, 16),)
    weight = model.second.weight.detach().clone()
    quantized = quantize_model(model, [inputs])
    model.done = False
    program = compile_model(model, inputs, calibration=[inputs])
    assert program.rejected == () and len(program.partitions) == 1
    assert torch.equal(model.second.weight, weight), "the caller's weights were changed"
    first = quantized(*inputs)
    torch.testing.assert_close(quantized(*inputs), first)
    model.done = False
    with torch.no_grad():
        expected = model(*inputs)
    assert (first - expected).abs().max() < 0.05 * expected.abs().max()


def test_a_buffer_that_is_written_stays_state():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return self.layer(x) * self.count

    inputs = (torch.randn(2, 4),)
    quantized = quantize_model(Counter().eval(), [inputs])
    before = quantized.count.clone()
    quantized(*inputs)
    assert torch.equal(quantized.count, before + 1)
