"""Features of sound: logarithmic mel spectra. `sound.c` computes the same on a microcontroller."""

from __future__ import annotations

import numpy as np

RATE, WINDOW, HOP, BANDS = 16000, 1024, 512, 128
FLOOR = 1e-10


def mel_weights(bands: int = BANDS) -> np.ndarray:
    """Triangles over the bins of the spectrum, equally wide on the mel scale: (bands, bins)."""

    def mel(hertz: float) -> float:
        return float(2595 * np.log10(1 + hertz / 700))

    edges = 700 * (10 ** (np.linspace(0, mel(RATE / 2), bands + 2) / 2595) - 1)
    bins = np.arange(WINDOW // 2 + 1) * RATE / WINDOW
    up = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    weights = np.maximum(0, np.minimum(up, down))
    # A narrow triangle may miss all bins: it takes the nearest.
    empty = weights.sum(1) == 0
    nearest = np.rint(edges[1:-1] * WINDOW / RATE).astype(int)
    weights[empty, nearest[empty]] = 1
    return weights


def log_mel(samples: np.ndarray) -> np.ndarray:
    """Decibels by frame and band, of samples of 16 bits: (frames, BANDS)."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    sound = samples.astype(np.float64) / 32768
    starts = np.arange(0, len(sound) - WINDOW + 1, HOP)
    frames = sound[starts[:, None] + np.arange(WINDOW)[None]] * window
    power = np.abs(np.fft.rfft(frames)) ** 2 / WINDOW
    return (10 * np.log10(power @ mel_weights().T + FLOOR)).astype(np.float32)
