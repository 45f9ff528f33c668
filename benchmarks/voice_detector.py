"""A voice detector to quantize: spectrum, magnitude, convolutions and an LSTM cell, trained on made-up sound.

The short-time Fourier transform is a convolution with fixed weights, the magnitude the root of two squares,
as in detectors in the field; the state of the cell goes in and out of the model with every frame. Voice is a
sum of harmonics with formants that come and go; what is no voice is hiss, hum, whistles and knocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

RATE, FRAME, WINDOW, HOP = 8000, 256, 128, 64
BINS, HIDDEN = WINDOW // 2 + 1, 32
State = tuple[Tensor, Tensor]


class VoiceDetector(nn.Module):
    """One frame of sound and the cell's state to the probability of voice and the next state."""

    def __init__(self) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.arange(BINS)[:, None] * torch.arange(WINDOW)[None] / WINDOW
        window = torch.hann_window(WINDOW)
        basis = torch.cat([angle.cos() * window, -angle.sin() * window])
        self.register_buffer("basis", basis[:, None])
        self.first = nn.Conv1d(BINS, 32, 3, padding=1)
        self.second = nn.Conv1d(32, 32, 3, stride=2, padding=1)
        self.third = nn.Conv1d(32, HIDDEN, 2)
        self.cell = nn.LSTMCell(HIDDEN, HIDDEN)
        self.last = nn.Linear(HIDDEN, 1)

    def forward(self, sound: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, FRAME), (N, HIDDEN), (N, HIDDEN) -> (N, 1), (N, HIDDEN), (N, HIDDEN)"""
        spectrum = nn.functional.conv1d(sound[:, None], self.basis, stride=HOP)
        real, imaginary = spectrum[:, :BINS], spectrum[:, BINS:]
        x = torch.sqrt(real**2 + imaginary**2 + 1e-6)
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        x = torch.relu(self.third(x)).mean(2)
        hidden, memory = self.cell(x, (hidden, memory))
        return torch.sigmoid(self.last(torch.relu(hidden))), hidden, memory


def sounds(count: int, frames: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sound as (count, frames, FRAME), and for every frame whether there is voice."""
    g = torch.Generator().manual_seed(seed)
    length = frames * FRAME
    time = torch.arange(length) / RATE

    def draw(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g)

    found, labels = [], []
    for _ in range(count):
        on = _blocks(frames, g)
        pitch = draw(90, 260, 1) * (1 + 0.08 * torch.sin(2 * math.pi * draw(2, 5, 1) * time))
        phase = 2 * math.pi * torch.cumsum(pitch, 0) / RATE
        formants, widths = draw(300, 2800, 3), draw(80, 250, 3)
        voice = torch.zeros(length)
        for k in range(1, 16):
            gain = sum(
                torch.exp(-(((k * pitch.mean() - f) / w) ** 2)) for f, w in zip(formants, widths, strict=True)
            )
            voice += (0.05 / k + gain) * torch.sin(k * phase)
        voice = voice / voice.square().mean().sqrt() * draw(0.05, 0.3, 1)
        hiss = torch.randn(length, generator=g)
        hiss = torch.nn.functional.conv1d(hiss[None, None], draw(-1, 1, 1, 1, 5), padding=2)[0, 0]
        noise = hiss * draw(0.003, 0.05, 1)
        noise += draw(0, 0.1, 1) * torch.sin(2 * math.pi * draw(50, 3500, 1) * time)
        for start in torch.randint(0, length - 200, (3,), generator=g).tolist():
            noise[start : start + 200] += (
                draw(0, 0.5, 1) * torch.randn(200, generator=g) * torch.linspace(1, 0, 200)
            )
        envelope = on.repeat_interleave(FRAME)
        found.append((noise + envelope * voice).reshape(frames, FRAME))
        labels.append(on)
    return torch.stack(found), torch.stack(labels)


def _blocks(frames: int, g: torch.Generator) -> Tensor:
    """Voice on and off for some frames each."""
    on, state = torch.zeros(frames), int(torch.randint(2, (), generator=g))
    at = 0
    while at < frames:
        size = int(torch.randint(4, 16, (), generator=g))
        on[at : at + size] = state
        at, state = at + size, 1 - state
    return on


def listen(model: nn.Module, sound: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """What a model says about every frame, its own state handed on, and what it was given."""
    state = torch.zeros(len(sound), HIDDEN), torch.zeros(len(sound), HIDDEN)
    said, given = [], []
    for frame in sound.unbind(1):
        given.append((frame, *state))
        probability, *state = model(frame, *state)
        said.append(probability[:, 0])
    return torch.stack(said, 1), given


def trained(steps: int = 240, seed: int = 0) -> VoiceDetector:
    """A detector that has learned; a minute on one core."""
    torch.manual_seed(seed)
    model = VoiceDetector().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    sound, labels = sounds(256, 32, seed + 1)
    for step in range(steps):
        chosen = torch.arange(step * 16, step * 16 + 16) % len(sound)
        said, _ = listen(model, sound[chosen])
        loss = nn.functional.binary_cross_entropy(said, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()
