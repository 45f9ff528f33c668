"""DS-CNN: MLPerf Tiny's keyword spotting network, on 49 frames of 10 cepstral coefficients."""

from __future__ import annotations

import torch
from torch import nn

from openneutron.models.layers import ConvBnRelu, GlobalAveragePool, head


class DSCNN(nn.Module):
    """A 10x4 convolution of stride 2 and four depthwise-separable blocks; 2,656,768 MACs."""

    def __init__(self, num_classes: int = 12, channels: int = 64, softmax: bool = True):
        super().__init__()
        layers: list[nn.Module] = [ConvBnRelu(1, channels, (10, 4), 2, (49, 10))]
        for _ in range(4):
            layers.append(ConvBnRelu(channels, channels, (3, 3), 1, (25, 5), groups=channels))
            layers.append(ConvBnRelu(channels, channels, (1, 1), 1, (25, 5)))
        self.features = nn.Sequential(*layers)
        self.pool = GlobalAveragePool()
        self.classifier = head(channels, num_classes, softmax)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 1, 49, 10) -> (N, classes)"""
        return self.classifier(self.pool(self.features(x)))
