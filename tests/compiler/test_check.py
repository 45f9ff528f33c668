"""Damaged and wrongly made graphs: always a diagnostic, never another exception."""

from __future__ import annotations

import random

import numpy as np
import pytest

from openneutron.compiler.graph.check import SHAPE_RULES, check_graph
from openneutron.converter import find_converter
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import write
from openneutron.litert.ir import Builtin, Quant
from openneutron.litert.variables import OF_VARIABLES
from openneutron.options import CompileOptions
from openneutron.targets.table import find_target
from tests.compiler.graphs import random_graph

Q = Quant.per_tensor(0.1, 0)
POOL = {
    "padding": 1,
    "strideH": 1,
    "strideW": 1,
    "filterHeight": 2,
    "filterWidth": 2,
    "fusedActivationFunction": 0,
}


def wrong_pool(b, x):
    return b.op(Builtin.MAX_POOL_2D, [x], (1, 4, 4, 2), Q, options=POOL)


def zero_stride(b, x):
    return b.op(Builtin.MAX_POOL_2D, [x], (1, 3, 3, 2), Q, options={**POOL, "strideH": 0})


def unknown_activation(b, x):
    return b.op(Builtin.ADD, [x, x], x.shape, Q, options={"fusedActivationFunction": 4})


def slice_outside(b, x):
    return b.op(Builtin.SLICE, [x, b.ints((0, 3, 0, 0)), b.ints((1, 2, 4, 2))], (1, 2, 4, 2), Q)


def not_a_permutation(b, x):
    return b.op(Builtin.TRANSPOSE, [x, b.ints((0, 1, 1, 3))], (1, 4, 4, 2), Q)


def short_bias(b, x):
    weights = b.const(np.ones((3, 1, 1, 2), np.int8), Quant.per_tensor(0.1))
    bias = b.const(np.zeros(2, np.int32), Quant.per_tensor(0.01))
    options = {**{k: POOL[k] for k in ("padding", "strideH", "strideW")}, "fusedActivationFunction": 0}
    return b.op(Builtin.CONV_2D, [x, weights, bias], (1, 4, 4, 3), Q, options=options)


def too_large(b, x):
    return b.op(Builtin.TILE, [x, b.ints((1, 1 << 14, 1 << 14, 1))], (1, 1 << 16, 1 << 16, 2), Q)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            wrong_pool,
            "ON402: MAX_POOL_2D max_pool_2d: it declares [1, 4, 4, 2], its operands yield [1, 3, 3, 2]",
        ),
        (zero_stride, "window, stride and dilation must be positive"),
        (unknown_activation, "ON401: ADD add: its fused activation (number 4)"),
        (slice_outside, "is outside of [1, 4, 4, 2]"),
        (not_a_permutation, "[0, 1, 1, 3] is not a permutation"),
        (short_bias, "a bias of 2 for 3 channels"),
        (too_large, "8,589,934,592 bytes"),
    ],
)
def test_nonsense_is_named(make, says):
    b = Builder()
    x = b.input("x", (1, 4, 4, 2), quant=Q)
    graph = b.graph([make(b, x)])
    with pytest.raises(OpenNeutronError) as caught:
        check_graph(graph)
    assert says in str(caught.value)


def test_every_operator_has_a_shape_rule():
    # A custom one is what fusion makes; a file with one is refused. Variables are states behind the reader.
    known = {*SHAPE_RULES, Builtin.CUSTOM, *OF_VARIABLES}
    missing = [kind.name for kind in Builtin if kind not in known]
    assert not missing, f"no trait in litert/ir.py and no rule in SHAPE_RULES says what {missing} yields"


def test_space_to_batch_and_back():
    b = Builder()
    x = b.input("x", (1, 4, 6, 2), quant=Q)
    blocks, none = b.ints((2, 2)), b.const(np.zeros((2, 2), np.int32))
    pads = b.const(np.array([[1, 1], [0, 0]], np.int32))
    y = b.op(Builtin.SPACE_TO_BATCH_ND, [x, blocks, pads], (4, 3, 3, 2), Q)
    check_graph(b.graph([b.op(Builtin.BATCH_TO_SPACE_ND, [y, blocks, none], (1, 6, 6, 2), Q)]))


def test_flipped_bits_are_a_diagnostic_or_another_model():
    """A seeded fuzz; whatever the bytes are, nothing but an OpenNeutronError comes out."""
    rng = random.Random(0)
    files = [write(random_graph(seed, 8)) for seed in range(20)]
    refused = 0
    for _ in range(300):
        raw = bytearray(rng.choice(files))
        for _ in range(rng.choice([1, 1, 2, 4])):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        try:
            find_converter("open").convert(bytes(raw), CompileOptions(), find_target("imxrt700"))
        except OpenNeutronError:
            refused += 1
    assert refused > 100
