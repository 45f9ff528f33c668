"""MobileNetV2 with torchvision's parameter names, so that its published weights load as they are."""

from __future__ import annotations

import torch
from torch import nn

# Expansion, output channels, repeats, stride of the first repeat.
SETTING = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def round_channels(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of the divisor, never more than 10 % below."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def conv_bn_relu6(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution, batch normalisation, ReLU6; symmetric padding, as torchvision has it."""
    return nn.Sequential(
        nn.Conv2d(
            in_channels, out_channels, kernel, stride, padding=(kernel - 1) // 2, groups=groups, bias=False
        ),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand, depthwise, project; with a skip connection where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int):
        super().__init__()
        hidden = in_channels * expansion
        self.skip = stride == 1 and in_channels == out_channels
        self.conv = nn.Sequential(
            *([conv_bn_relu6(in_channels, hidden, 1)] if expansion != 1 else []),
            conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output, plus its input when there is a skip connection."""
        return x + self.conv(x) if self.skip else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 of any width; the resolution is that of the input, a multiple of 32."""

    def __init__(self, num_classes: int = 1000, width: float = 1.0):
        super().__init__()
        channels = round_channels(32 * width)
        features: list[nn.Module] = [conv_bn_relu6(3, channels, 3, stride=2)]
        for expansion, full, repeats, first_stride in SETTING:
            out = round_channels(full * width)
            for i in range(repeats):
                features.append(InvertedResidual(channels, out, first_stride if i == 0 else 1, expansion))
                channels = out
        last = round_channels(1280 * max(1.0, width))
        features.append(conv_bn_relu6(channels, last, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> (N, classes), logits"""
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))
