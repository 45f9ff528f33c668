"""A temporal convolutional network: causal dilated 1-D convolutions with skip connections."""

from __future__ import annotations

import torch
from torch import nn


class CausalBlock(nn.Module):
    """Two causal convolutions; padding goes on the left only, so no step sees the future."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, dilation: int):
        super().__init__()
        past = (kernel - 1) * dilation
        self.body = nn.Sequential(
            nn.ConstantPad1d((past, 0), 0.0),
            nn.Conv1d(in_channels, out_channels, kernel, dilation=dilation),
            nn.ReLU(),
            nn.ConstantPad1d((past, 0), 0.0),
            nn.Conv1d(out_channels, out_channels, kernel, dilation=dilation),
            nn.ReLU(),
        )
        same = in_channels == out_channels
        self.skip = nn.Identity() if same else nn.Conv1d(in_channels, out_channels, 1)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, in, T) -> (N, out, T)"""
        return self.relu(self.body(x) + self.skip(x))


class TCN(nn.Module):
    """Four causal blocks of dilation 1, 2, 4, 8, the mean over time, linear."""

    def __init__(self, inputs: int = 16, channels: int = 32, num_classes: int = 10, kernel: int = 3):
        super().__init__()
        widths = (inputs, *(channels,) * 4)
        self.blocks = nn.Sequential(
            *(CausalBlock(widths[i], widths[i + 1], kernel, dilation=2**i) for i in range(4))
        )
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, inputs, T) -> (N, classes), logits"""
        return self.classifier(self.blocks(x).mean(dim=2))
