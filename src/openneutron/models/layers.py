"""Building blocks that several zoo models share."""

from __future__ import annotations

import torch
from torch import nn


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TensorFlow's SAME padding (before, after) along one dimension."""
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class SameConv2d(nn.Sequential):
    """A convolution with TensorFlow's SAME padding, for a known input size.

    The MLPerf Tiny networks come from TensorFlow, which pads a strided layer more at the end than at the
    beginning. PyTorch's symmetric padding would be another network, and one LiteRT cannot express as SAME.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: tuple[int, int],
        stride: int,
        size: tuple[int, int],
        groups: int = 1,
        bias: bool = False,
    ):
        top, bottom = same_padding(size[0], kernel[0], stride)
        left, right = same_padding(size[1], kernel[1], stride)
        symmetric = top == bottom and left == right
        conv = nn.Conv2d(
            in_channels,
            out_channels,
            kernel,
            stride,
            padding=(top, left) if symmetric else 0,
            groups=groups,
            bias=bias,
        )
        super().__init__(*([] if symmetric else [nn.ZeroPad2d((left, right, top, bottom))]), conv)


class ConvBnRelu(nn.Sequential):
    """SAME convolution, batch normalisation, ReLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: tuple[int, int],
        stride: int,
        size: tuple[int, int],
        groups: int = 1,
    ):
        super().__init__(
            SameConv2d(in_channels, out_channels, kernel, stride, size, groups),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        )


class GlobalAveragePool(nn.Module):
    """The mean over height and width, flattened to (batch, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) -> (N, C)"""
        return torch.flatten(self.pool(x), 1)


def head(features: int, classes: int, softmax: bool) -> nn.Sequential:
    """The classifier; training wants it without the softmax, deployment with it. Same parameter names."""
    return nn.Sequential(nn.Linear(features, classes), *([nn.Softmax(dim=1)] if softmax else []))
