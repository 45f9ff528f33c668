"""Small models for the report's tests: one that is split by an operator the NPU does not take."""

from __future__ import annotations

import torch
from torch import nn


class Split(nn.Module):
    """Two convolutions with something between them that stays on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve, sum up, convolve, classify."""
        x = torch.atan(torch.relu(self.first(x)))
        x = torch.max_pool2d(self.second(x), 2)
        return torch.softmax(self.last(torch.flatten(x, 1)), 1)


def example() -> tuple[torch.Tensor, ...]:
    """Inputs of `Split`."""
    torch.manual_seed(0)
    return (torch.randn(1, 3, 16, 16),)
