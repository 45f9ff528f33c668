"""The features of sound, in Python and C."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from examples.apps.lib import sound
from tests.examples.apps.native import library

# What the examples use: the whole band for a machine, a telephone's and more for speech.
SHAPES = {"machine": sound.Shape(), "speech": sound.Shape(512, 320, 40, 60, 7600)}


class Shape(ctypes.Structure):
    _fields_ = [("window", ctypes.c_int32), ("bands", ctypes.c_int32),
                ("low", ctypes.c_double), ("high", ctypes.c_double)]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    found = library("sound", tmp_path_factory.mktemp("sound"))
    found.sound_decibels.restype, found.sound_decibels.argtypes = ctypes.c_float, [ctypes.c_float]
    return found


def in_c(compiled, samples: np.ndarray, shape: sound.Shape) -> np.ndarray:
    compiled.sound_prepare(Shape(shape.window, shape.bands, shape.low, shape.high))
    rows = []
    for start in range(0, len(samples) - shape.window + 1, shape.hop):
        frame, row = samples[start : start + shape.window].copy(), np.zeros(shape.bands, np.float32)
        compiled.sound_mel(*(a.ctypes.data_as(ctypes.c_void_p) for a in (frame, row)))
        rows.append([compiled.sound_decibels(energy) for energy in row.tolist()])
    return np.float32(rows)


def test_a_tone_is_loudest_in_its_band():
    time, shape = np.arange(4096) / sound.RATE, SHAPES["machine"]
    found = sound.log_mel((8000 * np.sin(2 * np.pi * 1000 * time)).astype(np.int16), shape)
    centre = np.average(np.arange(513) * 15.625, weights=sound.mel_weights(shape)[found[0].argmax()])
    assert abs(centre - 1000) < 25 and found.shape == (7, 128)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_band_hears_something_between_its_edges(shape):
    weights, bins = sound.mel_weights(shape), np.arange(shape.window // 2 + 1) * sound.RATE / shape.window
    heard = bins[weights.max(0) > 0]
    assert weights.max(1).min() > 0 and shape.low <= heard.min() and heard.max() <= shape.high


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("level", [30000, 3000, 100])
def test_c_computes_what_python_does(compiled, level, shape):
    random = np.random.default_rng(level)
    time = np.arange(16000) / sound.RATE
    mixed = 0.5 * random.standard_normal(16000) / 3 + 0.5 * np.sin(2 * np.pi * 440 * time)
    samples = np.clip(level * mixed, -32768, 32767).astype(np.int16)
    exact, found = sound.log_mel(samples, shape), in_c(compiled, samples, shape)
    assert exact.shape == found.shape and np.abs(exact - found).max() < 0.01


def test_silence_is_the_floor(compiled):
    silence, shape = np.zeros(2048, np.int16), SHAPES["machine"]
    assert np.allclose(sound.log_mel(silence, shape), -100) and np.allclose(
        in_c(compiled, silence, shape), -100
    )


def test_a_long_recording_is_computed_in_pieces():
    shape, random = sound.Shape(64, 32, 8), np.random.default_rng(0)
    samples = random.integers(-9999, 9999, 32 * 5000).astype(np.int16)
    found = sound.log_mel(samples, shape)
    assert len(found) == 4999 and np.array_equal(found[4900:], sound.log_mel(samples[4900 * 32 :], shape))
