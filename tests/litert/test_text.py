"""Graphs as text: what is printed is read back to the last bit, and what is something else is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from openneutron.litert.ir import DTYPES, Builtin, Graph, Op, Quant, Tensor
from tests.compiler.graphs import random_graph
from tests.litert_graphs import graphs


def content(graph: Graph) -> list[Any]:
    """All that a graph is, without its text: tensors by number."""
    tensors = graph.tensors()
    number = {t: i for i, t in enumerate(tensors)}

    def numbers(some: list[Any]) -> list[int | None]:
        return [None if t is None else number[t] for t in some]

    return [
        graph.name,
        numbers(graph.inputs),
        numbers(graph.outputs),
        [(t.name, t.shape, t.dtype, t.quant, t.data is None or t.array.tobytes()) for t in tensors],
        [(o.key, o.kind, numbers(o.inputs), numbers(o.outputs), o.options, o.origin) for o in graph.ops],
    ]


def assert_read_back(graph: Graph) -> None:
    again = Graph.parse(str(graph))
    assert content(again) == content(graph)
    assert str(again) == str(graph)


@settings(max_examples=20)
@given(graphs())
def test_lowered_graphs_are_read_back(graph: Graph) -> None:
    assert_read_back(graph)


@pytest.mark.parametrize("seed", range(10))
def test_networks_are_read_back(seed: int) -> None:
    assert_read_back(random_graph(seed, 15))


NAMES = st.one_of(st.text(max_size=12), st.sampled_from(["x", "a.b", "0", "-", "a b", "é", '"', "return"]))
SCALES = st.floats(2.0**-60, 2.0**60, width=32)
VALUES = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=8) | st.binary(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)  # fmt: skip
OPTIONS = st.dictionaries(st.from_regex(r"[a-z][a-zA-Z0-9]{2,8}X", fullmatch=True), VALUES, max_size=3)


@st.composite
def tensors(draw: st.DrawFn, name: str, is_const: bool = False) -> Tensor:
    shape = tuple(draw(st.lists(st.integers(0 if is_const else 1, 5), max_size=3)))
    dtype = draw(st.sampled_from(list(DTYPES)))
    quant = None
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    if axes and draw(st.booleans()):
        axis = draw(st.sampled_from(axes))
        size = {"min_size": shape[axis], "max_size": shape[axis]}
        scales = draw(st.lists(SCALES, **size))
        quant = Quant(tuple(scales), tuple(draw(st.lists(st.integers(-128, 127), **size))), axis)
    elif dtype == "int8" or draw(st.booleans()):
        quant = Quant((draw(SCALES),), (draw(st.integers(-128, 127)),), draw(st.integers(0, 1)))
    data = draw(arrays.arrays(dtype, shape)) if is_const else None
    return Tensor(name, shape, dtype, quant, data)


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    """Graphs that compute nothing: any names, types, constants and options."""
    names = iter(draw(st.lists(NAMES, min_size=8, max_size=8, unique=True)))
    x, c, y, z = (draw(tensors(next(names), is_const=i == 1)) for i in range(4))
    kinds = {"kind": Builtin.ADD} if draw(st.booleans()) else {"kind": Builtin.CUSTOM, "custom_name": "é ("}
    origin = tuple(draw(st.lists(NAMES, max_size=2)))
    ops = [Op(inputs=[x, None, c, c], outputs=[y, z], options=draw(OPTIONS), origin=origin, **kinds)]
    return Graph([x], draw(st.sampled_from([[], [y], [z, c, z, x]])), ops, next(names))


@settings(max_examples=200)
@given(any_graphs())
def test_any_graph_is_read_back(graph: Graph) -> None:
    assert_read_back(graph)


X = "graph g(x: int8[2] 0.1@0)\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1, column 1: expected `graph `"),
        (X + "  return y", "line 2, column 10: expected a tensor with its type"),
        (X + "  y: int9[2] = RELU(x)\n  return y", "line 2, column 6: expected"),
        (
            X + "  y: int8[2] 0.1@0 = RELUX(x)\n  return y",
            "line 2, column 22: expected an operator of LiteRT",
        ),
        (X + "  x: int8[2] 0.1@0 = RELU(x)\n  return x", "line 2, column 3: expected another name than x"),
        (X + "  y: int8[2] 0.1@0 = RELU(x) with a=open('f')\n  return y", "column 35: expected options"),
        (X + "  y: int8[2] 0.1@0 = RELU(x) with **{1: 2}\n  return y", "column 35: expected options"),
        (X + "  y: int8[2] 0.1@0 = ADD(x, c: int8[2] 0.1@0 {1, 300})\n  return y", "int8 values of shape"),
        (X + "  y: int8[2] 0.1@0 = ADD(x, c: int8[2] 0.1@0 {1*99999999})\n  return y", "too many"),
        (X + "  y: int8[2] 0.1@0 = ADD(x, c: int8[99999999999999999999] {:eJw=})\n  return y", "values of"),
        (X + "  y: int8[2] 0.1@0 = ADD(x, c: int8[2] 0.1@0 {:!})\n  return y", "values of shape"),
        (X + "  return x, ", "line 2, column 11: expected"),
    ],
)
def test_other_text_is_refused_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^line \d+, column \d+: expected") as error:
        Graph.parse(text)
    assert problem in str(error.value)
