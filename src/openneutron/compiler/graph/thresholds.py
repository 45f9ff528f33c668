"""Monotone functions from float to int8 as the 255 places where they rise, found by the oracle.

log, exp, tanh and the like are not defined to the last bit, and no float has a table of 256 entries. But what
follows an expression ends in int8: a step function. If it is monotone, bisection over all floats finds where
the reference interpreter takes each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openneutron.litert.ir import Graph, Op, Tensor
from openneutron.litert.reference import Reference

_COUNT = 255
_LARGEST = 0x7F7FFFFF  # the bits of the largest float
_NAN = 0x7FC00000
_NEAR = 6  # floats beside each step that are tried


@dataclass(frozen=True, eq=False)
class Steps:
    """A step function from float to int8: where it rises to -127, ..., 127, and what NaN becomes.

    A falling function's steps are those of the negated argument.
    """

    at: np.ndarray
    rising: bool
    no_number: int


def steps_of(source: Tensor, chain: list[Op]) -> Steps | None:
    """The steps of the function that a chain of ops is; None if it is not monotone."""
    function = _Function(source, chain)
    ends = np.array([-_LARGEST, _LARGEST], np.int64)
    try:
        low, high = function(ends)
        no_number = int(function(np.array([_NAN]))[0])
    except (RuntimeError, ValueError):  # the reference kernels do not take it
        return None
    rising = bool(low <= high)

    def at(keys: np.ndarray) -> np.ndarray:
        return function(keys if rising else -keys)

    levels = np.arange(-127, 128)
    below, above = np.full(_COUNT, -_LARGEST - 1, np.int64), np.full(_COUNT, _LARGEST, np.int64)
    for _ in range(33):  # above: the smallest key known to reach the level; below: the largest known not to
        middle = (below + above) // 2
        reached = at(np.clip(middle, -_LARGEST, _LARGEST)) >= levels
        above = np.where(reached & (middle > below), middle, above)
        below = np.where(reached, below, middle)
    above = np.where(at(np.clip(above, -_LARGEST, _LARGEST)) >= levels, above, _LARGEST + 1)
    steps = _floats(np.minimum(above, _LARGEST + 1))
    return Steps(steps, rising, no_number) if _is_right(at, above, steps) else None


def _is_right(at: Callable[[np.ndarray], np.ndarray], keys: np.ndarray, steps: np.ndarray) -> bool:
    """Whether the steps say what the function yields: near each of them, and all over the floats."""
    powers = np.arange(0, _LARGEST, 1 << 19, dtype=np.int64)
    near = (keys[:, None] + np.arange(-_NEAR, _NEAR + 1)).reshape(-1)
    tried = np.unique(np.clip(np.concatenate([near, powers, -powers]), -_LARGEST, _LARGEST))
    tried = tried[: len(tried) // _COUNT * _COUNT].reshape(-1, _COUNT)
    for row in tried:
        expected = np.searchsorted(steps, _floats(row), side="right") - 128
        if not np.array_equal(at(row), expected):
            return False
    return True


def _floats(keys: np.ndarray) -> np.ndarray:
    """The floats of integers in the same order: 0 is 0, 1 the smallest positive number."""
    bits = np.where(keys < 0, -keys | 0x80000000, keys).astype(np.uint32)
    return bits.view(np.float32)


class _Function:
    """A chain of ops on 255 floats at a time, computed by the oracle."""

    def __init__(self, source: Tensor, chain: list[Op]):
        start = Tensor("x", (_COUNT,), "float32")
        standing, ops = {source: start}, []
        for number, op in enumerate(chain):
            inputs = [standing.get(t, t) if t is not None else None for t in op.inputs]
            output = Tensor(f"y{number}", (_COUNT,), op.output.dtype, op.output.quant)
            standing[op.output] = output
            ops.append(Op(op.kind, inputs, [output], op.options))
        self._reference = Reference(Graph([start], [ops[-1].output], ops))

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        padded = np.resize(_floats(keys), _COUNT)
        (result,) = self._reference.run([padded])
        return result[: len(keys)].astype(np.int64)
