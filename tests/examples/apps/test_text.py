"""Regions and columns of text, in Python and C."""

from __future__ import annotations

import ctypes
from dataclasses import astuple

import numpy as np
import pytest

from examples.apps.lib.text import MOST, Region, distance, read_columns, regions
from tests.examples.apps.native import library


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return library("text", tmp_path_factory.mktemp("text"))


def in_c(compiled, likely: np.ndarray) -> list[tuple[int, ...]]:
    found, waiting = np.zeros((MOST, 5), np.int32), np.zeros(likely.size, np.int32)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (likely.copy(), waiting, found)]
    height, width = likely.shape
    count = compiled.text_regions(pointers[0], height, width, ctypes.c_float(0.3), *pointers[1:])
    return [tuple(row) for row in found[:count].tolist()]


def test_two_lines_of_words_are_read_in_order():
    likely = np.zeros((60, 100), np.float32)
    likely[30:36, 10:40] = 0.9
    likely[5:11, 60:90] = likely[6:12, 10:40] = 0.9
    likely[50, 5:9] = 0.9  # too small
    found = regions(likely, 0.3)
    assert [(r.line, r.left < 20) for r in found] == [(0, True), (0, False), (1, True)]
    assert found[0] == Region(7, 3, 43, 15, 0)


@pytest.mark.parametrize("seed", range(4))
def test_c_finds_what_python_does(compiled, seed):
    random = np.random.default_rng(seed)
    likely = np.zeros((96, 160), np.float32)
    for _ in range(30 + 30 * seed):  # some touch
        x, y, w, h = (int(random.integers(0, most)) for most in (150, 90, 30, 9))
        likely[y : y + h, x : x + w] = random.uniform(0.1, 1)
    likely[random.random(likely.shape) < 0.02] = 0.9
    found = regions(likely, 0.3)
    assert in_c(compiled, likely) == [astuple(r) for r in found] and len(found) > 3


def test_c_reads_what_python_does(compiled):
    scores = np.random.default_rng(0).integers(0, 3, (40, 7)).astype(np.float32)
    found = np.zeros(40, np.int32)
    pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (scores, found)]
    count = compiled.text_read_columns(pointers[0], 40, 7, pointers[1])
    assert found[:count].tolist() == read_columns(scores) and count > 5


def test_a_blank_tells_two_equal_letters_apart():
    assert read_columns(np.eye(4)[[0, 2, 2, 0, 2, 3, 3, 1]]) == [2, 2, 3, 1]


def test_distance_is_levenshtein():
    assert [distance("kitten", "sitting"), distance("", "ab"), distance("same", "same")] == [3, 2, 0]
