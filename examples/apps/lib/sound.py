"""Features of sound: logarithmic mel spectra. `sound.c` computes the same on a microcontroller."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RATE = 16000
FLOOR = 1e-10


@dataclass(frozen=True)
class Shape:
    """Samples of a window, a power of two, and from window to window; bands between two frequencies."""

    window: int = 1024
    hop: int = 512
    bands: int = 128
    low: float = 0.0
    high: float = RATE / 2


def mel_weights(shape: Shape) -> np.ndarray:
    """Triangles over the bins of the spectrum, equally wide on the mel scale: (bands, bins)."""

    def mel(hertz: float) -> float:
        return float(2595 * np.log10(1 + hertz / 700))

    edges = 700 * (10 ** (np.linspace(mel(shape.low), mel(shape.high), shape.bands + 2) / 2595) - 1)
    bins = np.arange(shape.window // 2 + 1) * RATE / shape.window
    up = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    weights = np.maximum(0, np.minimum(up, down))
    # A narrow triangle may miss all bins: it takes the nearest.
    empty = weights.sum(1) == 0
    nearest = np.rint(edges[1:-1] * shape.window / RATE).astype(int)
    weights[empty, nearest[empty]] = 1
    return weights


def log_mel(samples: np.ndarray, shape: Shape) -> np.ndarray:
    """Decibels by frame and band, of samples of 16 bits: (frames, bands)."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(shape.window) / shape.window)
    frames = np.lib.stride_tricks.sliding_window_view(samples, shape.window)[:: shape.hop]
    weights, found = mel_weights(shape).T, []
    for start in range(0, len(frames), 4096):  # a long recording is not to be in memory 20 times
        power = np.abs(np.fft.rfft(frames[start : start + 4096] * (window / 32768))) ** 2 / shape.window
        found.append((10 * np.log10(power @ weights + FLOOR)).astype(np.float32))
    return np.concatenate(found)
