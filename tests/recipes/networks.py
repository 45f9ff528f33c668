"""Networks for the recipes: small forms of the zoo's, and some with operators that Neutron does not take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from openneutron.models.zoo import find_model

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Network:
    """A network, its input shapes, and the operators that nobody computes in int8."""

    name: str
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    floats: frozenset[str] = field(default=frozenset())
    positive: bool = False
    indices: int = 0  # its input is numbers below this

    def build(self) -> nn.Module:
        """The network in eval mode, the same each time, with batch norms that have seen data."""
        torch.manual_seed(0)
        module = self.make().train()
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.running_mean.uniform_(-0.2, 0.2)
                layer.running_var.uniform_(0.5, 1.5)
        return module.eval()

    def sample(self, seed: int, channels_last: bool = False) -> Inputs:
        """Random inputs, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        if self.indices:
            return tuple(torch.randint(self.indices, s, generator=generator) for s in self.shapes)
        values = [torch.randn(s, generator=generator) for s in self.shapes]
        values = [v.abs() + 0.1 for v in values] if self.positive else values
        return tuple(
            v.to(memory_format=torch.channels_last) if channels_last and v.ndim == 4 else v for v in values
        )


class Middle(nn.Module):
    """One function both backends have, one that neither has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Conv2d(8, 6, 3)
        self.head = nn.Linear(6 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.log1p(self.first(x)))
        return self.head(torch.atan(x).flatten(1))


class ArgmaxHead(nn.Module):
    """Ends in integers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        return x, x.argmax(1)


class EmbeddingStart(nn.Module):
    """Begins with integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layer, self.head = nn.Conv1d(8, 6, 3), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.layer(self.table(x).transpose(1, 2)))
        return self.head(torch.log2(x.mean(2).abs() + 1))


class CumsumIsland(nn.Module):
    """An operator over space that neither has, between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cumsum(torch.relu(self.first(x)), 3) * 0.2
        return torch.sigmoid(self.second(x))


class VolumeIsland(nn.Module):
    """A 3-D convolution, which is written as 2-D ones, and a function after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(12, 4, 1)
        self.volume = nn.Conv3d(2, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.volume(x.reshape(1, 2, 4, *x.shape[2:])))
        return self.second(torch.log1p(x.reshape(1, 12, *x.shape[3:])))


class FlippedEnd(nn.Module):
    """Operators that only move data, which Cortex-M leaves to ExecuTorch's kernels in int8."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return torch.flip(torch.flip(x, [2]) + self.second(x), [3])


class Ratio(nn.Module):
    """Divides two computed tensors at the end; a logarithm at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(1, 6, 3), nn.Conv2d(1, 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.log10(x + 1)
        return self.left(x) / (torch.sigmoid(self.right(x)) + 1)


class Seed(nn.Module):
    """A pad, a max pool with a dilation, mul -> minimum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 1)
        self.scale = nn.Parameter(torch.rand(1, 6, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(self.first(x), (1, 0, 2, 1))
        x = nn.functional.max_pool2d(x, 2, dilation=2)
        x = self.second(x)
        return torch.minimum(x * self.scale, x)


def _zoo(name: str, shape: tuple[int, ...] | None = None, **overrides: Any) -> Network:
    entry = find_model(name)
    shapes = entry.input_shapes if shape is None else (shape,)
    return Network(name, lambda: entry.build(**overrides), shapes)


ISLANDS = (
    Network("middle", Middle, ((1, 3, 8, 8),), frozenset({"aten.atan.default"})),
    Network("argmax_head", ArgmaxHead, ((1, 3, 8, 8),)),
    Network("embedding_start", EmbeddingStart, ((1, 12),), indices=20),
    Network("cumsum_island", CumsumIsland, ((1, 2, 7, 9),)),
    Network("volume_island", VolumeIsland, ((1, 3, 8, 9),)),
    Network("flipped_end", FlippedEnd, ((1, 3, 9, 8),)),
    Network("ratio", Ratio, ((1, 1, 8, 7),), positive=True),
    Network("seed", Seed, ((1, 3, 8, 8),)),
)
ZOO = (
    _zoo("cifarnet"),
    _zoo("mobilenet_v2", (1, 3, 64, 64), width=0.35),  # in training a batch norm wants several values
    _zoo("mobilenet_v1_vww"),
    _zoo("resnet8"),
    _zoo("dscnn"),
    _zoo("autoencoder", (2, 640)),
    _zoo("tcn"),
    _zoo("gru", (1, 3, 16)),
    _zoo("tiny_vit"),
)
NETWORKS = {network.name: network for network in (*ISLANDS, *ZOO)}
