"""The deep autoencoder of MLPerf Tiny's anomaly detection: a large reconstruction error is an anomaly."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


class DeepAutoencoder(nn.Module):
    """640 inputs squeezed through 8 values; linear, batch normalisation, ReLU throughout; 264,192 MACs."""

    def __init__(self, inputs: int = 640, hidden: int = 128, bottleneck: int = 8):
        super().__init__()
        widths = (inputs, *(hidden,) * 4, bottleneck, *(hidden,) * 4)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, inputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, inputs) -> (N, inputs)"""
        return self.layers(x)
