"""The optimizer's rules together: no bit changes. Each alone: tests/rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from openneutron.litert.ir import Activation, Builtin, Graph, Op, Padding, Tensor
from openneutron.litert.rules import run
from openneutron.lower.layout import transposed_bytes
from openneutron.lower.rules import OPTIMIZE, finish
from openneutron.lower.rules.fusion import fuse_activation
from tests.litert_graphs import Q2, Naive, Q, assert_same, count, graphs


def fired(b: Naive, *outputs: Tensor) -> tuple[Counter[str], Graph]:
    """Optimize; every bit is checked."""
    graph = b.graph(outputs)
    counts: Counter[str] = Counter()
    result = run(graph, [OPTIMIZE], counts)
    assert_same(graph, result)
    return counts, result


def kinds(graph: Graph) -> list[str]:
    return [op.kind.name for op in graph.ops]


@settings(max_examples=200)
@given(graphs())
def test_random_graphs_keep_every_bit(graph: Graph) -> None:
    optimized = run(graph, [OPTIMIZE])
    assert_same(graph, optimized)
    assert transposed_bytes(optimized) <= transposed_bytes(graph)
    finished = finish(graph)
    assert_same(graph, finished)
    assert transposed_bytes(finished) <= transposed_bytes(optimized)
    assert len(finished.ops) <= len(graph.ops)


@settings(max_examples=50)
@given(graphs())
def test_the_graph_given_is_not_changed(graph: Graph) -> None:
    before = str(graph)
    finish(graph)
    assert str(graph) == before


def image(b: Naive) -> Tensor:
    return b.relu(b.image((1, 4, 6, 6)))


def keep(b: Naive, x: Tensor) -> Tensor:
    """An op that no rule touches, so that what is before it is neither an input nor an output."""
    return b.unary(Builtin.ABS, x)


def conv(b: Naive) -> Tensor:
    """A convolution on a channels-last input, as layout inference leaves it."""
    x = b.image((1, 6, 6, 4))
    options = {"strideH": 1, "strideW": 1, "padding": int(Padding.SAME)}
    return b.op(Builtin.CONV_2D, [x, b.weights(4, 3, 3, 4), b.bias(x, 4)], x.shape, Q, options=options)


def depthwise(b: Naive) -> Tensor:
    x = b.image((1, 6, 6, 4))
    options = {"strideH": 1, "strideW": 1, "padding": int(Padding.SAME), "depthMultiplier": 1}
    return b.op(
        Builtin.DEPTHWISE_CONV_2D, [x, b.weights(1, 3, 3, 4), b.bias(x, 4)], x.shape, Q, options=options
    )


def linear(b: Naive) -> Tensor:
    return b.linear(b.image((2, 30)), 40)


def elementwise(kind: Builtin) -> Callable[[Naive], Tensor]:
    return lambda b: b.binary(kind, b.image((2, 30)), b.image((2, 30), "y"))


def transposed(b: Naive, shape: tuple[int, ...], *perms: tuple[int, ...]) -> tuple[Tensor, ...]:
    x = b.relu(b.image(shape))
    for perm in perms:
        x = b.op(Builtin.TRANSPOSE, [x, b.ints(perm)], tuple(x.shape[p] for p in perm), Q)
    return (keep(b, x),)


@pytest.mark.parametrize("kind", [Builtin.RELU, Builtin.RELU6, Builtin.RELU_N1_TO_1])
@pytest.mark.parametrize(
    "make",
    [conv, depthwise, linear, *map(elementwise, (Builtin.ADD, Builtin.SUB, Builtin.MUL))],
    ids=["conv", "depthwise", "linear", "add", "sub", "mul"],
)
def test_activations_are_fused_exactly(kind: Builtin, make: Callable[[Naive], Tensor]) -> None:
    b = Naive()
    y = b.unary(kind, make(b))
    counts, graph = fired(b, y)
    assert counts["fuse_activation"] == 1
    assert [op.options["fusedActivationFunction"] for op in graph.ops] == [Activation[kind.name]]


def test_inverse_transposes_cancel() -> None:
    b = Naive()
    _, graph = fired(b, *transposed(b, (2, 3, 4, 5), (0, 2, 1, 3), (0, 2, 1, 3)))
    assert kinds(graph) == ["RELU", "ABS"]


def test_transposes_around_an_elementwise_op_cancel() -> None:
    b = Naive()
    x = b.transpose(b.requantize(b.transpose(image(b), (0, 2, 1, 3)), Q2), (0, 2, 1, 3))
    _, graph = fired(b, keep(b, x))
    assert kinds(graph) == ["RELU", "QUANTIZE", "ABS"]


def test_permutations_that_cancel_are_not_taken_for_conversions() -> None:
    b = Naive()
    x = b.transpose(
        b.relu(b.transpose(b.slice(b.image(), (0, 0, 0, 0), (1, 4, 6, 1)), (0, 2, 1, 3))), (0, 2, 1, 3)
    )
    graph = finish(b.graph([x]))
    assert kinds(graph) == ["SLICE", "RELU"]
    assert_same(b.graph([x]), graph)


def test_an_output_never_becomes_an_input_or_another_output() -> None:
    b = Naive()
    x = b.image()
    same = b.op(Builtin.QUANTIZE, [x], x.shape, Q)
    one, two = b.relu(x), b.relu(x)
    _, graph = fired(b, same, one, two)
    assert kinds(graph) == ["QUANTIZE", "RELU", "RELU"]


def test_a_dropped_op_leaves_its_output_tensor_to_the_one_before() -> None:
    b = Naive()
    y = b.op(Builtin.QUANTIZE, [image(b)], (1, 4, 6, 6), Q, name="result")
    _, graph = fired(b, y)
    assert kinds(graph) == ["RELU"] and graph.outputs[0].name == "result"


def origins(b: Naive, y: Tensor) -> list[tuple[str, ...]]:
    return [op.origin for op in finish(b.graph([y])).ops]


def test_provenance_is_the_union_in_order() -> None:
    b = Naive()
    x = b.to_channels_first(b.image((1, 7, 7, 3)))
    with b.origin("pad"):
        x = b.pad(x, [[0, 0], [0, 0], [1, 1], [1, 1]])
    with b.origin("conv"):
        x = b.conv(x, 4, same=False)
    with b.origin("relu"):
        x = b.relu(x)
    with b.origin("view"):
        x = b.reshape(x, (1, 4, 49))
    with b.origin("flatten"):
        x = b.reshape(x, (1, 196))
    with b.origin("linear"):
        x = b.linear(x, 3)
    assert origins(b, x) == [("pad", "conv", "relu"), ("view", "flatten"), ("linear",)]


def test_provenance_of_a_dropped_op_goes_to_its_neighbour() -> None:
    b = Naive()
    with b.origin("relu"):
        x = b.relu(b.image())
    with b.origin("dropout"):
        x = b.op(Builtin.QUANTIZE, [x], x.shape, Q)
    with b.origin("abs"):
        x = keep(b, x)
    assert origins(b, x) == [("relu", "dropout"), ("abs",)]


def test_a_rule_can_be_left_out() -> None:
    b = Naive()
    graph = b.graph([b.relu(conv(b))])
    kept = run(graph, [OPTIMIZE.without("all but one", fuse_activation)])
    assert count(kept, Builtin.RELU) == 1 and isinstance(kept.ops[0], Op)
