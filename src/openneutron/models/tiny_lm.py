"""A small language model over bytes: RMSNorm, rotary positions, grouped queries over a cache, gated MLPs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


def rounded(x: Tensor) -> Tensor:
    """Values as 8 bits hold them, for training: gradients pass as if nothing were rounded."""
    step = x.detach().abs().amax().clamp_min(1e-6) / 127
    return x + ((x.detach() / step).round() * step - x.detach())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + half) of the last axis turned by the angle of their position."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    """Causal self-attention: queries share keys and values, which a cache keeps from run to run."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, groups: int, head: int, context: int):
        super().__init__()
        self.head = head
        self.query = nn.Linear(width, heads * head, bias=False)
        self.key, self.value = (nn.Linear(width, groups * head, bias=False) for _ in range(2))
        self.out = nn.Linear(heads * head, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, groups, context, head), persistent=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        at: Tensor | None,
    ) -> Tensor:
        """(N, tokens, width) -> (N, tokens, width); `at` is where in the cache the tokens go, if in it."""
        layers = (self.query, self.key, self.value)
        q, k, v = (layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in layers)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if at is not None:
            k, v = self.keys.index_copy_(2, at, k), self.values.index_copy_(2, at, v)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    """SwiGLU: a linear layer whose results are weighted by the SiLU of another's."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, width) -> (N, tokens, width)"""
        hidden = F.silu(self.gate(x)) * self.up(x)
        return self.down(rounded(hidden) if self.training else hidden)


class Block(nn.Module):
    """Attention and MLP, each behind a norm and beside a skip connection."""

    def __init__(self, width: int, heads: int, groups: int, head: int, hidden: int, context: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.attention = Attention(width, heads, groups, head, context)
        self.mlp = GatedMLP(width, hidden)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor,
        at: Tensor | None,
    ) -> Tensor:
        """(N, tokens, width) -> (N, tokens, width)"""
        x = x + self.attention(self.norm1(x), cos, sin, mask, at)
        x = rounded(x) if self.training else x
        x = x + self.mlp(self.norm2(x))
        return rounded(x) if self.training else x


class TinyLM(nn.Module):
    """The scores of the byte that follows, from about a million parameters; a run takes one byte or more."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        width: int = 160,
        depth: int = 3,
        heads: int = 4,
        groups: int = 2,
        head: int = 32,
        hidden: int = 480,
        context: int = 256,
    ):
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(BYTES, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, head, hidden, context) for _ in range(depth))
        self.norm = nn.RMSNorm(width, 1e-5)
        self.classifier = nn.Linear(width, BYTES, bias=False)
        angles = torch.outer(torch.arange(context), 1e4 ** -(torch.arange(head // 2) / (head // 2)))
        self.register_buffer("cos", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """(1, tokens) bytes at the positions (tokens,) -> (1, tokens, 256), behind all that came before."""
        mask = torch.arange(self.context) <= position[:, None]
        return self._scores(tokens, self.cos[position], self.sin[position], mask, position)

    def over(self, tokens: Tensor) -> Tensor:
        """(N, tokens) bytes -> (N, tokens, 256): whole texts at once, as it is trained."""
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        return self._scores(tokens, self.cos[:length], self.sin[:length], mask, None)

    def _scores(self, tokens: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, at: Tensor | None) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin, mask, at)
        return self.classifier(self.norm(x))
