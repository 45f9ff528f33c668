"""Every rule fires where it should, stays away where it must, and changes no bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from openneutron.litert.ir import Activation, Builtin, Graph, Op, Padding, Quant, Tensor
from openneutron.lower.layout import transposed_bytes
from openneutron.lower.rules import RULES, finish, optimize
from tests.litert_graphs import Q2, Naive, Q, assert_same, count, graphs

RELU_Q = Quant.per_tensor(0.05, -128)


def fired(b: Naive, *outputs: Tensor, rules: tuple[str, ...] = ()) -> tuple[Counter[str], Graph]:
    """Optimize (with these rules only, if any are named); every bit is checked."""
    graph = b.graph(outputs)
    counts: Counter[str] = Counter()
    result = optimize(graph, [r for r in RULES if not rules or r.name in rules], counts)
    assert_same(graph, result)
    return counts, result


def kinds(graph: Graph) -> list[str]:
    return [op.kind.name for op in graph.ops]


@settings(max_examples=200)
@given(graphs())
def test_random_graphs_keep_every_bit(graph: Graph) -> None:
    optimized = optimize(graph)
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


def test_the_rules_are_named_and_described() -> None:
    assert len({r.name for r in RULES}) == len(RULES)
    assert all(r.doc.endswith(".") for r in RULES)


Case = Callable[[Naive], tuple[Tensor, ...]]


def image(b: Naive) -> Tensor:
    return b.relu(b.image((1, 4, 6, 6)))


def keep(b: Naive, x: Tensor) -> Tensor:
    """An op that no rule touches, so that what is before it is neither an input nor an output."""
    return b.unary(Builtin.ABS, x)


def squeeze(b: Naive) -> tuple[Tensor, ...]:
    x = b.image((1, 4, 1, 6))
    y = keep(b, b.op(Builtin.SQUEEZE, [x], (4, 6), Q, options={"squeezeDims": (0, 2)}))
    return (b.op(Builtin.EXPAND_DIMS, [y, b.ints((1,))], (4, 1, 6), Q),)


def whole(b: Naive) -> tuple[Tensor, ...]:
    y = b.slice(image(b), (0, 0, 0, 0), (1, 4, 6, 6))
    strided = [b.ints((0, 0, 0, 0)), b.ints((1, 4, 6, 6)), b.ints((1, 1, 1, 1))]
    return (keep(b, b.op(Builtin.STRIDED_SLICE, [keep(b, y), *strided], y.shape, Q)),)


def cut(b: Naive) -> tuple[Tensor, ...]:
    return (keep(b, b.slice(image(b), (0, 0, 0, 0), (1, 4, 6, 5))),)


def reversal(b: Naive) -> tuple[Tensor, ...]:
    x = image(b)
    strided = [b.ints((0, 0, 0, 5)), b.ints((1, 4, 6, -7)), b.ints((1, 1, 1, -1))]
    return (keep(b, b.op(Builtin.STRIDED_SLICE, [x, *strided], x.shape, Q)),)


def requantize_chain(b: Naive, *quants: Quant) -> tuple[Tensor, ...]:
    x = image(b)
    for quant in quants:
        x = b.op(Builtin.QUANTIZE, [x], x.shape, quant)
    return (keep(b, x),)


def round_trip(b: Naive, quant: Quant) -> tuple[Tensor, ...]:
    return (keep(b, b.quantize(b.dequantize(image(b)), quant)),)


def clamp(b: Naive, kind: Builtin, quant: Quant) -> tuple[Tensor, ...]:
    x = b.input("x", (1, 300), "int8", quant)
    return (keep(b, b.unary(kind, keep(b, x))),)


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


def activation_seen(b: Naive) -> tuple[Tensor, ...]:
    x = conv(b)
    return b.relu(x), x


def padded_conv(
    b: Naive,
    rows: tuple[int, int, int, int],
    *,
    stride: int = 1,
    dilation: int = 1,
    size: int = 7,
    fill: int | None = None,
) -> tuple[Tensor, ...]:
    x = b.image((1, size, size, 3))
    top, bottom, left, right = rows
    table = b.const(np.array([[0, 0], [top, bottom], [left, right], [0, 0]], np.int32))
    shape = (1, size + top + bottom, size + left + right, 3)
    if fill is None:
        padded = b.op(Builtin.PAD, [x, table], shape, Q)
    else:
        padded = b.op(Builtin.PADV2, [x, table, b.const(np.array([fill], np.int8), Q)], shape, Q)
    kernel, reach = 3, 2 * dilation + 1
    out = [(d - reach) // stride + 1 for d in shape[1:3]]
    options = {
        "strideH": stride, "strideW": stride, "padding": int(Padding.VALID),
        "dilationHFactor": dilation, "dilationWFactor": dilation,
    }  # fmt: skip
    operands = [padded, b.weights(4, kernel, kernel, 3), b.bias(x, 4)]
    return (b.op(Builtin.CONV_2D, operands, (1, *out, 4), Q, options=options),)


def matmul(b: Naive, perm: tuple[int, ...]) -> tuple[Tensor, ...]:
    x, y = b.image((2, 3, 5, 4)), b.image((2, 3, 4, 5), "y")
    left, right = b.transpose(x, perm), b.transpose(y, perm)
    quant = Quant.per_tensor(0.2, 1)
    shape = (*left.shape[:-1], right.shape[-1])
    return (b.op(Builtin.BATCH_MATMUL, [left, right], shape, quant, options={"adjX": False, "adjY": False}),)


def across_unary(b: Naive, seen: bool = False) -> tuple[Tensor, ...]:
    x = b.transpose(image(b), (0, 2, 1, 3))
    y = b.requantize(x, Q2)
    return (keep(b, b.transpose(y, (0, 3, 2, 1))), *([keep(b, x)] if seen else []))


def constants(b: Naive, quant: Quant) -> tuple[Tensor, ...]:
    x = b.image((1, 4))
    data = np.arange(4, dtype=np.int8)
    return (b.binary(Builtin.MUL, b.binary(Builtin.ADD, x, b.const(data, Q)), b.const(data, quant)),)


def twice(b: Naive, second: Quant = Q2) -> tuple[Tensor, ...]:
    x = image(b)
    one, two = b.requantize(x, Q2), b.op(Builtin.QUANTIZE, [x], x.shape, second)
    return (b.binary(Builtin.ADD, one, two),)


def moved_constant(b: Naive) -> tuple[Tensor, ...]:
    table = b.values(6, 4)
    moved = b.op(Builtin.TRANSPOSE, [table, b.ints((1, 0))], (4, 6), Q2)
    shaped = b.op(
        Builtin.RESHAPE, [moved, b.ints((1, 4, 1, 6))], (1, 4, 1, 6), Q2, options={"newShape": (1, 4, 1, 6)}
    )
    return (b.binary(Builtin.ADD, b.image(), shaped),)


def pads(b: Naive, amount: int) -> tuple[Tensor, ...]:
    return (keep(b, b.pad(image(b), [[0, 0], [0, 0], [0, 0], [0, amount]])),)


def tiles(b: Naive, times: int) -> tuple[Tensor, ...]:
    return (keep(b, b.op(Builtin.TILE, [image(b), b.ints((1, 1, 1, times))], (1, 4, 6, 6 * times), Q)),)


def concats(b: Naive, times: int) -> tuple[Tensor, ...]:
    return (keep(b, b.concat([image(b)] * times, 1)),)


def reshapes(b: Naive, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    x = image(b)
    for shape in shapes:
        x = b.op(Builtin.RESHAPE, [x, b.ints(shape)], shape, Q, options={"newShape": shape})
    return (keep(b, x),)


def transposed(b: Naive, shape: tuple[int, ...], *perms: tuple[int, ...]) -> tuple[Tensor, ...]:
    x = b.relu(b.image(shape))
    for perm in perms:
        x = b.op(Builtin.TRANSPOSE, [x, b.ints(perm)], tuple(x.shape[p] for p in perm), Q)
    return (keep(b, x),)


def free_after_seen(b: Naive) -> tuple[Tensor, ...]:
    x = b.transpose(b.image((1, 1, 6, 6)), (0, 1, 3, 2))
    return b.transpose(x, (0, 2, 1, 3)), x


def dead(b: Naive) -> tuple[Tensor, ...]:
    x = image(b)
    keep(b, keep(b, x))
    return (keep(b, x),)


def branches(b: Naive) -> tuple[Tensor, ...]:
    x = image(b)
    return keep(b, x), keep(b, keep(b, x))


def narrowing(b: Naive) -> tuple[Tensor, ...]:
    """What the first step cuts off, the second would have cut off too."""
    x = b.input("x", (256,), "int8", Quant.per_tensor(0.05, -128))
    y = b.requantize(b.requantize(x, Quant.per_tensor(0.05, 0)), Quant.per_tensor(0.0125, -128))
    return (y,)


TWICE = Quant.per_tensor(0.1, -3)  # twice the scale of Q: going there and back loses a bit

FIRES: list[tuple[str, Case, int]] = [
    ("remove_dead_op", dead, 2),
    ("reshape_in_place_of_squeeze", squeeze, 2),
    ("fold_constant_movement", moved_constant, 2),
    ("drop_identity_reshape", lambda b: reshapes(b, (1, 4, 6, 6)), 1),
    ("drop_identity_transpose", lambda b: transposed(b, (1, 2, 3), (0, 1, 2)), 1),
    ("drop_whole_slice", whole, 2),
    ("drop_empty_pad", lambda b: pads(b, 0), 1),
    ("drop_single_tile", lambda b: tiles(b, 1), 1),
    ("drop_single_concatenation", lambda b: concats(b, 1), 1),
    ("drop_same_quantize", lambda b: requantize_chain(b, Q), 1),
    ("drop_quantize_of_dequantize", lambda b: round_trip(b, Q), 1),
    ("merge_transposes", lambda b: transposed(b, (2, 3, 4), (1, 2, 0), (0, 2, 1)), 1),
    ("reshape_in_place_of_transpose", lambda b: transposed(b, (1, 3, 1, 4), (2, 1, 0, 3)), 1),
    ("merge_reshapes", lambda b: reshapes(b, (1, 4, 36), (1, 144), (12, 12)), 2),
    ("merge_movement_across_unary", across_unary, 1),
    ("fold_transpose_into_matmul", lambda b: matmul(b, (0, 1, 3, 2)), 2),
    ("merge_requantize", narrowing, 1),
    ("dedupe_constants", lambda b: constants(b, Q), 1),
    ("merge_common_ops", twice, 1),
    ("fold_pad", lambda b: padded_conv(b, (1, 1, 1, 1)), 1),
    ("fold_pad", lambda b: padded_conv(b, (0, 1, 0, 1), stride=2, size=8), 1),
    ("fold_pad", lambda b: padded_conv(b, (2, 2, 2, 2), dilation=2), 1),
    ("fold_pad", lambda b: padded_conv(b, (1, 1, 1, 1), fill=-3), 1),
    ("fuse_activation", lambda b: (b.relu(conv(b)),), 1),
    ("drop_idle_activation", lambda b: clamp(b, Builtin.RELU, RELU_Q), 1),
    ("drop_idle_activation", lambda b: clamp(b, Builtin.RELU6, Quant.per_tensor(0.02, -128)), 1),
    ("drop_idle_activation", lambda b: clamp(b, Builtin.RELU_N1_TO_1, Quant.per_tensor(1 / 256, 0)), 1),
]

STAYS_AWAY: list[tuple[str, Case]] = [
    ("remove_dead_op", branches),
    ("reshape_in_place_of_squeeze", lambda b: (keep(b, image(b)),)),
    ("fold_constant_movement", lambda b: reshapes(b, (4, 36))),
    ("drop_identity_reshape", lambda b: reshapes(b, (1, 4, 36))),
    ("drop_identity_transpose", lambda b: transposed(b, (2, 2, 2), (0, 2, 1))),
    ("drop_whole_slice", cut),
    ("drop_whole_slice", reversal),
    ("drop_empty_pad", lambda b: pads(b, 1)),
    ("drop_single_tile", lambda b: tiles(b, 2)),
    ("drop_single_concatenation", lambda b: concats(b, 2)),
    ("drop_same_quantize", lambda b: requantize_chain(b, Q2)),
    ("drop_quantize_of_dequantize", lambda b: round_trip(b, Q2)),
    ("merge_transposes", lambda b: transposed(b, (2, 3, 4), (1, 2, 0))),
    ("merge_transposes", free_after_seen),
    ("reshape_in_place_of_transpose", lambda b: transposed(b, (1, 3, 1, 4), (0, 3, 2, 1))),
    ("merge_reshapes", lambda b: reshapes(b, (1, 144))),
    ("merge_movement_across_unary", lambda b: across_unary(b, seen=True)),
    ("fold_transpose_into_matmul", lambda b: matmul(b, (1, 0, 2, 3))),
    ("merge_requantize", lambda b: requantize_chain(b, TWICE, Q2)),
    ("dedupe_constants", lambda b: constants(b, Q2)),
    ("merge_common_ops", lambda b: twice(b, TWICE)),
    ("fold_pad", lambda b: padded_conv(b, (1, 1, 1, 1), stride=2, size=8)),  # SAME would pad only after
    ("fold_pad", lambda b: padded_conv(b, (2, 0, 1, 1))),
    ("fold_pad", lambda b: padded_conv(b, (2, 2, 2, 2))),
    ("fold_pad", lambda b: padded_conv(b, (1, 1, 1, 1), fill=7)),
    ("fuse_activation", activation_seen),
    ("fuse_activation", lambda b: (b.unary(Builtin.RELU, conv(b), Q2),)),
    ("fuse_activation", lambda b: (b.relu(elementwise(Builtin.MAXIMUM)(b)),)),
    ("drop_idle_activation", lambda b: clamp(b, Builtin.RELU, Quant.per_tensor(0.05, -127))),
    ("drop_idle_activation", lambda b: clamp(b, Builtin.RELU6, Quant.per_tensor(0.025, -128))),
    ("drop_idle_activation", lambda b: clamp(b, Builtin.RELU_N1_TO_1, Quant.per_tensor(1 / 64, 0))),
]


@pytest.mark.parametrize(("name", "case", "times"), FIRES)
def test_fires(name: str, case: Case, times: int) -> None:
    b = Naive()
    counts, graph = fired(b, *case(b), rules=(name,))
    assert counts[name] == times
    fired(b, *graph.outputs)


@pytest.mark.parametrize(("name", "case"), STAYS_AWAY)
def test_stays_away(name: str, case: Case) -> None:
    b = Naive()
    counts, _ = fired(b, *case(b), rules=(name,))
    assert counts[name] == 0


def test_every_rule_has_a_case_for_and_against() -> None:
    names = {r.name for r in RULES}
    assert names == {case[0] for case in FIRES} == {case[0] for case in STAYS_AWAY}


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
    kept = optimize(graph, [r for r in RULES if r.name != "fuse_activation"])
    assert count(kept, Builtin.RELU) == 1 and isinstance(kept.ops[0], Op)
