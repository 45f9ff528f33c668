"""Random networks that can run in stripes: windows of all kinds, element-wise operators, residuals."""

from __future__ import annotations

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Quant, Tensor
from tests.compiler.graphs import RandomGraph


class StripedGraph(RandomGraph):
    """A chain of blocks, some with a branch around them, on maps of a few dozen rows."""

    def __init__(self, seed: int, blocks: int = 4):
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.pool: list[Tensor] = []
        shape = (1, self._int(6, 24), self._int(3, 9), self._int(1, 9))
        if seed % 6 == 5:
            shape = self._pick(
                [(1, 1, self._int(12, 40), shape[3]), (1, self._int(12, 40), 1, shape[3])]
            )  # 1-D
        x = self.b.input("x", shape, quant=self._quant())
        if seed % 5 == 4 and min(shape[1:]) > 1:  # in planes, or in another order still
            order = self._pick([(0, 2, 3, 1), (0, 2, 3, 1), (0, 3, 2, 1), (0, 2, 1, 3)])
            x = self.b.transpose(x, order)
        self.outputs: list[Tensor] = []
        for _ in range(blocks):
            before = x
            for _ in range(self._int(1, 3)):
                x = self._layer(x)
            x = self._joined(before, x)
            if self._int(0, 9) == 0:
                self.outputs.append(x)  # something in the middle is wanted too
        ending = self._int(0, 7)
        if ending < 4:
            x = self._head(x)
        elif ending < 6:
            x = self._planes(x)
        elif ending == 6 and x.shape[3] % 2 == 0:
            x = self._shuffled(x)
        self.outputs.append(x)

    def graph(self) -> Graph:
        return self.b.graph(list(dict.fromkeys(t for t in self.outputs if t not in self.b.inputs)))

    def _layer(self, x: Tensor) -> Tensor:
        ways = [self.do_conv, self.do_conv, self.do_depthwise, self.do_depthwise, self.do_pool, self.do_unary,
                self.do_leaky, self._with_constant, self._in_halves, self._larger, self._larger]  # fmt: skip
        made = self._pick(ways)(x)
        return x if made is None or max(made.shape[1:3]) < 2 else made

    def _with_constant(self, x: Tensor) -> Tensor:
        shape = self._pick([x.shape[-1:], (1, 1, x.shape[2], x.shape[3]), x.shape])
        other = self.b.const(self._int8(shape), self._quant())
        kind = self._pick([Builtin.ADD, Builtin.MUL, Builtin.SUB])
        return self.b.op(kind, [x, other], x.shape, self._quant(), options={"fusedActivationFunction": 0})

    def _larger(self, x: Tensor) -> Tensor | None:
        """The map with more rows: resized, by a transposed convolution, or with pixels from channels."""
        up = self._int(1, 3), self._int(1, 3)
        shape = (1, up[0] * x.shape[1], up[1] * x.shape[2], x.shape[3])
        if max(shape[1:3]) > 60 or x.shape[1] == 1:
            return None
        way = self._int(0, 3)
        if way == 0 and x.shape[3] % 4 == 0:
            shape = (1, 2 * x.shape[1], 2 * x.shape[2], x.shape[3] // 4)
            return self.b.op(Builtin.DEPTH_TO_SPACE, [x], shape, x.quant, options={"blockSize": 2})
        if way == 1:
            kernel = self._int(1, 4), self._int(1, 4)
            channels = self._int(1, 6)
            w, b = self._weights((channels, *kernel, x.shape[3]), x, axis=0)
            shape = (*shape[:3], channels)
            options = {"padding": 0, "strideH": up[0], "strideW": up[1], "fusedActivationFunction": 0}
            inputs = [self.b.ints(shape), w, x, b]
            return self.b.op(Builtin.TRANSPOSE_CONV, inputs, shape, self._quant(), options=options)
        kind = Builtin.RESIZE_BILINEAR if way == 2 else Builtin.RESIZE_NEAREST_NEIGHBOR
        options = {"alignCorners": False, "halfPixelCenters": bool(self._int(0, 1))}
        return self.b.op(kind, [x, self.b.ints(shape[1:3])], shape, x.quant, options=options)

    def _in_halves(self, x: Tensor) -> Tensor | None:
        """The channels in two parts, each on its own way, put together again: views with gaps."""
        if x.shape[3] < 2:
            return None
        at, quant, parts = self._int(1, x.shape[3] - 1), self._quant(), []
        for begin, end in ((0, at), (at, x.shape[3])):
            shape = (*x.shape[:3], end - begin)
            begins, sizes = self.b.ints((0, 0, 0, begin)), self.b.ints(shape)
            part = self.b.op(Builtin.SLICE, [x, begins, sizes], shape, x.quant)
            other = self.b.const(self._int8(shape[-1:]), self._quant())
            options = {"fusedActivationFunction": 0}
            parts.append(self.b.op(Builtin.ADD, [part, other], shape, quant, options=options))
        options = {"axis": 3, "fusedActivationFunction": 0}
        return self.b.op(Builtin.CONCATENATION, parts, x.shape, quant, options=options)

    def _joined(self, before: Tensor, x: Tensor) -> Tensor:
        """The sum with what came before the block, or with a convolution of it, where the shapes allow it."""
        if before is x or before.shape[1:3] != x.shape[1:3] or self._int(0, 2) == 0:
            return x
        if self._int(0, 3) == 0:
            return self._side_by_side(before, x)
        if before.shape != x.shape:
            before = self._pointwise(before, x.shape[3])
        kind = self._pick([Builtin.ADD, Builtin.ADD, Builtin.MUL, Builtin.MAXIMUM])
        if kind is Builtin.MAXIMUM:
            quant = x.quant
            before = self.b.op(Builtin.QUANTIZE, [before], before.shape, quant)
            return self.b.op(kind, [before, x], x.shape, quant)
        return self.b.op(kind, [before, x], x.shape, self._quant(), options={"fusedActivationFunction": 0})

    def _side_by_side(self, before: Tensor, x: Tensor) -> Tensor:
        """Both, and a convolution of one of them, concatenated along the channels in any order."""
        parts = [self._pointwise(self._pick([before, x]), self._int(1, 9)), before, x]
        quant = parts[0].quant
        parts[1:] = [self.b.op(Builtin.QUANTIZE, [t], t.shape, quant) for t in parts[1:]]
        parts = [parts[i] for i in self.rng.permutation(3)]
        shape = (*x.shape[:3], sum(t.shape[3] for t in parts))
        options = {"axis": 3, "fusedActivationFunction": 0}
        return self.b.op(Builtin.CONCATENATION, parts, shape, quant, options=options)

    def _pointwise(self, x: Tensor, channels: int) -> Tensor:
        w, b = self._weights((channels, 1, 1, x.shape[3]), x, axis=0)
        options = {"padding": 0, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1,
                   "fusedActivationFunction": 0}  # fmt: skip
        shape = (*x.shape[:3], channels)
        return self.b.op(Builtin.CONV_2D, [x, w, b], shape, self._quant(), options=options)

    def _head(self, x: Tensor) -> Tensor:
        """What takes all rows: a reduction over them, a pool as large as the map, a fully connected layer."""
        way = self._int(0, 4)
        if way == 0:
            return self._product(self.b.reshape(x, (1, x.elements)), (1, self._int(1, 70)))
        if way == 1:
            kind = self._pick([Builtin.AVERAGE_POOL_2D, Builtin.MAX_POOL_2D])
            options = {"padding": 1, "strideH": 1, "strideW": 1, "filterHeight": x.shape[1],
                       "filterWidth": x.shape[2], "fusedActivationFunction": self._int(0, 3)}  # fmt: skip
            return self.b.op(kind, [x], (1, 1, 1, x.shape[3]), x.quant, options=options)
        if way == 2 and x.shape[2] == 1:  # features of a sequence, and their mean
            x = self.b.reshape(x, (1, x.shape[1], x.shape[3]))
            for _ in range(2):
                x = self._product(x, (*x.shape[:2], self._int(1, 20)))
        keep = bool(self._int(0, 1))
        shape = (*([1] * (x.rank - 1) if keep else [1]), x.shape[-1])
        kind = self._pick([Builtin.MEAN, Builtin.MEAN, Builtin.REDUCE_MAX, Builtin.REDUCE_MIN])
        quant = self._quant() if kind is Builtin.MEAN else x.quant
        axes = self.b.ints(range(1, x.rank - 1))
        return self.b.op(kind, [x, axes], shape, quant, options={"keepDims": keep})

    def _product(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        w, b = self._weights((shape[-1], x.shape[-1]), x, axis=0)
        options = {"fusedActivationFunction": 0, "keepNumDims": len(shape) > 2}
        return self.b.op(Builtin.FULLY_CONNECTED, [x, w, b], shape, self._quant(), options=options)

    def _planes(self, x: Tensor) -> Tensor:
        return self.b.transpose(x, (0, 3, 1, 2))

    def _shuffled(self, x: Tensor) -> Tensor:
        """Pixels from channels, as PyTorch has it: in planes, which are interleaved in rows or in columns."""
        _, h, w, c = x.shape
        split = self.b.reshape(self._planes(x), (1, c // 2, 2, h, w))
        if self._int(0, 1):
            return self.b.reshape(self.b.transpose(split, (0, 1, 3, 2, 4)), (1, c // 2, 2 * h, w))
        return self.b.reshape(self.b.transpose(split, (0, 1, 3, 4, 2)), (1, c // 2, h, 2 * w))


class PictureGraph(StripedGraph):
    """A picture, in planes or with its channels together, that is most of what the network needs."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.pool = []
        height, width, channels = self._int(24, 72), self._int(24, 72), self._int(1, 4)
        if self._int(0, 2):
            x = self.b.input("x", (1, height, width, channels), quant=self._quant())
        else:
            x = self.b.input("x", (1, channels, height, width), quant=self._quant())
            x = self.b.op(
                Builtin.TRANSPOSE, [x, self.b.ints((0, 2, 3, 1))], (1, height, width, channels), x.quant
            )
        ways = [self._depthwise, self._inverted, self._inverted, self.do_pool, self.do_unary, self.do_conv]
        x = self._layer_of(x, self._int(1, 7), 2, self._int(4, 10))
        for _ in range(self._int(1, 3)):
            made = self._pick(ways)(x)
            x = x if made is None or min(made.shape[1:3]) < 8 else made
        x = self._inverted(x, 2)
        self.outputs = [self._pick([self._head, self._planes, lambda t: t])(x)]

    def _layer_of(self, x: Tensor, kernel: int, stride: int, channels: int) -> Tensor:
        """A convolution, `channels` 0 means depthwise; padded or not where it may be."""
        n, h, w, c = x.shape
        valid = min(h, w) > kernel + 2 and self._int(0, 2) == 0
        shape = (channels, kernel, kernel, c) if channels else (1, kernel, kernel, c)
        weights, bias = self._weights(shape, x, axis=0 if channels else 3)
        options = {"padding": int(valid), "strideH": stride, "strideW": stride, "dilationHFactor": 1,
                   "dilationWFactor": 1, "fusedActivationFunction": self._int(0, 1)}  # fmt: skip
        if not channels:
            options["depthMultiplier"] = 1
        if valid:
            h, w = h - kernel + 1, w - kernel + 1
        out = (n, -(-h // stride), -(-w // stride), channels or c)
        kind = Builtin.CONV_2D if channels else Builtin.DEPTHWISE_CONV_2D
        return self.b.op(kind, [x, weights, bias], out, self._quant(), options=options)

    def _depthwise(self, x: Tensor, stride: int = 0) -> Tensor:
        return self._layer_of(x, self._pick([2, 3, 3, 5]), stride or self._int(1, 2), 0)

    def _inverted(self, x: Tensor, stride: int = 0) -> Tensor:
        """Wider, a depthwise convolution, narrow again; sometimes the sum with what came before."""
        wide = self._layer_of(x, 1, 1, self._int(2, 5) * x.shape[3])
        made = self._layer_of(self._depthwise(wide, stride), 1, 1, x.shape[3])
        if made.shape != x.shape or self._int(0, 1):
            return made
        return self.b.op(
            Builtin.ADD, [x, made], x.shape, self._quant(), options={"fusedActivationFunction": 0}
        )


def picture_graph(seed: int) -> Graph:
    """The network on a picture of a seed."""
    return PictureGraph(seed).graph()


def striped_graph(seed: int) -> Graph:
    """The network of a seed; a few seeds yield one without any operator, which gets one."""
    made = StripedGraph(seed)
    if not made.b.ops or not made.graph().outputs:
        x = made.b.inputs[0]
        made.outputs.append(made.b.op(Builtin.LOGISTIC, [x], x.shape, Quant.per_tensor(1 / 256, -128)))
    return made.graph()


def values(graph: Graph, seed: int) -> list[np.ndarray]:
    """Inputs for it."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-128, 128, t.shape, np.int8) for t in graph.inputs]
