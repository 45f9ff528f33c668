"""The IR's rules and the builder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder, Names
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor, constant
from openneutron.litert.perm import (
    compose,
    identity,
    inverse,
    moves_nothing,
    permute,
    reshaped_quant,
    to_first,
    to_last,
    transposed_constant,
)
from tests.litert_graphs import Q2, Naive, Q


def tensor(name: str, *shape: int, quant: Quant | None = Q) -> Tensor:
    return Tensor(name, shape, "int8", quant)


def relu(source: Tensor, target: Tensor) -> Op:
    return Op(Builtin.RELU, [source], [target])


X, Y, Z = tensor("x", 2, 3), tensor("y", 2, 3), tensor("z", 2, 3)
PERM = constant("perm", np.array([1, 0], np.int32))


def test_a_legal_graph_verifies_to_itself() -> None:
    graph = Graph([X], [Z], [relu(X, Y), relu(Y, Z)])
    assert graph.verify() is graph
    assert graph.producers() == {Y: graph.ops[0], Z: graph.ops[1]}
    assert graph.consumers() == {X: [graph.ops[0]], Y: [graph.ops[1]]}
    assert "y: int8[2,3] 0.05@-3 = RELU(x)" in str(graph)


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (Graph([X, X], [X], []), "an input is listed twice"),
        (Graph([PERM], [PERM], []), "input perm is a constant"),
        (Graph([X], [Z], [relu(Y, Z), relu(X, Y)]), "reads y before it is made"),
        (Graph([X], [X], [relu(X, X)]), "writes x, which is already defined"),
        (Graph([X], [Y], []), "output y is never made"),
        (Graph([X], [Y], [relu(X, tensor("x", 2, 3))]), "two tensors are named x"),
        (Graph([tensor("x", 2, quant=None)], [], []), "int8 without quantization"),
        (Graph([tensor("x", -1)], [], []), "negative dimension"),
        (Graph([Tensor("x", (2,), "int4")], [], []), "unknown type int4"),
        (Graph([tensor("x", 2, quant=Quant((0.0,), (0,)))], [], []), "not a positive number"),
        (Graph([tensor("x", 2, quant=Quant((1.0,), (0, 1)))], [], []), "1 scales and 2 zero points"),
        (Graph([tensor("x", 2, quant=Quant((1.0, 2.0, 3.0), (0, 0, 0)))], [], []), "3 scales for axis 0"),
        (
            Graph([X], [Y], [Op(Builtin.TRANSPOSE, [X, PERM], [Y])]),
            r"permutation \[1, 0\] of \(2, 3\) is not \(2, 3\)",
        ),
        (
            Graph([X], [Z], [Op(Builtin.RESHAPE, [X], [tensor("z", 6, quant=Q2)])]),
            "changes type or quantization",
        ),
        (Graph([X], [], [Op(Builtin.RESHAPE, [X], [tensor("z", 5)])]), "changes the number of elements"),
    ],
)
def test_an_illegal_graph_says_why(graph: Graph, problem: str) -> None:
    with pytest.raises(OpenNeutronError, match=problem):
        graph.verify()


# ---- permutations


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_permutations_compose_and_invert_as_numpy_does(a: list[int], b: list[int]) -> None:
    first, second = tuple(a), tuple(b)
    x = np.arange(2 * 3 * 4 * 5 * 6).reshape(2, 3, 4, 5, 6)
    np.testing.assert_array_equal(x.transpose(first).transpose(second), x.transpose(compose(first, second)))
    assert compose(first, inverse(first)) == identity(5)
    assert permute(x.shape, first) == x.transpose(first).shape


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.data())
def test_moves_nothing_is_what_memory_says(shape: list[int], data: st.DataObject) -> None:
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    x = np.arange(int(np.prod(shape))).reshape(shape)
    assert moves_nothing(shape, perm) == np.array_equal(x.transpose(perm).ravel(), x.ravel())


@pytest.mark.parametrize("rank", range(6))
def test_conversions_are_inverse(rank: int) -> None:
    assert compose(to_last(rank), to_first(rank)) == identity(rank)


def test_a_per_axis_quantization_follows_its_axis() -> None:
    quant = Quant.per_axis(np.array([1.0, 2.0, 3.0]), axis=1)
    moved = transposed_constant(constant("w", np.zeros((2, 3, 4), np.int8), quant), (2, 0, 1), "m").quant
    assert moved is not None and moved.axis == 2
    assert reshaped_quant(quant, (2, 3, 4), (2, 1, 3, 4)) == Quant(quant.scale, quant.zero_point, 2)
    with pytest.raises(ValueError, match="breaks up quantized axis 1"):
        reshaped_quant(quant, (2, 3, 4), (6, 4))


# ---- the builder


def test_names_are_unique() -> None:
    names = Names(["x", "x_1"])
    assert [names.fresh("x"), names.fresh("x"), names.fresh("y")] == ["x_2", "x_3", "y"]


def test_origins_nest() -> None:
    b = Naive()
    x = b.image()
    with b.origin("outer"):
        x = b.relu(x)
        with b.origin("inner", "too"):
            x = b.relu(x)
        x = b.relu(x)
    assert [op.origin for op in b.ops] == [("outer",), ("inner", "too"), ("outer",)]
    assert [op.output.name for op in b.ops] == ["outer", "too", "outer_1"]


def test_what_changes_nothing_adds_nothing() -> None:
    b = Naive()
    x = b.image((1, 4, 6))
    assert b.reshape(x, (1, 4, 6)) is x
    assert b.transpose(x, (0, 1, 2)) is x
    assert b.requantize(x, Q) is x
    assert b.to_channels_last(b.image((1, 4), "y")).name == "y"
    assert not b.ops


def test_constants_are_moved_at_once() -> None:
    b = Builder()
    table = b.const(np.arange(24, dtype=np.int32).reshape(1, 2, 3, 4))
    last = b.to_channels_last(table)
    np.testing.assert_array_equal(last.array, table.array.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(b.to_channels_first(last).array, table.array)
    assert b.reshape(table, (24,)).shape == (24,)
    assert not b.ops


def test_quantize_wants_float() -> None:
    b = Naive()
    with pytest.raises(AssertionError, match="requantize"):
        b.quantize(b.image(), Q2)
    y = b.quantize(b.dequantize(b.inputs[0]), Q2)
    assert [op.kind for op in b.graph([y]).ops] == [Builtin.DEQUANTIZE, Builtin.QUANTIZE]


def test_an_unfinished_graph_is_refused() -> None:
    b = Naive()
    b.image()
    with pytest.raises(OpenNeutronError, match="ON301: test: output y is never made"):
        b.graph([Y])
