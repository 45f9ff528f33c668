"""Layout inference: every bit stays, the fewest bytes are transposed."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openneutron.litert.ir import Builtin, Graph, Quant, Tensor
from openneutron.litert.reference import run_reference
from openneutron.lower.layout import infer_layout, strip_border_transposes, transposed_bytes
from openneutron.lower.layout.emit import emit
from openneutron.lower.layout.orient import orient
from openneutron.lower.layout.problem import Problem, Use, pose
from openneutron.lower.rules import finish
from tests.litert_graphs import Naive, Q, assert_same, count, graphs, inputs_for


def transposes(b: Naive, *outputs: Tensor) -> int:
    """How many TRANSPOSE ops are left after layout inference and the optimizer, having checked every bit."""
    graph = b.graph(outputs)
    inferred = infer_layout(graph)
    assert_same(graph, inferred)
    finished = finish(graph)
    assert_same(graph, finished)
    assert transposed_bytes(finished) <= transposed_bytes(inferred) <= transposed_bytes(graph)
    return count(finished, Builtin.TRANSPOSE)


@settings(max_examples=300)
@given(graphs())
def test_random_graphs_keep_every_bit_and_never_move_more(graph: Graph) -> None:
    inferred = infer_layout(graph)
    assert transposed_bytes(inferred) <= transposed_bytes(graph)
    assert_same(graph, inferred)


@settings(max_examples=150)
@given(graphs(size=8))
def test_inferring_twice_changes_nothing_more(graph: Graph) -> None:
    once = infer_layout(graph)
    assert transposed_bytes(infer_layout(once)) == transposed_bytes(once)


# ---- the optimum


@settings(max_examples=200)
@given(graphs(size=7))
def test_the_cut_is_the_optimum_of_all_choices(graph: Graph) -> None:
    problem = pose(orient(graph))
    variables = problem.variables()[:12]
    rest = {v: problem.solve()[v] for v in problem.variables()[12:]}
    best = min(
        problem.cost({**rest, **dict(zip(variables, labels, strict=True))})
        for labels in product((0, 1), repeat=len(variables))
    )
    assert problem.cost(problem.solve()) == best


@settings(max_examples=100)
@given(graphs(size=7))
def test_no_choice_gives_a_graph_that_moves_less(graph: Graph) -> None:
    """As above, but on the graphs that come out: the problem's costs are the bytes really transposed."""
    plan = orient(graph)
    problem = pose(plan)
    chosen = transposed_bytes(emit(plan, problem.solve()).verify())
    variables = problem.variables()[:6]
    for labels in product((0, 1), repeat=len(variables)):
        other = {**problem.solve(), **dict(zip(variables, labels, strict=True))}
        assert chosen <= transposed_bytes(emit(plan, other).verify())


@settings(max_examples=100)
@given(graphs(size=7), st.randoms(use_true_random=False))
def test_any_choice_keeps_every_bit(graph: Graph, random: Random) -> None:
    plan = orient(graph)
    assert_same(graph, emit(plan, {v: random.randint(0, 1) for v in pose(plan).variables()}).verify())


def test_one_conversion_serves_all_who_want_it() -> None:
    problem = Problem((Use(0, ("a", "b", "c"), 10), Use("a", (1,), 8), Use("b", (1,), 8), Use("c", (1,), 8)))
    assert problem.solve() == {"a": 1, "b": 1, "c": 1}
    assert problem.cost(problem.solve()) == 10


def test_ties_fall_to_channels_last() -> None:
    assert Problem((Use(0, ("a",), 5), Use("a", (1,), 5))).solve() == {"a": 1}


# ---- networks


def test_a_convolutional_network_transposes_its_input_only() -> None:
    b = Naive()
    x = b.conv(b.pool(b.relu(b.conv(b.image((1, 3, 8, 8))))), 8)
    x = b.reshape(b.relu(x), (1, 8 * 4 * 4))
    assert transposes(b, b.softmax(b.linear(b.relu(x), 10))) == 1


def test_a_channels_last_input_needs_no_transpose() -> None:
    b = Naive()
    x = b.to_channels_first(b.image((1, 8, 8, 3)))
    y = b.to_channels_last(b.relu(b.conv(b.pool(b.relu(b.conv(x))))))
    assert transposes(b, y) == 0


def test_a_residual_block_keeps_its_layout() -> None:
    b = Naive()
    x = b.conv(b.image())
    y = b.binary(Builtin.ADD, b.conv(b.relu(b.conv(x))), x)
    assert transposes(b, b.relu(y)) == 2  # in and out


def test_squeeze_and_excitation() -> None:
    b = Naive()
    x = b.conv(b.image())
    scale = b.unary(
        Builtin.LOGISTIC, b.conv(b.reduce(Builtin.MEAN, x, (2, 3)), 4, 1), Quant.per_tensor(1 / 256, -128)
    )
    y = b.conv(b.binary(Builtin.MUL, x, scale))
    y = b.reduce(Builtin.MEAN, y, (2, 3), keep=False)
    assert transposes(b, b.linear(y, 10)) == 1
    reshapes = count(finish(b.graph([y])), Builtin.RESHAPE)
    assert reshapes == 0


def test_vision_transformer_patches_are_channels_last_already() -> None:
    b = Naive()
    x = b.to_channels_first(b.image((1, 8, 8, 3)))
    patches = b.conv(x, 8, 4, 4, same=False)
    tokens = b.transpose(b.reshape(patches, (1, 8, 4)), (0, 2, 1))
    tokens = b.binary(Builtin.ADD, tokens, b.values(1, 4, 8))
    assert transposes(b, b.softmax(b.linear(tokens, 8))) == 0


def test_attention_leaves_its_transposes_to_the_matmul() -> None:
    b = Naive()
    x = b.image((2, 6, 8))
    q, k, v = (b.linear(x, 8) for _ in range(3))
    k = b.binary(Builtin.MUL, k, b.values(1))  # the scale, between the linear layer and the transpose
    options = {"adjX": False, "adjY": False}
    scores = b.op(Builtin.BATCH_MATMUL, [q, b.transpose(k, (0, 2, 1))], (2, 6, 6), Q, options=options)
    y = b.op(Builtin.BATCH_MATMUL, [b.softmax(scores), v], (2, 6, 8), Q, options=options)
    assert transposes(b, b.linear(y, 8)) == 0


def test_tokens_back_to_an_image() -> None:
    b = Naive()
    tokens = b.linear(b.image((1, 16, 8)), 4)
    image = b.reshape(b.transpose(tokens, (0, 2, 1)), (1, 4, 4, 4))
    assert transposes(b, b.to_channels_last(b.conv(image))) == 0


def test_one_dimensional_convolutions_through_rank_four() -> None:
    b = Naive()

    def conv1d(x: Tensor) -> Tensor:
        n, c, length = x.shape
        y = b.conv(b.reshape(x, (n, c, 1, length)), 4, 1)
        return b.reshape(y, (n, 4, length))

    x = b.image((1, 6, 16))
    x = b.relu(conv1d(x))
    x = b.concat([conv1d(x), x], 1)
    x = conv1d(b.pad(x, [[0, 0], [0, 0], [2, 0]]))
    assert transposes(b, b.linear(b.reduce(Builtin.MEAN, x, (2,), keep=False), 5)) == 1


def test_norms_and_linear_layers_on_channels_last_views() -> None:
    """As in ConvNeXt: permute to channels last, linear layers, permute back, add."""
    b = Naive()
    x = b.conv(b.to_channels_first(b.image((1, 6, 6, 4))))
    y = b.transpose(x, (0, 2, 3, 1))
    y = b.linear(b.relu(b.linear(y, 16)), 4)
    y = b.binary(Builtin.ADD, x, b.transpose(y, (0, 3, 1, 2)))
    assert transposes(b, b.to_channels_last(b.conv(y))) == 0


def test_an_autoencoder_permutes_weights_on_both_sides() -> None:
    b = Naive()
    x = b.conv(b.to_channels_first(b.image((2, 4, 4, 3))))
    code = b.linear(b.relu(b.reshape(x, (2, 64))), 64)
    y = b.conv(b.reshape(b.relu(code), (2, 4, 4, 4)))
    assert transposes(b, b.to_channels_last(y)) == 0


def test_a_flatten_that_is_seen_keeps_its_order() -> None:
    b = Naive()
    x = b.reshape(b.conv(b.to_channels_first(b.image((1, 4, 4, 3)))), (1, 64))
    assert transposes(b, b.linear(x, 4), x) == 1


def test_pads_slices_and_constants_follow() -> None:
    b = Naive()
    x = b.conv(b.to_channels_first(b.image((1, 6, 6, 3))))
    x = b.pad(x, [[0, 0], [1, 2], [0, 1], [3, 0]])
    x = b.slice(x, (0, 1, 2, 0), (1, 4, 5, 6))
    x = b.binary(Builtin.MUL, x, b.values(4, 1, 1))
    x = b.op(Builtin.PRELU, [x, b.values(4, 1, 6)], x.shape, Q)
    options = {"beginMask": 0b0100, "endMask": 0b1011}
    strided = [b.ints((0, 1, 9, 2)), b.ints((1, 2, 4, 3)), b.ints((1, 1, 2, 2))]
    x = b.op(Builtin.STRIDED_SLICE, [x, *strided], (1, 3, 2, 2), Q, options=options)
    x = b.op(Builtin.TILE, [x, b.ints((1, 1, 2, 3))], (1, 3, 4, 6), Q)
    assert transposes(b, b.to_channels_last(b.conv(x))) == 0


@pytest.mark.parametrize("kind", [Builtin.MEAN, Builtin.SUM, Builtin.REDUCE_MAX, Builtin.REDUCE_MIN])
@pytest.mark.parametrize("axes", [(1,), (2,), (3,), (2, 3), (1, 2), (1, 2, 3)])
@pytest.mark.parametrize(("keep", "negative"), [(True, False), (False, True)])
def test_reductions_follow(kind: Builtin, axes: tuple[int, ...], keep: bool, negative: bool) -> None:
    b = Naive()
    x = b.conv(b.to_channels_first(b.image((2, 6, 4, 3))))
    left = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
    y = b.op(kind, [x, b.ints(a - 4 if negative else a for a in axes)], left, Q, options={"keepDims": keep})
    if keep:
        assert transposes(b, b.to_channels_last(y)) == 0
    else:  # without the channels, or with nothing but them, the order is the same in both versions
        assert transposes(b, y) == int(1 not in axes and y.rank > 2)


def test_a_general_permutation_reads_what_is_there() -> None:
    b = Naive()
    x = b.conv(b.to_channels_first(b.image((1, 6, 6, 3))))
    assert transposes(b, b.transpose(x, (0, 3, 1, 2))) == 1
    b = Naive()
    x = b.conv(b.to_channels_first(b.image((1, 6, 6, 3))))
    y = b.transpose(b.relu(b.transpose(x, (0, 2, 1, 3))), (0, 1, 3, 2))
    assert transposes(b, y) == 0  # together they are the conversion to channels last


def test_a_chain_of_conversions_is_not_mistaken() -> None:
    b = Naive()
    x = b.conv(b.image((1, 4, 4, 4)))
    y = b.to_channels_last(b.to_channels_last(x))
    assert transposes(b, y, b.to_channels_last(y)) <= 3


def test_a_tie_is_not_broken_towards_many_dimensions() -> None:
    b = Naive()
    x = b.reshape(b.conv(b.image((1, 6, 4, 4))), (1, 4, 2, 2, 2, 2))  # as pixel_shuffle does
    graph = finish(b.graph([b.transpose(b.relu(x), (0, 1, 4, 2, 5, 3))]))
    assert [op.operand(0).rank for op in graph.ops if op.kind is Builtin.TRANSPOSE] == [4, 6]
    b = Naive()
    x = b.conv(b.image((1, 6, 4, 4)))
    for rank in (5, 6, 7, 8):
        x = b.reshape(x, (1, 4, *(1,) * (rank - 4), 4, 4))
    assert transposes(b, b.reshape(x, (1, 2, 32))) == 2


def test_sums_of_floats_keep_their_order() -> None:
    b = Naive()
    x = b.input("x", (1, 5, 6, 7), "float32")
    operands = [b.transpose(x, (0, 3, 1, 2)), b.ints((1, 2))]
    y = b.op(Builtin.MEAN, operands, (1, 1, 1, 6), dtype="float32", options={"keepDims": True})
    assert transposes(b, b.transpose(y, (0, 2, 3, 1))) == 1


def test_outputs_that_are_equal_stay_apart() -> None:
    b = Naive()
    x = b.conv(b.image())
    first, second = b.relu(x), b.to_channels_first(b.to_channels_last(b.image(name="z")))
    third = b.to_channels_first(b.to_channels_last(first))
    assert transposes(b, first, second, third) == 2


# ---- borders


def test_border_transposes_are_left_to_the_runtime() -> None:
    b = Naive()
    graph = finish(b.graph([b.relu(b.conv(b.image((1, 3, 6, 6)), 4))]))
    assert count(graph, Builtin.TRANSPOSE) == 2
    stripped, inputs_last, outputs_last = strip_border_transposes(graph)
    assert (inputs_last, outputs_last) == ([True], [True])
    assert count(stripped, Builtin.TRANSPOSE) == 0
    assert stripped.inputs[0].name == graph.inputs[0].name and stripped.inputs[0].shape == (1, 6, 6, 3)
    assert stripped.outputs[0].name == graph.outputs[0].name and stripped.outputs[0].shape == (1, 6, 6, 4)
    (x,) = inputs_for(graph)
    (expected,) = run_reference(graph, [x])
    (got,) = run_reference(stripped, [np.ascontiguousarray(x.transpose(0, 2, 3, 1))])
    np.testing.assert_array_equal(got.transpose(0, 3, 1, 2), expected)


def test_borders_that_others_see_stay() -> None:
    b = Naive()
    x = b.image((1, 4, 6, 6))
    graph = b.graph([b.reshape(x, (1, 144)), b.to_channels_first(b.to_channels_last(x))])
    stripped, inputs_last, outputs_last = strip_border_transposes(graph)
    assert (inputs_last, outputs_last) == ([False], [False, True])
    b = Naive()
    y = b.op(Builtin.RELU, [b.to_channels_last(b.image())], (1, 6, 6, 4), Q)
    graph = b.graph([b.to_channels_first(y), y])
    stripped, inputs_last, outputs_last = strip_border_transposes(graph)
    assert (inputs_last, outputs_last) == ([True], [False, False])
    assert count(stripped, Builtin.TRANSPOSE) == 1


def test_an_output_returned_twice_is_transposed_twice() -> None:
    b = Naive()
    y = b.conv(b.image())
    stripped, _, outputs_last = strip_border_transposes(b.graph([y, y]))
    assert outputs_last == [True, True]
    assert [t.shape for t in stripped.outputs] == [(1, 6, 6, 4)] * 2
    assert_same(b.graph([y, y]), finish(b.graph([y, y])))


# ---- provenance


def test_every_source_node_stays_known() -> None:
    b = Naive()
    with b.origin("permute"):
        x = b.to_channels_first(b.image((1, 6, 6, 3)))
    with b.origin("conv"):
        x = b.conv(x)
    with b.origin("relu"):
        x = b.relu(x)
    with b.origin("back"):
        x = b.to_channels_last(x)
    for graph in (infer_layout(b.graph([x])), finish(b.graph([x]))):
        assert {name for op in graph.ops for name in op.origin} == {"permute", "conv", "relu", "back"}
        assert next(op for op in graph.ops if op.kind is Builtin.CONV_2D).origin[:1] in {
            ("conv",),
            ("permute",),
        }
