"""A GRU over a sequence, and a linear layer on its last state."""

from __future__ import annotations

import torch
from torch import nn


class GRUClassifier(nn.Module):
    """One GRU layer; the sequence length is fixed when the model is exported, and unrolled."""

    def __init__(self, inputs: int = 16, hidden: int = 32, num_classes: int = 10):
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, batch_first=True)
        self.classifier = nn.Linear(hidden, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, inputs) -> (N, classes), logits"""
        states, _ = self.gru(x)
        return self.classifier(states[:, -1])
