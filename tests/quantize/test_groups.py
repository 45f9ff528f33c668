"""Groups of operators that are computed in float, where one of their values is read again later."""

import pytest
import torch
from torch import nn

from openneutron import compile_model

STATISTICS = {
    "var": lambda x, m: torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5),
    "std": lambda x, m: x.std(1, keepdim=True),
    "squares": lambda x, m: torch.sqrt(((x - m) ** 2).mean(1, keepdim=True) + 1e-5),
    "exp": lambda x, m: torch.exp(m),
    "norm": lambda x, m: x.norm(dim=1, keepdim=True),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_that_is_read_again_behind_a_layer(name):
    class RevIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            mean = x.mean(1, keepdim=True)
            spread = STATISTICS[name](x, mean)
            return self.layer((x - mean) / spread) * spread + mean

    inputs = (torch.randn(4, 16) + 1,)
    program = compile_model(RevIN().eval(), inputs, calibration=[inputs])
    assert program.rejected == () and len(program.partitions) == 1
    assert program.verification is not None and not program.verification.skipped
