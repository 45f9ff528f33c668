"""Reductions equal the oracle, case by case."""

from __future__ import annotations

import pytest

from openneutron.litert.ir import Builtin, Op
from tests.kernels.harness import Maker, check_cases


def _reduce(make: Maker, kind: Builtin, same: bool, shape: list[int], axes: list[int]) -> Op:
    source = make.tensor(shape)
    keep = bool(make.size(0, 1))
    kept = [1 if a in axes else d for a, d in enumerate(shape) if keep or a not in axes]
    out = make.tensor(kept, source.quant if same else make.quant())
    given = [a - len(shape) if make.size(0, 1) else a for a in axes]
    return Op(kind, [source, make.ints(given)], [out], {"keepDims": keep})


def _random(make: Maker) -> tuple[list[int], list[int]]:
    shape = [make.size(1, 8) for _ in range(make.size(1, 5))]
    axes = [a for a in range(len(shape)) if make.size(0, 1)] or [len(shape) - 1]
    return shape, axes


def mean(make: Maker) -> Op:
    return _reduce(make, Builtin.MEAN, bool(make.size(0, 1)), *_random(make))


def mean_over_image(make: Maker) -> Op:
    side = make.pick(4, 12, 12, 60)
    shape = [make.size(1, 2), make.size(1, side), make.size(1, side), make.size(1, 30)]
    return _reduce(make, Builtin.MEAN, bool(make.size(0, 1)), shape, make.pick([1, 2], [2, 1]))


def extremum(make: Maker) -> Op:
    return _reduce(make, make.pick(Builtin.REDUCE_MAX, Builtin.REDUCE_MIN), True, *_random(make))


def arg_max(make: Maker) -> Op:
    source = make.tensor([make.size(1, 9) for _ in range(make.size(1, 4))])
    axis = make.size(0, source.rank - 1)
    shape = [d for a, d in enumerate(source.shape) if a != axis]
    out = make.tensor(shape, None, "int32")
    return Op(Builtin.ARG_MAX, [source, make.ints(axis)], [out], {"outputType": 2})


CASES = (
    (mean, 1000),
    (mean_over_image, 500),
    (extremum, 500),
    (arg_max, 200),
)


@pytest.mark.parametrize(("case", "count"), CASES)
def test_equals_oracle(case, count):
    check_cases(case, count, seed=8)
