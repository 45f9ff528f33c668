"""MobileNetV1, as in MLPerf Tiny's visual wake words (alpha 0.25, 96 pixels) and the original (1.0, 224)."""

from __future__ import annotations

import torch
from torch import nn

from openneutron.models.layers import ConvBnRelu, GlobalAveragePool, head

# Output channels at alpha 1 and stride of each depthwise-separable block.
BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class MobileNetV1(nn.Module):
    """A stem, thirteen depthwise-separable blocks, mean, linear."""

    def __init__(
        self, alpha: float = 1.0, resolution: int = 224, num_classes: int = 1001, softmax: bool = True
    ):
        super().__init__()
        channels = int(32 * alpha)
        size = (resolution, resolution)
        layers: list[nn.Module] = [ConvBnRelu(3, channels, (3, 3), 2, size)]
        size = (-(-resolution // 2),) * 2
        for full, stride in BLOCKS:
            out = int(full * alpha)
            layers.append(ConvBnRelu(channels, channels, (3, 3), stride, size, groups=channels))
            size = (-(-size[0] // stride),) * 2
            layers.append(ConvBnRelu(channels, out, (1, 1), 1, size))
            channels = out
        self.features = nn.Sequential(*layers)
        self.pool = GlobalAveragePool()
        self.classifier = head(channels, num_classes, softmax)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, resolution, resolution) -> (N, classes)"""
        return self.classifier(self.pool(self.features(x)))
