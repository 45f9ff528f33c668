"""Chances by scores, and throwing dice, in Python and C."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from examples.apps.lib.chances import Dice, best, chances
from tests.examples.apps.native import library


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return library("chances", tmp_path_factory.mktemp("chances"))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_c_says_what_python_does(compiled, temperature):
    scores = np.round(np.random.default_rng(0).normal(0, 4, 300), 1).astype(np.float32)
    scores[7] = scores.max()  # two of one score: the first is the better
    likely, found = chances(scores, temperature), np.zeros(300, np.float32)
    compiled.chances(pointer(scores), 300, ctypes.c_float(temperature), pointer(found))
    assert np.array_equal(found, likely)
    first = np.zeros(5, np.int32)
    compiled.chances_best(pointer(likely), 300, 5, pointer(first))
    assert first.tolist() == best(likely, 5) and 7 in best(likely, 2)
    dice, state = Dice(5), ctypes.c_uint32(5)
    picked = [dice.pick(likely) for _ in range(200)]
    assert picked == [compiled.chances_pick(pointer(likely), 300, ctypes.byref(state)) for _ in range(200)]


def test_chances_are_those_of_softmax():
    scores = np.random.default_rng(1).normal(0, 3, 1000).astype(np.float32)
    exact = np.exp(scores.astype(np.float64) - scores.max())
    exact /= exact.sum()
    likely = chances(scores)
    assert np.abs(likely[exact > 1e-4] / exact[exact > 1e-4] - 1).max() < 0.01
    assert likely.sum() == pytest.approx(1, abs=1e-4)
    assert chances(np.float32([0, -1e9]))[1] < 1e-20


def test_dice_pick_by_chance():
    dice, likely = Dice(1), np.float32([0.1, 0.6, 0.0, 0.3])
    counts = np.bincount([dice.pick(likely) for _ in range(4000)], minlength=4) / 4000
    assert np.abs(counts - likely).max() < 0.03 and counts[2] == 0
