"""ResNet-8: MLPerf Tiny's image classification network."""

from __future__ import annotations

import torch
from torch import nn

from openneutron.models.layers import ConvBnRelu, GlobalAveragePool, SameConv2d, head


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip connection, which is a 1x1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, size: int):
        super().__init__()
        inner = -(-size // stride)
        self.conv1 = ConvBnRelu(in_channels, out_channels, (3, 3), stride, (size, size))
        self.conv2 = SameConv2d(out_channels, out_channels, (3, 3), 1, (inner, inner))
        self.bn2 = nn.BatchNorm2d(out_channels)
        same = stride == 1 and in_channels == out_channels
        self.skip = nn.Identity() if same else nn.Conv2d(in_channels, out_channels, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, in, size, size) -> (N, out, size / stride, size / stride)"""
        return self.relu(self.bn2(self.conv2(self.conv1(x))) + self.skip(x))


class ResNet8(nn.Module):
    """A stem and three residual blocks; 12.5 million MACs."""

    def __init__(self, num_classes: int = 10, softmax: bool = True):
        super().__init__()
        self.features = nn.Sequential(
            ConvBnRelu(3, 16, (3, 3), 1, (32, 32)),
            BasicBlock(16, 16, 1, 32),
            BasicBlock(16, 32, 2, 32),
            BasicBlock(32, 64, 2, 16),
        )
        self.pool = GlobalAveragePool()
        self.classifier = head(64, num_classes, softmax)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, 32, 32) -> (N, classes)"""
        return self.classifier(self.pool(self.features(x)))
