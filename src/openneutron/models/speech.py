"""Spoken commands to train with, made by espeak-ng, and the features that the network takes."""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from openneutron.diagnostics import fail
from openneutron.models.data import Dataset, Split
from openneutron.models.keywords import BANDS, LABELS, WINDOW, WORDS

RATE, HOP, FFT = 16000, 320, 512
_SPACE = WINDOW * HOP  # samples of a window
OTHER = ("yellow", "noon", "cup", "town", "leaf", "write", "own", "of", "step", "grow", "house", "seven",
         "marvin", "tree", "bird", "happy", "water", "nine", "garden", "music", "table", "under", "light",
         "sheila", "wow", "below", "stock", "gone", "offer", "rightly")  # fmt: skip
VOICES = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-029", "en-gb-x-gbclan")
TRAINING = ("", "+m1", "+m2", "+m4", "+m6", "+m7", "+m8", "+f1", "+f2", "+f5", "+klatt2", "+croak")
TESTING = ("+m3", "+m5", "+f3", "+f4")  # speakers that training never hears


def say(word: str, voice: str, speed: int, pitch: int) -> np.ndarray:
    """What espeak-ng says, at 16 kHz, without the silence around it."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    done = subprocess.run(command, capture_output=True, check=True)
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate, said = file.getframerate(), file.readframes(len(done.stdout))
        data = np.frombuffer(said, np.int16).astype(np.float32) / 32768
    sound = np.interp(np.arange(0, len(data), rate / RATE), np.arange(len(data)), data).astype(np.float32)
    loud = np.flatnonzero(np.abs(sound) > 0.01)
    return sound[loud[0] : loud[-1] + 1] if len(loud) else sound


def mel_filters() -> torch.Tensor:
    """(FFT / 2 + 1, BANDS), triangles of equal width on the mel scale from 60 to 7600 Hz."""
    low, high = (2595 * np.log10(1 + f / 700) for f in (60.0, 7600.0))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    up = (bins[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return torch.from_numpy(np.maximum(0, np.minimum(up, down)).astype(np.float32))


def features(sound: torch.Tensor) -> torch.Tensor:
    """(N, samples) -> (N, BANDS, samples / HOP): logarithms of mel energies, about -2 to 2."""
    padded = torch.nn.functional.pad(sound, (FFT - HOP, 0))
    spectrum = padded.unfold(1, FFT, HOP) * torch.hann_window(FFT)
    energy = torch.fft.rfft(spectrum).abs().square() @ mel_filters()
    return ((energy + 1e-6).log() / 5 + 1).transpose(1, 2)


def load_speech(seed: int = 0, progress: bool = False) -> Dataset:
    """Windows of features, each with a word that ends shortly before its end, other words or noise.

    The speakers of the test split are heard in no other.
    """
    if shutil.which("espeak-ng") is None:
        fail("ON606", "speech", "espeak-ng is not installed", "Install it: apt install espeak-ng")
    random = np.random.default_rng(seed)
    train = _windows(random, TRAINING, 140, 500, 200, copies=3)
    return Dataset(train, _windows(random, TESTING, 24, 30, 24, copies=1))


def _windows(
    random: np.random.Generator, variants: tuple[str, ...], each: int, other: int, silent: int,
    copies: int,
) -> Split:  # fmt: skip
    speakers = ["".join(pair) for pair in itertools.product(VOICES, variants)]
    wanted = [word for word in WORDS for _ in range(each)]
    wanted += [str(random.choice(OTHER)) for _ in range(other)]
    orders = [(w, str(random.choice(speakers)), int(random.integers(120, 230)), int(random.integers(20, 80)))
              for w in wanted]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        spoken = list(pool.map(lambda order: say(*order), orders))
    sounds, labels = [], []
    for word, sound in [
        *zip(wanted, spoken, strict=True),
        *[("", np.zeros(1, np.float32))] * silent,
    ] * copies:
        label = LABELS.index(word) if word in WORDS else int(word != "")
        sounds.append(_window(random, sound))
        labels.append(label)
    batch = torch.from_numpy(np.stack(sounds))
    return Split(torch.cat([features(part) for part in batch.split(256)]), torch.tensor(labels))


def _window(random: np.random.Generator, sound: np.ndarray) -> np.ndarray:
    """A window with the sound near its end, at some loudness, over noise of some colour, hum and clicks."""
    window = np.zeros(_SPACE + 1, np.float32)
    end = _SPACE - int(random.integers(0, RATE // 5))
    sound = sound[-end:]
    window[end - len(sound) : end] = sound * random.uniform(0.2, 1.0) / max(0.1, float(np.abs(sound).max()))
    noise = random.normal(0, 1, _SPACE + 1).astype(np.float32)
    colour = random.uniform(0, 0.95)
    noise[1:] = noise[1:] * (1 - colour) + colour * np.convolve(noise, np.ones(8) / 8, "same")[1:]
    time = np.arange(_SPACE + 1) / RATE
    hum = np.sin(2 * np.pi * random.uniform(45, 300) * time) * random.uniform(0, 0.02)
    return (window + noise * 10 ** random.uniform(-3.3, -1.6) + hum)[:_SPACE].astype(np.float32)
