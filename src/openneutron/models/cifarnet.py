"""CifarNet: the small CIFAR-10 network of NXP's examples."""

from __future__ import annotations

import torch
from torch import nn

from openneutron.models.layers import head


class CifarNet(nn.Module):
    """Three 5x5 convolutions with pooling and one linear layer; 12,298,240 MACs."""

    def __init__(self, num_classes: int = 10, softmax: bool = True):
        super().__init__()
        blocks: list[nn.Module] = []
        for in_channels, out_channels in ((3, 32), (32, 32), (32, 64)):
            blocks += [nn.Conv2d(in_channels, out_channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*blocks)
        self.classifier = head(64 * 4 * 4, num_classes, softmax)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, 32, 32) -> (N, classes)"""
        return self.classifier(torch.flatten(self.features(x), 1))
