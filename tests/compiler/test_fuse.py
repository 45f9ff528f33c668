"""Fusion by example: what goes, what stays, and that import speaks the compiler's few operators."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.graph.fuse_conv import PADDING, PLANAR
from openneutron.compiler.graph.rules import fuse, import_graph
from openneutron.compiler.memory.schedule import make_schedule, plan_memory
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Graph, Op, Padding, Quant, Tensor, constant
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target
from tests.compiler.graphs import random_inputs
from tests.compiler.machine import run_plan

Q = Quant.per_tensor(0.05, 3)
R = Quant.per_tensor(0.03, -10)
NO_ACTIVATION = {"fusedActivationFunction": 0}


def lowered(graph):
    """The fused graph, after checking that it computes what the graph given computes."""
    fused = fuse(import_graph(graph))
    plan = plan_memory(make_schedule(fused))
    inputs = random_inputs(graph, 1)
    expected = run_reference(graph, inputs)
    compiled = compile_graph(graph, find_target("imxrt700"), CompileOptions())
    runtime = NativeModel(compiled.microcode, compiled.weights)
    for outputs in (run_plan(fused, plan, inputs), runtime.run(inputs)):
        for want, got in zip(expected, outputs, strict=True):
            np.testing.assert_array_equal(got, want)
    return fused, plan


def kinds(graph):
    return [op.custom_name or op.kind.name for op in graph.ops]


def conv(b, x, kernel=3, channels=4, padding=Padding.VALID, activation=Activation.NONE, quant=Q):
    rng = np.random.default_rng(len(b.ops))  # of two equal convolutions one would go
    c = x.shape[3]
    weights = b.const(
        rng.integers(-127, 128, (channels, kernel, kernel, c)).astype(np.int8), Quant.per_tensor(0.01)
    )
    bias = b.const(
        rng.integers(-500, 500, channels).astype(np.int32), Quant.per_tensor(x.quant.scale[0] * 0.01)
    )
    shrink = kernel - 1 if padding is Padding.VALID else 0
    shape = (1, x.shape[1] - shrink, x.shape[2] - shrink, channels)
    options = {
        "padding": int(padding),
        "strideH": 1,
        "strideW": 1,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": int(activation),
    }
    return b.op(Builtin.CONV_2D, [x, weights, bias], shape, quant, options=options)


def padded(b, x, amounts):
    shape = tuple(d + p + q for d, (p, q) in zip(x.shape, amounts, strict=True))
    return b.op(Builtin.PAD, [x, b.const(np.array(amounts, np.int32))], shape, x.quant)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        (Builtin.RELU, Activation.RELU),
        (Builtin.RELU6, Activation.RELU6),
        (Builtin.RELU_N1_TO_1, Activation.RELU_N1_TO_1),
    ],
)
def test_activation_of_the_same_quantization_goes_into_the_convolution(kind, activation):
    b = Builder()
    y = conv(b, b.input("x", (1, 5, 5, 3), quant=Q))
    fused, _ = lowered(b.graph([b.op(kind, [y], y.shape, Q)]))
    assert kinds(fused) == ["CONV_2D"]
    assert fused.ops[0].options["fusedActivationFunction"] == activation


def test_activation_that_rescales_stays_a_table_in_place():
    """Folding it into the convolution would round once where the model rounds twice."""
    b = Builder()
    y = conv(b, b.input("x", (1, 5, 5, 3), quant=Q))
    z = conv(b, b.op(Builtin.RELU, [y], y.shape, R), kernel=1)
    fused, plan = lowered(b.graph([z]))
    assert kinds(fused) == ["CONV_2D", "Table", "CONV_2D"]
    assert len(plan.schedule.overwrites) == 1


def test_activation_whose_input_is_read_elsewhere_stays():
    b = Builder()
    y = conv(b, b.input("x", (1, 5, 5, 3), quant=Q))
    fused, _ = lowered(b.graph([b.op(Builtin.RELU, [y], y.shape, Q), y]))
    assert sorted(kinds(fused)) == ["CONV_2D", "Table"]


def test_chain_of_tables_with_a_float_island_is_one_table():
    b = Builder()
    x = b.input("x", (1, 6), quant=Q)
    y = b.op(Builtin.TANH, [x], x.shape, Quant.per_tensor(1 / 128, 0))
    y = b.op(Builtin.EXP, [b.dequantize(y)], x.shape, dtype="float32")
    half = b.const(np.array(0.5, np.float32))
    y = b.quantize(b.op(Builtin.MUL, [half, y], x.shape, dtype="float32", options=NO_ACTIVATION), R)
    y = b.op(Builtin.HARD_SWISH, [y], x.shape, R)
    fused, _ = lowered(b.graph([y]))
    assert kinds(fused) == ["Table"]


def test_requantize_to_the_same_parameters_goes():
    b = Builder()
    x = b.input("x", (1, 4, 4, 2), quant=Q)
    y = b.op(Builtin.QUANTIZE, [x], x.shape, Q)
    fused, _ = lowered(b.graph([conv(b, y)]))
    assert kinds(fused) == ["CONV_2D"]


def test_function_that_changes_the_meaning_only_moves_nothing():
    """x / 4 with a quarter of the scale: the same bytes, but what reads them must know the new scale."""
    b = Builder()
    x = b.input("x", (1, 4, 4, 2), quant=Quant.per_tensor(0.5, 3))
    y = conv(b, x, quant=Quant.per_tensor(0.5, 3))
    quarter = b.const(np.array(1, np.int8), Quant.per_tensor(0.25))
    y = b.op(Builtin.MUL, [y, quarter], y.shape, Quant.per_tensor(0.125, 3), options=NO_ACTIVATION)
    fused, plan = lowered(b.graph([conv(b, y, kernel=1)]))
    assert kinds(fused) == ["CONV_2D", "Table", "CONV_2D"]
    assert [op.kind.name for op in plan.schedule.steps] == ["CONV_2D", "CONV_2D"]


@pytest.mark.parametrize("padding", list(Padding))
def test_padding_goes_into_the_convolution(padding):
    b = Builder()
    x = b.input("x", (1, 5, 6, 3), quant=Q)
    fused, _ = lowered(b.graph([conv(b, padded(b, x, ((0, 0), (1, 2), (0, 3), (0, 0))), padding=padding)]))
    assert kinds(fused) == ["CONV_2D"]
    assert fused.ops[0].options[PADDING] == (1, 2, 0, 3)


@pytest.mark.parametrize("amounts", [((0, 0), (1, 1), (0, 0), (0, 1)), ((0, 0), (0, 0), (0, 0), (2, 0))])
def test_padding_of_channels_stays(amounts):
    b = Builder()
    fused, _ = lowered(b.graph([conv(b, padded(b, b.input("x", (1, 5, 6, 3), quant=Q), amounts))]))
    assert kinds(fused) == ["PAD", "CONV_2D"]


POOL = {"padding": 1, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2, **NO_ACTIVATION}


def pool_of_padded(kind, value):
    b = Builder()
    x = b.input("x", (1, 4, 4, 2), quant=Q)
    amounts = b.const(np.array(((0, 0), (1, 1), (1, 1), (0, 0)), np.int32))
    x = b.op(Builtin.PADV2, [x, amounts, b.const(np.array([value], np.int8), Q)], (1, 6, 6, 2), Q)
    return b.graph([b.op(kind, [x], (1, 3, 3, 2), Q, options=POOL)])


def test_padding_with_the_lowest_value_goes_into_a_maximum():
    fused, _ = lowered(pool_of_padded(Builtin.MAX_POOL_2D, -128))
    assert kinds(fused) == ["MAX_POOL_2D"]


@pytest.mark.parametrize(("kind", "value"), [(Builtin.MAX_POOL_2D, -127), (Builtin.AVERAGE_POOL_2D, -128)])
def test_padding_that_counts_stays(kind, value):
    assert kinds(lowered(pool_of_padded(kind, value))[0]) == ["PADV2", kind.name]


def test_padding_with_rank_3_goes_into_a_convolution_of_rank_4():
    b = Builder()
    x = b.input("x", (1, 9, 3), quant=Q)
    y = b.reshape(padded(b, x, ((0, 0), (2, 1), (0, 0))), (1, 1, 12, 3))
    weights = b.const(np.arange(-9, 9, dtype=np.int8).reshape(2, 1, 3, 3), Quant.per_tensor(0.02))
    bias = b.const(np.array([5, -7], np.int32), Quant.per_tensor(0.001))
    options = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    y = b.op(Builtin.CONV_2D, [y, weights, bias], (1, 1, 10, 2), R, options={**options, **NO_ACTIVATION})
    fused, plan = lowered(b.graph([y]))
    assert kinds(fused) == ["RESHAPE", "CONV_2D"]
    assert len(plan.schedule.steps) == 1


@pytest.mark.parametrize("padding", list(Padding))
@pytest.mark.parametrize("amounts", [None, ((0, 0), (0, 0), (1, 0), (2, 3))])
def test_picture_in_planes_is_read_as_it_is(padding, amounts):
    b = Builder()
    x = b.input("x", (1, 3, 7, 6), quant=Q)
    y = b.transpose(x if amounts is None else padded(b, x, amounts), (0, 2, 3, 1))
    fused, plan = lowered(b.graph([conv(b, y, padding=padding)]))
    assert kinds(fused) == [PLANAR] if amounts is None else ["PAD", PLANAR]
    assert plan.scratch_bytes == (0 if amounts is None else 3 * 8 * 11 + 8)


def test_transpose_that_something_else_reads_stays():
    b = Builder()
    x = b.transpose(b.input("x", (1, 3, 7, 6), quant=Q), (0, 2, 3, 1))
    again = b.op(Builtin.MUL, [x, x], x.shape, R, options=NO_ACTIVATION)
    fused, _ = lowered(b.graph([conv(b, x), again]))
    assert "TRANSPOSE" in kinds(fused) and PLANAR not in kinds(fused)


def grouped(b, x, quants=(R, R), order=(0, 1)):
    parts = []
    for index in order:
        cut = b.op(Builtin.SLICE, [x, b.ints((0, 0, 0, 2 * index)), b.ints((1, 6, 6, 2))], (1, 6, 6, 2), Q)
        parts.append(conv(b, cut, channels=3, quant=quants[index]))
    return b.op(Builtin.CONCATENATION, parts, (1, 4, 4, 6), R, options={"axis": 3, **NO_ACTIVATION})


def test_convolutions_of_equal_slices_are_one_with_groups():
    b = Builder()
    fused, plan = lowered(b.graph([grouped(b, b.input("x", (1, 6, 6, 4), quant=Q))]))
    assert kinds(fused) == ["CONV_2D"]
    assert fused.ops[0].operand(1).shape == (6, 3, 3, 2)
    assert plan.scratch_bytes == 0


def test_convolutions_of_slices_in_another_order_stay():
    b = Builder()
    fused, _ = lowered(b.graph([grouped(b, b.input("x", (1, 6, 6, 4), quant=Q), order=(1, 0))]))
    assert "CONCATENATION" in kinds(fused)


@pytest.mark.parametrize("axis", [None, 3])
def test_depthwise_convolution_of_one_channel_is_a_plain_one(axis):
    b = Builder()
    x = b.input("x", (1, 5, 5, 1), quant=Q)
    rng = np.random.default_rng(3)
    scales = rng.uniform(0.005, 0.02, 6).astype(np.float32) if axis else None
    quant = Quant.per_tensor(0.01) if scales is None else Quant.per_axis(scales, axis=3)
    weights = b.const(rng.integers(-127, 128, (1, 3, 3, 6)).astype(np.int8), quant)
    bias = b.const(
        rng.integers(-90, 90, 6).astype(np.int32), Quant.per_axis(np.array(quant.scale) * Q.scale[0])
    )
    options = {"padding": 0, "strideH": 2, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    options |= {"depthMultiplier": 6, **NO_ACTIVATION}
    y = b.op(Builtin.DEPTHWISE_CONV_2D, [x, weights, bias], (1, 3, 5, 6), R, options=options)
    assert kinds(lowered(b.graph([y]))[0]) == ["CONV_2D"]


def test_padding_before_a_pool_stays():
    b = Builder()
    x = padded(b, b.input("x", (1, 4, 4, 2), quant=Q), ((0, 0), (1, 1), (1, 1), (0, 0)))
    options = {"padding": 1, "strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2, **NO_ACTIVATION}
    fused, _ = lowered(b.graph([b.op(Builtin.MAX_POOL_2D, [x], (1, 3, 3, 2), Q, options=options)]))
    assert kinds(fused) == ["PAD", "MAX_POOL_2D"]


def test_transposes_merge_and_vanish():
    b = Builder()
    x = b.input("x", (1, 4, 5, 3), quant=Q)
    there = b.transpose(x, (0, 3, 1, 2))
    back = b.transpose(b.transpose(there, (0, 1, 3, 2)), (0, 3, 2, 1))
    fused, _ = lowered(b.graph([conv(b, back)]))
    assert kinds(fused) == ["CONV_2D"]


def test_concatenation_along_rows_and_its_slices_move_nothing():
    b = Builder()
    x = b.input("x", (1, 6, 6, 3), quant=Q)
    y = b.op(
        Builtin.CONCATENATION, [conv(b, x), conv(b, x)], (1, 8, 4, 4), Q, options={"axis": 1, **NO_ACTIVATION}
    )
    part = b.op(Builtin.SLICE, [y, b.ints((0, 2, 0, 0)), b.ints((1, 5, 4, 4))], (1, 5, 4, 4), Q)
    fused, plan = lowered(b.graph([conv(b, part)]))
    assert kinds(fused) == ["CONV_2D", "CONV_2D", "CONCATENATION", "SLICE", "CONV_2D"]
    assert [op.kind.name for op in plan.schedule.steps] == ["CONV_2D"] * 3
    assert plan.scratch_bytes == 8 * 4 * 4


CHANNELS = {"axis": 3, **NO_ACTIVATION}


def test_concatenation_of_channels_is_written_in_place():
    """Two branches of a network, as in Inception: nothing is copied."""
    b = Builder()
    x = b.input("x", (1, 6, 6, 3), quant=Q)
    left, right = conv(b, x, channels=5, padding=Padding.SAME), conv(b, x, 1, channels=4)
    y = b.op(Builtin.CONCATENATION, [left, right], (1, 6, 6, 9), Q, options=CHANNELS)
    fused, plan = lowered(b.graph([conv(b, y, kernel=1)]))
    assert "CONCATENATION" in kinds(fused)
    assert [op.kind.name for op in plan.schedule.steps] == ["CONV_2D"] * 3
    assert plan.scratch_bytes == 6 * 6 * 9 + 12


def test_concatenations_of_concatenations_are_written_in_place():
    """As in DenseNet: every block reads all maps before it."""
    b = Builder()
    y = conv(b, b.input("x", (1, 6, 6, 3), quant=Q), channels=4, padding=Padding.SAME)
    for _ in range(3):
        more = conv(b, padded(b, y, ((0, 0), (1, 1), (1, 1), (0, 0))), channels=3)
        shape = (1, 6, 6, y.shape[3] + 3)
        y = b.op(Builtin.CONCATENATION, [y, more], shape, Q, options=CHANNELS)
    _, plan = lowered(b.graph([conv(b, y, kernel=1)]))
    assert [op.kind.name for op in plan.schedule.steps] == ["CONV_2D"] * 5
    assert plan.scratch_bytes == 6 * 6 * 13 + 12


def test_slices_of_channels_are_read_in_place():
    """As in ShuffleNet: each half of the channels goes its own way."""
    b = Builder()
    y = conv(b, b.input("x", (1, 6, 6, 3), quant=Q), channels=8, padding=Padding.SAME)
    halves = [
        b.op(Builtin.SLICE, [y, b.ints((0, 0, 0, at)), b.ints((1, 6, 6, 4))], (1, 6, 6, 4), Q)
        for at in (0, 4)
    ]
    other = conv(b, halves[1], padding=Padding.SAME)
    total = b.op(Builtin.ADD, [halves[0], other], other.shape, R, options=NO_ACTIVATION)
    pooled = b.op(Builtin.AVERAGE_POOL_2D, [halves[0]], (1, 3, 3, 4), Q, options=POOL)
    _, plan = lowered(b.graph([total, pooled]))
    assert sorted(op.kind.name for op in plan.schedule.steps) == [
        "ADD",
        "AVERAGE_POOL_2D",
        "CONV_2D",
        "CONV_2D",
    ]


def test_slice_of_channels_that_a_table_reads_stays_where_it_is():
    b = Builder()
    y = conv(b, b.input("x", (1, 6, 6, 3), quant=Q), channels=8)
    half = b.op(Builtin.SLICE, [y, b.ints((0, 0, 0, 4)), b.ints((1, 4, 4, 4))], (1, 4, 4, 4), Q)
    _, plan = lowered(b.graph([conv(b, b.op(Builtin.TANH, [half], half.shape, Quant.per_tensor(1 / 128)))]))
    assert [op.kind.name for op in plan.schedule.steps] == ["CONV_2D", "CUSTOM", "CONV_2D"]


def test_output_that_is_an_input_a_constant_or_twice_the_same_is_copied():
    b = Builder()
    x = b.input("x", (1, 4), quant=Q)
    value = b.const(np.arange(4, dtype=np.int8).reshape(1, 4), Q)
    y = b.op(Builtin.ADD, [x, x], (1, 4), Q, options=NO_ACTIVATION)
    fused = fuse(import_graph(Graph([x], [x, value, y, y], b.ops)))
    assert kinds(fused) == ["Table", "RESHAPE", "RESHAPE", "RESHAPE"]
    plan = plan_memory(make_schedule(fused))
    data = np.array([[1, -2, 30, 4]], np.int8)
    outputs = run_plan(fused, plan, [data])
    np.testing.assert_array_equal(outputs[0], data)
    np.testing.assert_array_equal(outputs[1], value.array)
    np.testing.assert_array_equal(outputs[2], outputs[3])
    assert plan.scratch_bytes == 0


def test_shape_arithmetic_of_static_tensors_is_folded():
    """RESHAPE to a shape computed from SHAPE, as TensorFlow writes it."""
    b = Builder()
    x = b.input("x", (1, 4, 6, 2), quant=Q)
    shape = b.op(Builtin.SHAPE, [x], (4,), dtype="int32", options={"outType": 2})
    masks = {
        "beginMask": 0,
        "endMask": 0,
        "ellipsisMask": 0,
        "newAxisMask": 0,
        "shrinkAxisMask": 1,
        "offset": False,
    }
    batch = b.op(
        Builtin.STRIDED_SLICE,
        [shape, b.ints([0]), b.ints([1]), b.ints([1])],
        (),
        dtype="int32",
        options=masks,
    )
    rest = b.const(np.array(48, np.int32))
    target = b.op(Builtin.PACK, [batch, rest], (2,), dtype="int32", options={"valuesCount": 2, "axis": 0})
    y = b.op(Builtin.RESHAPE, [x, target], (1, 48), Q)
    fused = fuse(import_graph(b.graph([b.op(Builtin.SOFTMAX, [y], (1, 48), R, options={"beta": 1.0})])))
    assert kinds(fused) == ["RESHAPE", "SOFTMAX"]


@pytest.mark.parametrize(
    ("begin", "end", "stride", "masks", "shape"),
    [
        ([3, 0], [0, 5], [-1, 2], {}, (3, 3)),
        ([0, 0], [4, 5], [-1, 1], {"beginMask": 1, "endMask": 1}, (4, 5)),
        ([-2, 1], [4, -1], [1, 1], {}, (2, 3)),
        ([1, 0], [2, 5], [1, 1], {"shrinkAxisMask": 1}, (5,)),
        ([0, 1, 0], [0, 3, 0], [1, 1, 1], {"newAxisMask": 1, "ellipsisMask": 4}, (1, 2, 5)),
    ],
)
def test_strided_slices_are_resolved(begin, end, stride, masks, shape):
    b = Builder()
    x = b.input("x", (4, 5), quant=Q)
    options = {
        "beginMask": 0,
        "endMask": 0,
        "ellipsisMask": 0,
        "newAxisMask": 0,
        "shrinkAxisMask": 0,
        "offset": False,
        **masks,
    }
    bounds = [b.ints(v) for v in (begin, end, stride)]
    y = b.op(Builtin.STRIDED_SLICE, [x, *bounds], shape, Q, options=options)
    fused, _ = lowered(b.graph([y]))
    assert set(kinds(fused)) <= {"SLICE", "STRIDED_SLICE", "RESHAPE"}


def test_a_dynamic_shape_is_named():
    x = Tensor("x", (1, 0), "int8", Q)
    y = Tensor("y", (1, 0), "int8", Q)
    shape = constant("s", np.array([1, 0], np.int32))
    graph = Graph([x], [y], [Op(Builtin.RESHAPE, [x, shape], [y], {"newShape": (1, 0)})])
    with pytest.raises(OpenNeutronError, match=r"ON402: tensor x: the shape \[1, 0\]"):
        import_graph(graph)


def test_the_given_graph_is_left_alone():
    b = Builder()
    y = conv(b, padded(b, b.input("x", (1, 5, 6, 3), quant=Q), ((0, 0), (1, 1), (1, 1), (0, 0))))
    graph = b.graph([b.op(Builtin.RELU, [y], y.shape, Q)])
    before = str(graph)
    fuse(import_graph(graph))
    assert str(graph) == before


def test_a_function_of_one_byte_with_a_fork_in_it_is_one_table() -> None:
    """x * sigmoid(x), in float and in int8."""
    quant, fine = Quant.per_tensor(0.05, -3), Quant.per_tensor(1 / 256, -128)
    for floating in (True, False):
        build = Builder()
        x = build.input("x", (4, 64), "int8", quant)
        if floating:
            real = build.dequantize(x)
            gate = build.op(Builtin.LOGISTIC, [real], real.shape, dtype="float32")
            y = build.quantize(build.op(Builtin.MUL, [real, gate], real.shape, dtype="float32"), quant)
        else:
            gate = build.op(Builtin.LOGISTIC, [x], x.shape, fine)
            y = build.op(Builtin.MUL, [x, gate], x.shape, quant)
        graph = build.graph([y])
        assert [op.custom_name for op in fuse(graph).ops] == ["Table"]
