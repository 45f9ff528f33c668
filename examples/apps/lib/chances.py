"""How likely each of many things is, by scores; in single precision and steps that `chances.c` has too."""

from __future__ import annotations

import numpy as np

f = np.float32
HALVINGS, LEAST = 12, -60.0


def chances(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Softmax, within 1 % of each: e to the power of x is (1 + x / 4096) to the power of 4096."""
    x = np.maximum((scores - scores.max()) / f(temperature), f(LEAST))
    powers = f(1) + x / f(1 << HALVINGS)
    for _ in range(HALVINGS):
        powers = powers * powers
    return powers / np.add.accumulate(powers, dtype=f)[-1]


def best(values: np.ndarray, count: int) -> list[int]:
    """The likeliest, best first."""
    return [int(i) for i in np.argsort(-values, kind="stable")[:count]]


class Dice:
    """Xorshift, 32 bits: the same throws everywhere."""

    def __init__(self, seed: int):
        self.state = seed

    def throw(self) -> np.float32:
        """From 0 to 1."""
        self.state ^= self.state << 13 & 0xFFFFFFFF
        self.state ^= self.state >> 17
        self.state ^= self.state << 5 & 0xFFFFFFFF
        return f(self.state >> 8) / f(1 << 24)

    def pick(self, likely: np.ndarray) -> int:
        """One of many, the likely ones more often."""
        left = self.throw()
        for index, chance in enumerate(likely):
            if left < chance:
                return index
            left = left - chance
        return best(likely, 1)[0]  # what is left is a rounding error
