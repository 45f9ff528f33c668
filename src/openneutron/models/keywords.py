"""Spoken commands: depthwise temporal convolutions, over a whole window or a frame at a time."""

from __future__ import annotations

import torch
from torch import nn

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
LABELS = ("silence", "unknown", *WORDS)
BANDS, WINDOW = 40, 64
"""Mel bands of a frame, and how many frames a decision looks back on."""


class Past(nn.Module):
    ring: torch.Tensor

    """The frames that a convolution over time looks back on: kept from run to run, or zeros before a window.

    A stream that starts from zeros computes at its n-th frame what a window that ends there does.
    """

    def __init__(self, channels: int, frames: int, stream: bool):
        super().__init__()
        self.frames, self.stream = frames, stream
        if stream:
            self.register_buffer("ring", torch.zeros(1, channels, frames), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, T) -> (N, C, frames + T)"""
        if not self.stream:
            return nn.functional.pad(x, (self.frames, 0))
        window = torch.cat([self.ring, x], 2)
        self.ring.copy_(window[:, :, x.shape[2] :])
        return window


class Block(nn.Module):
    """A dilated depthwise convolution over time, a pointwise one, and what came in added."""

    def __init__(self, channels: int, kernel: int, dilation: int, stream: bool):
        super().__init__()
        self.past = Past(channels, (kernel - 1) * dilation, stream)
        self.depthwise = nn.Conv1d(channels, channels, kernel, dilation=dilation, groups=channels, bias=False)
        self.norm = nn.BatchNorm1d(channels)
        self.pointwise = nn.Conv1d(channels, channels, 1, bias=False)
        self.norm_out = nn.BatchNorm1d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C, T) -> (N, C, T)"""
        filtered = torch.relu(self.norm(self.depthwise(self.past(x))))
        return torch.relu(x + self.norm_out(self.pointwise(filtered)))


class KeywordTCN(nn.Module):
    """Four blocks of dilation 1, 2, 4, 8 and a linear layer on the last frame.

    With `stream` it takes one frame (1, 40, 1) and remembers; without, a window (N, 40, 64). The weights are
    the same.
    """

    def __init__(self, stream: bool = False, channels: int = 48, kernel: int = 5, labels: int = len(LABELS)):
        super().__init__()
        self.past = Past(BANDS, 2, stream)
        self.stem = nn.Conv1d(BANDS, channels, 3, bias=False)
        self.norm = nn.BatchNorm1d(channels)
        self.blocks = nn.Sequential(*(Block(channels, kernel, 2**i, stream) for i in range(4)))
        self.classifier = nn.Linear(channels, labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 40, T) -> (N, labels), logits"""
        return self.classifier(self._found(x)[:, :, -1])

    def over(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 40, T) -> (N, T, labels): what a stream says at each frame."""
        return self.classifier(self._found(x).transpose(1, 2))

    def _found(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(torch.relu(self.norm(self.stem(self.past(x)))))
