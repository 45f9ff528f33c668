"""Recordings that are made up, what is said to be in them, and what is counted as heard."""

from __future__ import annotations

import numpy as np
import pytest

from examples.apps.lib.recordings import Part, machine, music, recording, sentences
from examples.apps.lib.sound import RATE
from examples.apps.voice.app import FRAME, PAUSE, speech_of
from examples.apps.wakeword.app import LATE, SHAPE, Heard, best_threshold, judge, targets


def test_sentences_of_the_test_are_read_in_no_training():
    training, held_out = sentences(False), sentences(True)
    assert not set(training) & set(held_out) and min(len(training), len(held_out)) > 100


def test_parts_are_where_they_are_said_to_be():
    random, tone = np.random.default_rng(0), np.float32(0.5 * np.sin(np.arange(RATE) / 5))
    samples, parts = recording(random, [("a", tone), ("b", tone[:8000])], lambda: 0.25, (-60, -50))
    assert [(p.kind, p.begin, p.end) for p in parts] == [("a", 4000, 20000), ("b", 24000, 32000)]
    outside = np.delete(samples, np.r_[4000:20000, 24000:32000]) / 32768
    assert 0.5e-3 < outside.std() < 5e-3 and samples.dtype == np.int16
    assert np.abs(samples[4000:20000] / 32768 - tone).max() < 0.03


@pytest.mark.parametrize("make", [music, machine])
def test_other_sounds_are_heard_all_along_and_the_same_for_a_seed(make):
    found = [make(np.random.default_rng(seed), 3.0) for seed in (1, 1, 2)]
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    levels = found[0].reshape(6, -1).std(1)
    assert len(found[0]) == 3 * RATE and levels.min() > 0.02 * levels.max() > 0


def test_a_short_pause_belongs_to_a_sentence():
    sound = np.ones(60 * FRAME, np.float32)
    sound[10 * FRAME : (9 + PAUSE) * FRAME] = sound[30 * FRAME : (40 + PAUSE) * FRAME] = 0
    inside = speech_of(Part("speech", 5 * FRAME, sound), 80)
    assert np.flatnonzero(np.diff(inside.astype(int))).tolist() == [4, 34, 44 + PAUSE, 64]


@pytest.fixture
def two_words():
    """An hour with two wake words, the first from frame 100 to frame 150."""
    parts = [Part("wake", 100 * SHAPE.hop, np.zeros(50 * SHAPE.hop, np.float32)),
             Part("near", 300 * SHAPE.hop, np.zeros(50 * SHAPE.hop, np.float32)),
             Part("wake", 500 * SHAPE.hop, np.zeros(50 * SHAPE.hop, np.float32))]  # fmt: skip
    return Heard(np.zeros(3600 * RATE, np.int16), np.zeros((180000, 40), np.float32), parts)


def test_what_is_heard_is_counted(two_words):
    heard = judge(two_words, [140, 150 + LATE, 550 + LATE + 1, 320])
    assert (heard.heard, heard.alarms) == (0.5, 2.0)  # a word twice is no alarm, one too late is
    assert judge(two_words, []).alarms == judge(two_words, []).heard == 0


def test_the_threshold_is_the_lowest_without_an_alarm(two_words):
    scores = np.full(180000, -9, np.float32)
    scores[140:160] = scores[540:560] = 4
    scores[320:340] = 1.6
    assert best_threshold(two_words, scores) == 1.75


def test_a_network_is_to_say_the_word_when_it_ends(two_words):
    wanted, matters = targets(two_words)
    assert np.flatnonzero(wanted[:400]).tolist() == list(range(148, 160))
    assert (
        matters[:125].all()
        and not matters[125:148].any()
        and matters[148:160].all()
        and matters[174:300].all()
    )
