"""Writing and reading .tflite files."""

from __future__ import annotations

from contextlib import suppress

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from hypothesis import given, settings
from hypothesis import strategies as st

from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import options_name, read, write
from openneutron.litert.ir import Builtin, Graph, Quant, Tensor, Trait, kinds
from openneutron.litert.reference import run_reference
from tests.litert_graphs import Naive, Q, graphs, inputs_for


def spec(t: Tensor | None) -> tuple[object, ...] | None:
    if t is None:
        return None
    return t.name, t.shape, t.dtype, t.quant, None if t.data is None else t.data.tobytes()


def assert_alike(a: Graph, b: Graph) -> None:
    """The same graph, but for options that the file spells out because they have their default value."""
    assert a.name == b.name
    assert [spec(t) for t in a.inputs] == [spec(t) for t in b.inputs]
    assert [spec(t) for t in a.outputs] == [spec(t) for t in b.outputs]
    assert len(a.ops) == len(b.ops)
    for old, new in zip(a.ops, b.ops, strict=True):
        assert old.kind is new.kind and old.custom_name == new.custom_name
        assert [spec(t) for t in old.inputs] == [spec(t) for t in new.inputs]
        assert [spec(t) for t in old.outputs] == [spec(t) for t in new.outputs]
        assert old.options.items() <= new.options.items()


@settings(max_examples=100)
@given(graphs())
def test_what_is_written_is_read(graph: Graph) -> None:
    raw = write(graph)
    again = read(raw)
    assert_alike(graph, again)
    assert_alike(again, read(write(again)))
    assert write(graph) == raw, "the same graph gives the same bytes"


@settings(max_examples=20)
@given(graphs(size=5))
def test_what_is_read_computes_the_same(graph: Graph) -> None:
    inputs = inputs_for(graph)
    for old, new in zip(run_reference(graph, inputs), run_reference(read(write(graph)), inputs), strict=True):
        np.testing.assert_array_equal(old, new)


@given(
    st.sampled_from(["float32", "int32", "int8", "int64", "int16", "uint8", "bool"]),
    st.lists(st.integers(1, 4), max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_constants_of_every_type_and_rank(dtype: str, shape: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    data = random.integers(0, 100, shape).astype(dtype)
    b = Builder("constants")
    x = b.input("x", shape, dtype, Q if dtype == "int8" else None)
    y = b.op(Builtin.ADD, [x, b.const(data, x.quant)], shape, x.quant, dtype=dtype)
    graph = b.graph([y])
    assert_alike(graph, read(write(graph)))


@given(st.lists(st.floats(2**-20, 2**4), min_size=2, max_size=6), st.integers(0, 3))
def test_per_axis_quantization(scales: list[float], axis: int) -> None:
    shape = [2, 2, 2, 2]
    shape[axis] = len(scales)
    b = Builder("per axis")
    x = b.input("x", shape, "int8", Q)
    w = b.const(np.zeros(shape, np.int8), Quant.per_axis(np.array(scales), axis=axis))
    graph = b.graph([b.op(Builtin.MUL, [x, w], shape, Q)])
    assert_alike(graph, read(write(graph)))


def test_an_absent_operand_and_a_custom_op() -> None:
    b = Naive()
    x = b.image((1, 4))
    y = b.op(Builtin.FULLY_CONNECTED, [x, b.weights(3, 4), None], (1, 3), Q)
    z = b.op(Builtin.CUSTOM, [y], (1, 3), Q, options={"custom": b"\x01\x02"})
    b.ops[-1].custom_name = "NeutronGraph"
    graph = b.graph([z])
    again = read(write(graph))
    assert_alike(graph, again)
    assert again.ops[0].inputs[2] is None
    assert (again.ops[1].custom_name, again.ops[1].options) == ("NeutronGraph", {"custom": b"\x01\x02"})


def test_equal_constants_share_their_bytes() -> None:
    b = Naive()
    data = np.arange(40000, dtype=np.int8)
    x = b.image((40000,))
    y = b.binary(Builtin.ADD, b.binary(Builtin.ADD, x, b.const(data, Q)), b.const(data, Q))
    assert len(write(b.graph([y]))) < 60000


@pytest.mark.parametrize("raw", [b"", b"hello world", b"\x00" * 64])
def test_a_file_that_is_not_a_model_is_refused(raw: bytes) -> None:
    with pytest.raises(OpenNeutronError, match=r"ON302: some\.tflite: not a LiteRT model"):
        read(raw, "some.tflite")


@settings(max_examples=200)
@given(st.data())
def test_damaged_files_give_a_diagnostic_or_a_legal_graph(data: st.DataObject) -> None:
    b = Naive()
    raw = bytearray(write(b.graph([b.relu(b.conv(b.image()))])))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(8, len(raw) - 1))] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(8, len(raw)))
    with suppress(OpenNeutronError):
        read(bytes(raw[:keep])).verify()


def test_operators_have_the_numbers_of_the_schema() -> None:
    numbers = {n: v for n, v in vars(schema.BuiltinOperator).items() if not n.startswith("_")}
    assert {kind.name: int(kind) for kind in Builtin}.items() <= numbers.items()


def test_only_operators_with_the_option_are_said_to_take_an_activation() -> None:
    for kind in kinds(Trait.CLAMPS):
        assert hasattr(getattr(schema, f"{options_name(kind)}T")(), "fusedActivationFunction"), kind.name


def test_options_of_another_operator_are_refused() -> None:
    b = Naive()
    x = b.image((1, 4))
    raw = write(b.graph([b.op(Builtin.ADD, [x, x], (1, 4), Q)]))
    model = schema.ModelT.InitFromPackedBuf(bytearray(raw), 0)
    entry = model.subgraphs[0].operators[0]
    entry.builtinOptionsType = schema.BuiltinOptions.ReducerOptions
    entry.builtinOptions = schema.ReducerOptionsT()
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    with pytest.raises(OpenNeutronError, match="ADD has the options of another operator"):
        read(bytes(builder.Output()))
