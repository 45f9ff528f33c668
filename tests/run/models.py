"""Small networks that between them use everything a program can have."""

from __future__ import annotations

import torch
from torch import nn


class Plain(nn.Module):
    """One partition: convolutions, a pool, a linear layer."""

    shapes = ((1, 3, 12, 10),)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3, stride=2)
        self.linear = nn.Linear(12, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.linear(x.mean((2, 3)))


class Split(nn.Module):
    """Two partitions: no NPU computes atan. The tensors between the partitions have four dimensions."""

    shapes = ((1, 4, 9, 11),)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.before = nn.Conv2d(4, 6, 3, padding=1)
        self.after = nn.Conv2d(6, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.after(torch.atan(self.before(x))))


class Several(nn.Module):
    """Two inputs, three outputs, one of them an intermediate result."""

    shapes = ((1, 4, 6, 6), (1, 4, 6, 6))

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.left = nn.Conv2d(4, 4, 1)
        self.right = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        a, b = self.left(x), self.right(y)
        total = a + b
        return total, torch.sigmoid(b), total.amax((2, 3))
