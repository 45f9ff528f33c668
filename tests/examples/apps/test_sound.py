"""The features of sound, in Python and C."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from examples.apps.lib import sound
from tests.examples.apps.native import library


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    found = library("sound", tmp_path_factory.mktemp("sound"))
    found.sound_prepare()
    return found


def in_c(compiled, samples: np.ndarray) -> np.ndarray:
    rows = []
    for start in range(0, len(samples) - sound.WINDOW + 1, sound.HOP):
        frame, row = (
            np.ascontiguousarray(samples[start : start + sound.WINDOW]),
            np.zeros(sound.BANDS, np.float32),
        )
        compiled.sound_log_mel(frame.ctypes.data_as(ctypes.c_void_p), row.ctypes.data_as(ctypes.c_void_p))
        rows.append(row)
    return np.stack(rows)


def test_a_tone_is_loudest_in_its_band():
    time = np.arange(4096) / sound.RATE
    found = sound.log_mel((8000 * np.sin(2 * np.pi * 1000 * time)).astype(np.int16))
    centre = np.average(np.arange(513) * 15.625, weights=sound.mel_weights()[found[0].argmax()])
    assert abs(centre - 1000) < 25 and found.shape == (7, 128)
    assert sound.mel_weights().sum(1).min() > 0


@pytest.mark.parametrize("level", [30000, 3000, 100])
def test_c_computes_what_python_does(compiled, level):
    random = np.random.default_rng(level)
    time = np.arange(16000) / sound.RATE
    mixed = 0.5 * random.standard_normal(16000) / 3 + 0.5 * np.sin(2 * np.pi * 440 * time)
    samples = np.clip(level * mixed, -32768, 32767).astype(np.int16)
    exact, found = sound.log_mel(samples), in_c(compiled, samples)
    assert np.abs(exact - found).max() < 0.01


def test_silence_is_the_floor(compiled):
    silence = np.zeros(2048, np.int16)
    assert np.allclose(sound.log_mel(silence), -100) and np.allclose(in_c(compiled, silence), -100)
