"""Recordings that are made up: espeak-ng's voices, and between them music, machines, knocks and silence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from examples.apps.lib.sound import RATE
from openneutron.models.speech import TESTING, TRAINING, VOICES, say
from openneutron.models.text import load_texts

Random = np.random.Generator


@dataclass(frozen=True)
class Part:
    """What is heard from one sample to another, and its sound alone."""

    kind: str
    begin: int
    sound: np.ndarray

    @property
    def end(self) -> int:
        """The first sample behind."""
        return self.begin + len(self.sound)


def sentences(held_out: bool) -> list[str]:
    """Sentences of Python's manual and of licences: those of every fourth text, or of the others."""
    texts = [text for part in load_texts() for text in part]
    own, other = texts[::4], [text for i, text in enumerate(texts) if i % 4]
    if not held_out:
        return sorted(_plain(other))
    return sorted(_plain(own) - _plain(other))


def _plain(texts: list[bytes]) -> set[str]:
    """Those sentences that can be read out: words alone."""
    text = re.sub(r"\s+", " ", b" ".join(texts).decode(errors="ignore"))
    parts = re.split(r"(?<=[.;:!?]) ", text)
    return {
        p for p in parts if re.fullmatch(r"[A-Za-z][A-Za-z ,'-]+[.;:!?]", p) and 4 <= len(p.split()) <= 20
    }


def spoken(random: Random, texts: Sequence[str], held_out: bool) -> list[np.ndarray]:
    """Texts as speakers say them, of those held out or the others; each at a speed and pitch of its own."""
    speakers = ["".join(pair) for pair in itertools.product(VOICES, TESTING if held_out else TRAINING)]
    orders = [
        (text, str(random.choice(speakers)), int(random.integers(125, 215)), int(random.integers(25, 75)))
        for text in texts
    ]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda order: say(*order), orders))


def music(random: Random, seconds: float) -> np.ndarray:
    """Chords and a melody of plucked or bowed tones, and sometimes a drum."""
    sound = np.zeros(int(seconds * RATE), np.float32)
    beat = int(RATE * random.uniform(0.2, 0.5))
    root, scale = random.uniform(110, 220), np.array([0, 2, 4, 5, 7, 9, 11, 12])
    ring, drum = random.uniform(0.1, 0.8), random.random() < 0.5
    for start in range(0, len(sound), beat):
        time = np.arange(min(2 * beat, len(sound) - start)) / RATE
        for octave in (1, 1, 2):
            pitch = root * octave * 2 ** (random.choice(scale) / 12)
            tone = sum(np.sin(2 * np.pi * k * pitch * time) / k**1.5 for k in range(1, 7) if k * pitch < 7000)
            swell = np.minimum(1, time / 0.01) * np.exp(-time / ring) * np.minimum(1, time[::-1] / 0.02)
            sound[start : start + len(time)] += random.uniform(0.4, 1) * tone * swell
        if drum:
            sound[start : start + len(time)] += random.normal(0, 1.5, len(time)) * np.exp(-time / 0.03)
    return sound


def machine(random: Random, seconds: float) -> np.ndarray:
    """Noise of some colour that comes and goes, a motor's hum, and knocks."""
    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    noise = coloured(random, count) * (
        1 + random.uniform(0, 0.8) * np.sin(2 * np.pi * random.uniform(0.3, 4) * time)
    )
    turn = 2 * np.pi * random.uniform(25, 130) * time
    hum = sum(np.sin(k * turn + k) / k for k in range(1, 8)) * random.uniform(0, 1)
    knocks = (random.random(count) < random.uniform(0, 6) / RATE).astype(np.float32)
    ring = np.exp(-np.arange(800) / 120) * np.sin(np.arange(800) * random.uniform(0.1, 0.9)) * 6
    edge = np.minimum(1, np.minimum(time, time[::-1]) / 0.05)
    return ((noise + hum + np.convolve(knocks, ring)[:count]) * edge).astype(np.float32)


def coloured(random: Random, count: int) -> np.ndarray:
    """Noise, of which high frequencies are weaker by some measure; as loud as white noise of deviation 1."""
    spectrum = np.fft.rfft(random.standard_normal(count))
    spectrum *= (np.arange(len(spectrum)) + len(spectrum) / 80) ** -random.uniform(0, 1)
    noise = np.fft.irfft(spectrum, count)
    return (noise / (noise.std() + 1e-9)).astype(np.float32)


def at_level(random: Random, sound: np.ndarray, low: float, high: float) -> np.ndarray:
    """A sound whose peak is between two levels, in decibels below full scale."""
    return sound * np.float32(10 ** (random.uniform(low, high) / 20) / max(1e-3, float(np.abs(sound).max())))


def recording(
    random: Random,
    pieces: Sequence[tuple[str, np.ndarray]],
    gap: Callable[[], float],
    floor: tuple[float, float],
) -> tuple[np.ndarray, list[Part]]:
    """Sounds one after the other, over a noise of a level between two in decibels; samples of 16 bits."""
    at, parts = int(gap() * RATE), []
    for kind, sound in pieces:
        parts.append(Part(kind, at, sound))
        at += len(sound) + int(gap() * RATE)
    mixed = np.zeros(at, np.float32)
    for start in range(0, at, 20 * RATE):  # another noise now and then
        count = min(20 * RATE, at - start)
        mixed[start : start + count] = coloured(random, count) * 10 ** (random.uniform(*floor) / 20)
    for part in parts:
        mixed[part.begin : part.end] += part.sound
    return np.clip(np.rint(mixed * 32768), -32768, 32767).astype(np.int16), parts
