"""Masks that are inputs, or come from the CPU: what chooses by them is delegated, as exact as LiteRT."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from openneutron.litert.file import read
from openneutron.litert.reference import run_reference
from openneutron.pipeline import compile_model
from openneutron.run.native import NativeModel
from openneutron.run.program import load_program
from tests.lowering import Wrapped

INF = float("inf")
X = torch.linspace(-3, 3, 256).reshape(1, 4, 8, 8).roll(5, 3)
MASK = torch.arange(256).reshape(1, 4, 8, 8) % 3 > 0
ROWS = torch.arange(8).reshape(1, 1, 8, 1) % 2 > 0
KERNEL = torch.linspace(-1, 1, 16).reshape(4, 4, 1, 1)

CASES = {
    "where": (lambda x, m: torch.where(m, x, x * 0.5 + 1), (X, MASK)),
    "where, broadcast": (lambda x, m: torch.where(m, torch.relu(x), x * 2), (X, ROWS)),
    "where, a number": (lambda x, m: torch.where(m, x, 0.25) + 1, (X, MASK)),
    "masked fill": (lambda x, m: (x * 2).masked_fill(m, -1.0), (X, MASK)),
    "masked fill before softmax": (lambda x, m: torch.softmax((x * 2).masked_fill(m, -INF), 1), (X, MASK)),
    "a product with a mask": (lambda x, m: torch.relu(x) * m, (X, MASK)),
    "two masks": (lambda x, m, n: torch.where(torch.logical_or(m, n), x, -x), (X, MASK, ROWS)),
    "where, between convolutions": (
        lambda x, m: torch.where(m, F.conv2d(x, KERNEL), F.conv2d(x + 1, KERNEL)),
        (X, MASK),
    ),
    "a mask of one channel between convolutions": (
        lambda x, m: torch.where(m, F.conv2d(x, KERNEL), F.conv2d(x + 1, KERNEL)),
        (X, MASK[:, :1]),
    ),
    "attention": (
        lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m),
        (X, torch.ones(1, 1, 8, 8).tril().bool()),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mask_that_is_an_input(name):
    function, inputs = CASES[name]
    program = compile_model(Wrapped(function), inputs, calibration=[inputs])
    assert (len(program.partitions), program.rejected) == (1, ())
    (partition,) = program.partitions
    graph = read(partition.litert)
    rng = np.random.default_rng(0)
    values = [
        rng.integers(0, 2, t.shape).astype(bool)
        if t.dtype == "bool"
        else rng.integers(-128, 128, t.shape).astype(t.dtype)
        for t in graph.inputs
    ]
    assert any(value.dtype == bool for value in values)
    got = NativeModel(partition.converted.microcode, partition.converted.weights).run(values)
    for mine, reference in zip(got, run_reference(graph, values), strict=True):
        np.testing.assert_array_equal(mine, reference)


def test_a_mask_that_the_cpu_makes_of_lengths():
    def function(x, lengths):
        return torch.relu(x) * (torch.arange(8)[None] < lengths[:, None])

    inputs = (torch.linspace(-2, 2, 16).reshape(2, 8), torch.tensor([3, 5]))
    program = compile_model(Wrapped(function), inputs, calibration=[inputs])
    assert len(program.partitions) == 1
    assert not [r for r in program.rejected if "mul" in r.op or "relu" in r.op]
    (got,) = load_program(program.pte).run((inputs[0], torch.tensor([8, 1])))
    wanted = function(inputs[0], torch.tensor([8, 1])).numpy()
    np.testing.assert_allclose(got, wanted, atol=4 / 255)


@pytest.mark.parametrize("fill", ["where", "masked fill", "attention"])
def test_a_mask_that_the_cpu_makes_of_integers(fill):
    """Padding is told by an identifier: the comparison is the CPU's, what is chosen by it the NPU's."""

    def function(x, ids):
        if fill == "where":
            return torch.where(ids[:, None] > 0, x * 2, 0.0)
        if fill == "masked fill":
            return (x * 2).masked_fill(ids[:, None] == 0, -1.0)
        return torch.softmax((x @ x.transpose(1, 2)).masked_fill((ids == 0)[:, None], -INF), -1)

    inputs = (X.reshape(1, 32, 8)[:, :8] if fill == "attention" else X[:, :, 0], torch.arange(8)[None] % 3)
    program = compile_model(Wrapped(function), inputs, calibration=[inputs])
    of_masks = ("gt.Scalar", "eq.Scalar", "unsqueeze_copy.default", "_clone_dim_order.default")
    assert not [r for r in program.rejected if not r.op.endswith(of_masks)]
    assert program.summary()["npu_nodes"] > 0


@pytest.mark.parametrize(
    ("spelling", "value"),
    [("added", -INF), ("added", -1e9), ("chosen", -INF), ("chosen", -1e9), ("a layer of attention", -INF)],
)
def test_padding_that_is_an_input_is_forbidden(spelling, value):
    """What is added to the scores is made of the mask: -inf beside 0, which one int8 range cannot hold."""
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def function(x, padded):
        if spelling == "a layer of attention":
            return layer(x, x, x, padded)[0]
        zeros = torch.zeros(1, 5)
        mask = zeros.masked_fill(padded, value) if spelling == "added" else torch.where(padded, value, zeros)
        return torch.softmax(x @ x.transpose(1, 2) + mask[:, None], -1) @ x

    def sample(length):
        return torch.randn(1, 5, 8), torch.arange(5)[None] >= length

    program = compile_model(Wrapped(function), sample(5), calibration=[sample(n) for n in (5, 3, 1, 4)])
    loaded = load_program(program.pte)
    for length in (2, 3, 5):
        inputs = sample(length)
        (got,), wanted = loaded.run(inputs), function(*inputs).detach().numpy()
        assert np.square(got - wanted).mean() < np.square(wanted).mean() / 100  # 20 dB


def test_what_forbids_may_be_the_least_number_of_float32():
    def function(x, padded):
        return torch.softmax(x + padded * torch.finfo(torch.float32).min, -1)

    inputs = (torch.randn(1, 8), (torch.arange(8) > 5).float()[None])
    assert compile_model(Wrapped(function), inputs, calibration=[inputs]).partitions
