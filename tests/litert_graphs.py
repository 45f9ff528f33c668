"""LiteRT graphs for tests, built as the lowering builds them: tensors as is, spatial ops in transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Padding, Quant, Tensor
from openneutron.litert.reference import run_reference

Q = Quant.per_tensor(0.05, -3)
Q2 = Quant.per_tensor(0.08, 5)


def inputs_for(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    """Random inputs for a graph."""
    random = np.random.default_rng(seed)
    return [
        random.integers(-128, 128, t.shape).astype(np.int8)
        if t.dtype == "int8"
        else random.integers(0, 2, t.shape).astype(t.dtype)  # indices, within what there is anywhere
        if t.dtype in ("int32", "int64")
        else random.normal(0, 2, t.shape).astype(np.float32)
        for t in graph.inputs
    ]


def assert_same(before: Graph, after: Graph, seed: int = 0) -> None:
    """Both graphs have the same inputs and outputs, and give the same bits on the oracle."""
    assert [(t.name, t.shape) for t in before.inputs] == [(t.name, t.shape) for t in after.inputs]
    assert [(t.name, t.shape) for t in before.outputs] == [(t.name, t.shape) for t in after.outputs]
    inputs = inputs_for(before, seed)
    for old, new in zip(run_reference(before, inputs), run_reference(after, inputs), strict=True):
        np.testing.assert_array_equal(old, new)


def count(graph: Graph, kind: Builtin) -> int:
    """How many ops of one kind a graph has."""
    return sum(op.kind is kind for op in graph.ops)


class Naive(Builder):
    """A builder with the lowering's view of operators: PyTorch's, on tensors that stay as they are."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__("test")
        self.random = np.random.default_rng(seed)

    def image(self, shape: Sequence[int] = (1, 4, 6, 6), name: str = "x") -> Tensor:
        return self.input(name, shape, "int8", Q)

    def weights(self, *shape: int) -> Tensor:
        return self.const(
            self.random.integers(-127, 128, shape).astype(np.int8), Quant.per_tensor(0.01), "weights"
        )

    def values(self, *shape: int, quant: Quant = Q2) -> Tensor:
        return self.const(self.random.integers(-128, 128, shape).astype(np.int8), quant, "values")

    def bias(self, x: Tensor, size: int) -> Tensor:
        assert x.quant is not None
        scale = Quant.per_tensor(x.quant.scale[0] * 0.01)
        return self.const(self.random.integers(-500, 500, size).astype(np.int32), scale, "bias")

    def conv(
        self, x: Tensor, channels: int = 4, kernel: int = 3, stride: int = 1, same: bool = True
    ) -> Tensor:
        last = self.to_channels_last(x)
        n, h, w, c = last.shape
        if same:
            h, w = -(-h // stride), -(-w // stride)
        else:
            h, w = (h - kernel) // stride + 1, (w - kernel) // stride + 1
        options = {
            "strideH": stride, "strideW": stride, "padding": int(Padding.SAME if same else Padding.VALID),
            "dilationHFactor": 1, "dilationWFactor": 1,
        }  # fmt: skip
        operands = [last, self.weights(channels, kernel, kernel, c), self.bias(x, channels)]
        return self.to_channels_first(
            self.op(Builtin.CONV_2D, operands, (n, h, w, channels), Q, options=options)
        )

    def pool(self, x: Tensor, kind: Builtin = Builtin.MAX_POOL_2D) -> Tensor:
        last = self.to_channels_last(x)
        n, h, w, c = last.shape
        options = {
            "filterHeight": 2,
            "filterWidth": 2,
            "strideH": 2,
            "strideW": 2,
            "padding": int(Padding.VALID),
        }
        return self.to_channels_first(self.op(kind, [last], (n, h // 2, w // 2, c), x.quant, options=options))

    def unary(self, kind: Builtin, x: Tensor, quant: Quant | None = None) -> Tensor:
        return self.op(kind, [x], x.shape, quant or x.quant)

    def relu(self, x: Tensor) -> Tensor:
        return self.unary(Builtin.RELU, x)

    def binary(self, kind: Builtin, a: Tensor, b: Tensor, quant: Quant = Q) -> Tensor:
        return self.op(kind, [a, b], np.broadcast_shapes(a.shape, b.shape), quant)

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        shape = list(tensors[0].shape)
        shape[axis] = sum(t.shape[axis] for t in tensors)
        return self.op(Builtin.CONCATENATION, tensors, shape, tensors[0].quant, options={"axis": axis})

    def pad(self, x: Tensor, rows: Sequence[Sequence[int]], kind: Builtin = Builtin.PAD) -> Tensor:
        shape = [d + a + b for d, (a, b) in zip(x.shape, rows, strict=True)]
        return self.op(kind, [x, self.const(np.array(rows, np.int32), name="rows")], shape, x.quant)

    def slice(self, x: Tensor, begin: Sequence[int], size: Sequence[int]) -> Tensor:
        return self.op(Builtin.SLICE, [x, self.ints(begin), self.ints(size)], size, x.quant)

    def reduce(
        self, kind: Builtin, x: Tensor, axes: Sequence[int], keep: bool = True, quant: Quant | None = None
    ) -> Tensor:
        shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
        return self.op(kind, [x, self.ints(axes)], shape, quant or x.quant, options={"keepDims": keep})

    def linear(self, x: Tensor, features: int) -> Tensor:
        operands = [x, self.weights(features, x.shape[-1]), self.bias(x, features)]
        options: dict[str, Any] = {"keepNumDims": x.rank > 2}
        return self.op(Builtin.FULLY_CONNECTED, operands, (*x.shape[:-1], features), Q, options=options)

    def softmax(self, x: Tensor) -> Tensor:
        quant = Quant.per_tensor(1 / 256, -128)
        return self.op(Builtin.SOFTMAX, [x], x.shape, quant, options={"beta": 1.0})


@st.composite
def graphs(draw: st.DrawFn, size: int = 10) -> Graph:
    """Random graphs of up to `size` lowered operators, with branches and several outputs."""
    b = Naive(draw(st.integers(0, 99)))
    n = draw(st.sampled_from([1, 2]))
    shapes = draw(
        st.lists(st.sampled_from([(n, 4, 6, 6), (n, 4, 1, 1), (n, 1, 6, 6)]), min_size=1, max_size=2)
    )
    live = []
    for shape in shapes:
        if draw(st.booleans()):  # as torch sees a channels-last model: a permuted view of what is in memory
            live.append(b.to_channels_first(b.image((shape[0], *shape[2:], shape[1]))))
        else:
            live.append(b.image(shape))
    for _ in range(draw(st.integers(2, size))):
        live.append(_step(draw, b, draw(st.sampled_from(live[-4:])), live))
    outputs = list(dict.fromkeys([live[-1], *draw(st.lists(st.sampled_from(live), max_size=2))]))
    return b.graph([t for t in outputs if t not in b.inputs] or [b.relu(live[0])])


def _step(draw: st.DrawFn, b: Naive, x: Tensor, live: list[Tensor]) -> Tensor:
    """One more lowered operator, on x."""
    choices = ["unary", "constant", "requantize", "binary", "concat", "reshape", "permute", "reduce", "slice"]
    choices += ["conv", "conv", "conv", "pool", "pad"] if x.rank == 4 else []
    choices += ["linear", "softmax"] if x.rank == 2 else ["last", "flatten"]
    choice = draw(st.sampled_from(choices))
    axes = list(range(1, x.rank))
    if choice == "unary":
        return b.unary(draw(st.sampled_from([Builtin.RELU, Builtin.LEAKY_RELU, Builtin.ABS])), x)
    if choice == "requantize":
        return b.requantize(x, draw(st.sampled_from([Q, Q2])))
    if choice == "constant":
        shape = draw(
            st.sampled_from([x.shape, (1,) * x.rank, x.shape[1:], (1, *x.shape[1:2]) + (1,) * (x.rank - 2)])
        )
        kind = draw(st.sampled_from([Builtin.ADD, Builtin.MUL, Builtin.SUB]))
        return b.binary(kind, x, b.values(*shape))
    if choice in ("binary", "concat"):
        axis = draw(st.sampled_from(axes))
        if choice == "binary":
            fits = [t for t in live if t.rank == x.rank and _broadcasts(t, x)]
            return b.binary(draw(st.sampled_from([Builtin.ADD, Builtin.MUL])), x, draw(st.sampled_from(fits)))
        fits = [t for t in live if t.rank == x.rank and t.quant == x.quant]
        fits = [t for t in fits if _but(t.shape, axis) == _but(x.shape, axis)]
        return b.concat([x, draw(st.sampled_from(fits))], axis)
    if choice == "reshape":
        n, c, *rest = x.shape
        spatial = int(np.prod(rest))
        targets = [
            (n, c, spatial),
            (n, c, spatial, 1),
            (n, c, 1, spatial),
            (n, c * spatial, 1),
            (n, 1, c, spatial),
        ]
        return b.reshape(x, draw(st.sampled_from(targets)))
    if choice == "flatten":
        return b.reshape(x, (x.shape[0], x.elements // x.shape[0]))
    if choice == "permute":
        return b.transpose(x, (0, *draw(st.permutations(axes))))
    if choice == "last":
        return b.transpose(x, draw(st.sampled_from([(0, *axes[1:], 1), (0, x.rank - 1, *axes[:-1])])))
    if choice == "reduce":
        kind = draw(st.sampled_from([Builtin.MEAN, Builtin.REDUCE_MAX, Builtin.REDUCE_MIN]))
        picked = draw(st.lists(st.sampled_from(axes), min_size=1, max_size=2, unique=True))
        keep = draw(st.booleans()) or x.rank - len(picked) < 2
        return b.reduce(kind, x, sorted(picked), keep)
    if choice == "slice":
        begin = [draw(st.integers(0, d - 1)) if i else 0 for i, d in enumerate(x.shape)]
        return b.slice(x, begin, [d - o for d, o in zip(x.shape, begin, strict=True)])
    if choice == "pool" and min(x.shape[2:]) >= 2:
        return b.pool(x, draw(st.sampled_from([Builtin.MAX_POOL_2D, Builtin.AVERAGE_POOL_2D])))
    if choice == "pad":
        rows = [[0, 0], *([draw(st.integers(0, 1)), draw(st.integers(0, 1))] for _ in axes)]
        return b.pad(x, rows)
    if choice == "linear":
        y = b.linear(x, draw(st.sampled_from([4, 8])))
        return b.reshape(y, (y.shape[0], 4, y.shape[1] // 4, 1)) if draw(st.booleans()) else y
    if choice == "softmax":
        return b.requantize(b.softmax(x), Q)
    if x.rank == 4:
        return b.conv(
            x, draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2]))
        )
    return b.relu(x)


def _broadcasts(a: Tensor, b: Tensor) -> bool:
    return all(p == q or 1 in (p, q) for p, q in zip(a.shape, b.shape, strict=True))


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
