"""Placements by an independent checker: nothing that exists at the same time overlaps."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openneutron.compiler.memory.place import ALIGNMENT, Apart, Block, aligned, most_live, place


@st.composite
def blocks(draw, most=24):
    steps = draw(st.integers(1, 30))
    result = []
    for _ in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, steps - 1))
        last = draw(st.integers(first, min(steps, first + 6)))
        result.append(Block(draw(st.integers(0, 5000)), first, last))
    return result


def check(items, placement):
    """Step by step, byte ranges of what exists are disjoint, aligned and inside the area."""
    assert len(placement.offsets) == len(items)
    for step in range(max((b.last for b in items), default=0) + 1):
        ranges = sorted((o, o + b.nbytes) for o, b in zip(placement.offsets, items, strict=True)
                        if b.first <= step <= b.last and b.nbytes)  # fmt: skip
        for (_, end), (begin, _) in itertools.pairwise(ranges):
            assert end <= begin
    for offset, block in zip(placement.offsets, items, strict=True):
        assert offset % ALIGNMENT == 0 and offset >= 0
        assert offset + block.nbytes <= placement.nbytes
    assert placement.bound <= placement.nbytes


@settings(max_examples=60)
@given(blocks())
def test_nothing_that_lives_together_overlaps(items):
    placement = place(items)
    check(items, placement)
    assert placement.bound >= most_live(items)
    assert place(items) == placement


def test_a_chain_reaches_the_bound():
    sizes = [4096, 8192, 1024, 16, 5000, 700]
    placement = place([Block(s, i, i + 1) for i, s in enumerate(sizes)])
    assert placement.nbytes == placement.bound == 4096 + 8192


def test_the_solver_closes_a_gap_that_best_fit_leaves():
    rng = random.Random(392)
    items = []
    for _ in range(rng.randint(20, 60)):
        first = rng.randint(0, 24)
        items.append(Block(16 * rng.randint(1, 40), first, min(25, first + rng.randint(0, 9))))
    placement = place(items)
    check(items, placement)
    assert placement.method == "CP-SAT"
    assert placement.nbytes == placement.bound


@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one(count):
    placement = place([Block(100, 0, 0)] * count)
    assert placement.nbytes == placement.bound == 112 * count


@settings(max_examples=60)
@given(st.lists(st.integers(16, 3000), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_a_pair_may_overlap_as_far_as_it_says(sizes, rng):
    """A chain whose links hand memory on, as a cascade does with input rows that are done."""
    items = [Block(size, i, i + 1) for i, size in enumerate(sizes)]
    rules = {
        (i, i + 1): Apart(-rng.randint(0, sizes[i + 1]), rng.randint(0, sizes[i]))
        for i in range(len(sizes) - 1)
        if rng.random() < 0.7
    }
    placement = place(items, rules)
    for i, (first, second) in enumerate(itertools.pairwise(placement.offsets)):
        low, high = -aligned(sizes[i + 1]), aligned(sizes[i])
        if (rule := rules.get((i, i + 1))) is not None:
            low, high = max(low, rule.low), min(high, rule.high)
        assert second - first <= low or second - first >= high
    assert placement.nbytes == max(o + aligned(s) for o, s in zip(placement.offsets, sizes, strict=True))
    assert placement.bound <= placement.nbytes <= place(items).nbytes


def test_an_overlap_saves_what_it_allows():
    items = [Block(8000, 0, 1), Block(8000, 1, 2), Block(8000, 2, 3)]
    rules = {(0, 1): Apart(-1600, 1600), (1, 2): Apart(-1600, 1600)}
    assert place(items, rules).nbytes == 9600  # down, then up again
