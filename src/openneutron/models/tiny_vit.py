"""A Vision Transformer of one block: small enough for a microcontroller, with every operator a ViT has."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, tokens, width) -> (N, tokens, width)"""
        batch, tokens, width = x.shape
        split = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (layer(x).reshape(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Pre-norm attention and MLP, each with a skip connection."""

    def __init__(self, width: int, heads: int, mlp_width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_width), nn.GELU(), nn.Linear(mlp_width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, tokens, width) -> (N, tokens, width)"""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """Patches by convolution, learned positions, one block, the mean of the tokens, linear."""

    def __init__(
        self,
        num_classes: int = 10,
        image: int = 32,
        patch: int = 8,
        width: int = 64,
        heads: int = 4,
        depth: int = 1,
    ):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, 2 * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, image, image) -> (N, classes), logits"""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.classifier(self.norm(self.blocks(tokens)).mean(dim=1))
