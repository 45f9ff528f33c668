"""What `--converter eiq` delegates of attention and recurrent layers; the converter itself is not needed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from openneutron import NeutronTargetSpec, generate_neutron_compile_spec
from openneutron.ops.spec import EIQ
from tests.lowering import look, quantize


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


# Softmax has a fixed range, the product that reads it wants zero point 0: one step between them is the CPU's.
@pytest.mark.parametrize(
    ("network", "shape", "left", "partitions"),
    [
        (Attention, (1, 5, 8), ["quantized_decomposed.quantize_per_tensor.default"], 2),
        (Lstm, (1, 3, 4), [], 1),
    ],
)
def test_partitions(network, shape, left, partitions):
    torch.manual_seed(0)
    batches = [(torch.randn(shape),) for _ in range(2)]
    target = NeutronTargetSpec("imxrt700", converter=EIQ)
    quantized = quantize(network().eval(), batches, neutron_target_spec=target)
    partitioner = look(quantized, batches[0], generate_neutron_compile_spec("imxrt700", converter=EIQ))
    assert [entry.op for entry in partitioner.rejected] == left
    assert len(partitioner.partitions) == partitions
