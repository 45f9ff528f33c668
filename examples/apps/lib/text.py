"""Text: where lines are on a map of likelihoods, what columns of characters say; `text.c` has the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST, LEAST_PIXELS, LEAST_SIDE = 64, 12, 3


@dataclass
class Region:
    """Pixels from left to right and top to bottom, the ends not among them; `line` counts from the top."""

    left: int
    top: int
    right: int
    bottom: int
    line: int = 0


def regions(likely: np.ndarray, least: float) -> list[Region]:
    """Connected pixels that are text, as rectangles with a margin, in the order of reading."""
    height, width = likely.shape
    left_over = likely > np.float32(least)
    found: list[Region] = []
    for y, x in zip(*np.nonzero(left_over), strict=True):
        if not left_over[y, x] or len(found) == MOST:
            continue
        region, pixels, waiting = Region(x, y, x + 1, y + 1), 0, [(int(y), int(x))]
        left_over[y, x] = False
        while waiting:
            row, column = waiting.pop()
            pixels += 1
            region.left, region.right = min(region.left, column), max(region.right, column + 1)
            region.top, region.bottom = min(region.top, row), max(region.bottom, row + 1)
            for r, c in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if 0 <= r < height and 0 <= c < width and left_over[r, c]:
                    left_over[r, c] = False
                    waiting.append((r, c))
        if pixels >= LEAST_PIXELS and region.bottom - region.top >= LEAST_SIDE:
            found.append(_with_margin(region, height, width))
    return _in_order(found)


def _with_margin(region: Region, height: int, width: int) -> Region:
    """The network marks the middle of letters: the rest is as wide as the area to the circumference."""
    w, h = region.right - region.left, region.bottom - region.top
    margin = 3 * w * h // (4 * (w + h))
    left, top = max(0, region.left - margin), max(0, region.top - margin)
    return Region(int(left), int(top), int(min(width, region.right + margin)),
                  int(min(height, region.bottom + margin)))  # fmt: skip


def _in_order(found: list[Region]) -> list[Region]:
    """From the top, and within a line from the left; a line goes on while middles lie in its first region."""
    found.sort(key=lambda r: r.top + r.bottom)
    first: Region | None = None
    for region in found:
        if first is None or region.top + region.bottom >= 2 * first.bottom:
            region.line = 0 if first is None else first.line + 1
            first = region
        else:
            region.line = first.line
    return sorted(found, key=lambda r: (r.line, r.left))


def read_columns(scores: np.ndarray) -> list[int]:
    """Of (columns, characters) the likeliest of each; repeats and the first, which is none, dropped."""
    best = scores.argmax(1)
    return [int(c) for i, c in enumerate(best) if c != 0 and (i == 0 or best[i - 1] != c)]


def distance(wanted: str, found: str) -> int:
    """How many characters must be put in, taken out or changed."""
    row = list(range(len(found) + 1))
    for i, a in enumerate(wanted, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(found, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]
