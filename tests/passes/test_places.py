"""Elements chosen from tensors that lie in memory in any way."""

import pytest
import torch
from torch import nn

from openneutron import compile_model
from openneutron.passes.canonical.places import numbered

INDEX = torch.randint(0, 5, (1, 4, 8, 3), generator=torch.Generator().manual_seed(0))
CHOICES = {
    "of an expanded tensor": lambda x: torch.gather(x[:, :, None].expand(-1, -1, 8, -1), 3, INDEX),
    "of overlapping windows": lambda x: x.unfold(2, 3, 1).diagonal(0, 2, 3),
    "of a part of the memory": lambda x: x[:, 1:].as_strided((3, 2), (1, 5)),
    "of transposed memory": lambda x: x.transpose(1, 2).as_strided((2, 3), (7, 2)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice(name):
    class Net(nn.Module):
        def forward(self, x):
            return CHOICES[name](x * 2)

    inputs = (torch.randn(1, 4, 5),)
    program = compile_model(Net().eval(), inputs, calibration=[inputs])
    assert program.verification is not None and not program.verification.skipped
    assert program.rejected == ()


def test_numbers_of_elements_that_share_memory():
    assert numbered(torch.zeros(3).expand(2, 3)).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert numbered(torch.zeros(5).unfold(0, 3, 1)).tolist() == [[0, 1, 2], [1, 2, 5], [2, 5, 8]]
    assert numbered(torch.zeros(4, 4)[1:, 1:]).as_strided((2,), (4,), 0).tolist() == [-1, -1]
    assert numbered(torch.zeros(0, 3)).shape == (0, 3)
