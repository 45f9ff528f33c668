"""From likelihoods and scores to events, in Python and C."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from examples.apps.lib.decisions import marked, smoothed, speech, wakes
from tests.examples.apps.native import library


class Speech(ctypes.Structure):
    _fields_ = [("enter", ctypes.c_float), ("leave", ctypes.c_float)] + [
        (name, ctypes.c_int32) for name in ("quiet", "around", "frame", "began", "waiting")
    ] + [("speaking", ctypes.c_bool)]  # fmt: skip


class Segment(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int32), ("behind", ctypes.c_int32)]


class Wake(ctypes.Structure):
    _fields_ = [("threshold", ctypes.c_float), ("recent", ctypes.c_float * 32)] + [
        (name, ctypes.c_int32) for name in ("count", "rest", "frame", "awake")
    ]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    found = library("decisions", tmp_path_factory.mktemp("decisions"))
    found.speech_new.restype, found.wake_new.restype = Speech, Wake
    for name in ("speech_next", "speech_end", "wake_next"):
        getattr(found, name).restype = ctypes.c_bool
    return found


def speech_in_c(compiled, likely, enter, leave, quiet, around):
    state, found, said = (
        compiled.speech_new(ctypes.c_float(enter), ctypes.c_float(leave), quiet, around),
        Segment(),
        [],
    )
    for value in likely.tolist():
        if compiled.speech_next(ctypes.byref(state), ctypes.c_float(value), ctypes.byref(found)):
            said.append((found.first, found.behind))
    if compiled.speech_end(ctypes.byref(state), ctypes.byref(found)):
        said.append((found.first, found.behind))
    return said


def test_speech_lasts_through_short_pauses():
    likely = np.float32([0, 0.4, 0.6, 0.4, 0.3, 0.3, 0.6, 0.3, 0.3, 0.3, 0.4, 0.1])
    assert speech(likely, 0.5, 0.35, 3, 0) == [(2, 7)]  # 0.4 after it ended is not enough to begin anew
    assert speech(likely, 0.5, 0.35, 2, 0) == [(2, 4), (6, 7)]
    assert speech(likely, 0.5, 0.35, 3, 1) == [(1, 8)]


def test_a_recording_may_begin_and_end_with_speech():
    assert speech(np.float32([1, 1, 1]), 0.5, 0.35, 4, 2) == [(0, 3)]
    assert speech(np.float32([1, 1, 0]), 0.5, 0.35, 4, 0) == [(0, 2)]
    assert speech(np.zeros(0), 0.5, 0.35, 4, 0) == []
    assert marked([(0, 2), (3, 4)], 5).tolist() == [True, True, False, True, False]


@pytest.mark.parametrize("seed", range(4))
def test_c_finds_the_speech_that_python_does(compiled, seed):
    random = np.random.default_rng(seed)
    likely = np.clip(np.convolve(random.uniform(-0.5, 1.5, 3000), np.ones(3) / 3, "same"), 0, 1).astype(
        np.float32
    )
    rule = 0.6, 0.45, 1 + seed, seed
    found = speech(likely, *rule)
    assert speech_in_c(compiled, likely, *rule) == found and len(found) > 20


def test_a_word_is_heard_once_until_it_may_be_said_again():
    scores = np.float32([-9, -9, 4, 4, 4, 4, -9, 4, 4, 4])
    assert wakes(scores, 3, 2, 4) == [3, 8]
    assert wakes(scores, 3, 2, 2) == [3, 5, 8]
    assert wakes(scores, 3, 4, 2) == [5]
    assert wakes(scores[2:], 3, 3, 3) == [2, 7]  # and not before so many scores were seen
    assert wakes(scores[:1], 3, 2, 2) == [] and smoothed(scores, 2)[0] == -np.inf


@pytest.mark.parametrize("count", [1, 6, 32])
def test_c_hears_the_words_that_python_does(compiled, count):
    scores = np.random.default_rng(count).normal(0, 4, 5000).astype(np.float32)
    threshold = float(np.quantile(smoothed(scores, count)[count:], 0.9)) / count
    state = compiled.wake_new(ctypes.c_float(threshold), count, 20)
    heard = [
        i for i, v in enumerate(scores.tolist()) if compiled.wake_next(ctypes.byref(state), ctypes.c_float(v))
    ]
    assert heard == wakes(scores, threshold, count, 20) and len(heard) > 50
