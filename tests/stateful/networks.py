"""Networks that remember, each a frame at a time: some by name, and any number by a seed."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

CHANNELS = 6


class Ring(nn.Module):
    """The last frames in a ring that starts from 3, a convolution over them, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ring", torch.full((1, CHANNELS, 2), 3.0))
        self.conv, self.head = nn.Conv1d(CHANNELS, 8, 3), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.cat([self.ring, x], -1)
        self.ring.copy_(window[..., 1:])
        return self.head(torch.relu(self.conv(window)).flatten(1))


class Block(nn.Module):
    """Takes a frame (1, CHANNELS, 1) and returns one, with a state of its own."""

    def start(self, name: str, *shape: int) -> None:
        """A buffer that starts from zeros, from one number or from anything."""
        how = random.randrange(3)
        values = torch.zeros(shape) if how == 0 else torch.full(shape, random.uniform(-1, 1))
        self.register_buffer(name, torch.randn(shape) * 0.5 if how == 2 else values)


class Convolution(Block):
    """A window of the last frames, in one dimension; depthwise or not."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = random.choice((2, 3, 5))
        groups = random.choice((1, CHANNELS))
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, self.taps, groups=groups)
        self.start("ring", 1, CHANNELS, self.taps - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.cat([self.ring, x], 2)
        self.ring.copy_(window[:, :, 1:])
        return torch.relu(self.conv(window))


class Window(Block):
    """The same in two dimensions: rows of a picture that come one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, (3, 3), padding=(0, 1))
        self.start("rows", 1, 1, 2, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.cat([self.rows, x.reshape(1, 1, 1, CHANNELS)], 2)
        self.rows.copy_(window[:, :, 1:])
        return self.conv(window).reshape(1, CHANNELS, 1)


class Cell(Block):
    """A recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = random.choice((nn.GRUCell, nn.LSTMCell, nn.RNNCell))
        self.cell = self.kind(CHANNELS, CHANNELS)
        self.start("h", 1, CHANNELS)
        if self.kind is nn.LSTMCell:
            self.start("c", 1, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind is nn.LSTMCell:
            h, c = self.cell(x.flatten(1), (self.h, self.c))
            self.c.copy_(c)
        else:
            h = self.cell(x.flatten(1), self.h)
        self.h.copy_(h)
        return h.reshape(1, CHANNELS, 1)


class Difference(Block):
    """A frame minus the last."""

    def __init__(self) -> None:
        super().__init__()
        self.start("last", 1, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = x - self.last
        self.last.copy_(x)
        return found


class Average(Block):
    """A running mean, written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.start("mean", 1, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.75).add_(x, alpha=0.25)
        return x - self.mean


class Delay(Block):
    """Two buffers, one of which hands on what it has to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.start("first", 1, CHANNELS, 1)
        self.start("second", 1, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = x + self.second
        self.second.copy_(self.first)
        self.first.copy_(x)
        return found


class Rolled(Block):
    """A ring that is rolled, and its last frame written over; its taps are some frames apart."""

    def __init__(self) -> None:
        super().__init__()
        self.apart = random.choice((1, 2, 4))
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, 3, dilation=self.apart, groups=random.choice((1, CHANNELS)))
        self.start("ring", 1, CHANNELS, 2 * self.apart + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ring.copy_(torch.roll(self.ring, -1, 2))
        self.ring[:, :, -1:] = x
        return self.conv(self.ring)


class Newest(Block):
    """The last frames in two groups, the newest first, which are written before they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = random.choice((1, 2, 4))
        self.linear = nn.Linear(self.kept * CHANNELS // 2, CHANNELS // 2)
        self.start("ring", 1, 2, self.kept, CHANNELS // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ring.copy_(torch.cat([x.reshape(1, 2, 1, -1), self.ring[:, :, :-1]], 2))
        return torch.relu(self.linear(self.ring.reshape(1, 2, -1))).reshape(1, CHANNELS, 1)


class Assigned(Block):
    """A GRU whose state is assigned anew, not written into."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(CHANNELS, CHANNELS)
        self.start("h", 1, 1, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, self.h = self.gru(x.reshape(1, 1, CHANNELS), self.h)
        return found.reshape(1, CHANNELS, 1)


class Stacked(Block):
    """Two LSTM layers with their states in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LSTMCell(CHANNELS, CHANNELS), nn.LSTMCell(CHANNELS, CHANNELS)
        self.start("state", 4, 1, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.one(x.flatten(1), (self.state[0], self.state[1]))
        g, d = self.two(h, (self.state[2], self.state[3]))
        self.state.copy_(torch.stack([h, c, g, d]))
        return g.reshape(1, CHANNELS, 1)


class Level(Block):
    """A running level, which is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.tensor(random.uniform(0, 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.level.mul_(0.75).add_(x.abs().mean() * 0.25)
        return x - self.level


class Twice(Block):
    """A buffer that is written before and after it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(CHANNELS, CHANNELS)
        self.start("h", 1, CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h.mul_(0.5)
        found = torch.tanh(self.linear(x.flatten(1) + self.h))
        self.h.add_(found)
        return found.reshape(1, CHANNELS, 1)


class Places(Block):
    """Two buffers that change places."""

    def __init__(self) -> None:
        super().__init__()
        self.start("a", 1, CHANNELS, 1)
        self.start("b", 1, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(before)
        return x + self.a


class Filter(Block):
    """A filter of second order: what it made last is handed on to what it made before that."""

    def __init__(self) -> None:
        super().__init__()
        self.start("last", 1, CHANNELS, 1)
        self.start("before", 1, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = 0.02 * x + 1.9 * self.last - 0.92 * self.before
        self.before.copy_(self.last)
        self.last.copy_(found)
        return found


class Peak(Block):
    """The largest of late, which is forgotten slowly, and only where it is loud."""

    def __init__(self) -> None:
        super().__init__()
        self.start("peak", 1, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loud = x.abs()
        self.peak.copy_(torch.where(loud > 0.1, torch.maximum(self.peak * 0.98, loud), self.peak))
        return x - 0.5 * self.peak


class Held(Block):
    """The last that was positive: chosen, and not computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.start("held", 1, CHANNELS, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held.copy_(torch.where(x > 0, x, self.held))
        return x + self.held


class Layer(Block):
    """No state: a layer between others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = (
            nn.Conv1d(CHANNELS, CHANNELS, 1),
            random.choice((nn.ReLU(), nn.Tanh(), nn.Sigmoid())),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.conv(x))


REMEMBERING: tuple[type[Block], ...] = (
    Convolution,
    Window,
    Cell,
    Difference,
    Average,
    Delay,
    Rolled,
    Newest,
    Assigned,
    Stacked,
    Level,
    Twice,
    Places,
    Filter,
    Peak,
    Held,
)


def random_network(seed: int) -> nn.Module:
    """A network of one to four blocks, of which one at least remembers."""
    random.seed(seed)
    torch.manual_seed(seed)
    # The seeds that tests name stay the networks that they were when Newest was not there.
    known = [kind for kind in REMEMBERING if seed >= 31000 or kind is not Newest]
    kinds: list[type[Block]] = [random.choice(known)]
    kinds += [random.choice((*known, Layer)) for _ in range(random.randrange(4))]
    random.shuffle(kinds)
    return nn.Sequential(*(kind() for kind in kinds), nn.Flatten(1), nn.Linear(CHANNELS, 3)).eval()


def frames(count: int, seed: int, shape: tuple[int, ...] = (1, CHANNELS, 1)) -> list[tuple[Any, ...]]:
    """A sequence: noise that drifts."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, *shape, generator=generator) * 0.7
    drift = torch.sin(torch.arange(count) / 9 + seed).reshape(-1, *(1 for _ in shape))
    return [(frame,) for frame in noise + 0.5 * drift]
