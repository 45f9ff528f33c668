"""Random LiteRT graphs from a seed: int8 networks with branches, views, islands of float, several outputs."""

from __future__ import annotations

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Graph, Padding, Quant, Tensor

_ACTIVATIONS = [Activation.NONE, Activation.NONE, Activation.RELU, Activation.RELU6]


class RandomGraph:
    """Grows a graph by picking operators that fit a tensor already there."""

    def __init__(self, seed: int, size: int = 10):
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.pool: list[Tensor] = []
        self.ends: list[Tensor] = []  # results that no other operator takes
        for index in range(self._int(1, 2)):
            batch = self._pick([1, 1, 1, 2])
            shape = (batch, self._int(4, 12), self._int(4, 12), self._int(1, 9))
            if self.rng.random() < 0.15:  # without a batch, as torch allows it
                flat = self.b.input(f"in{index}", shape[1:], quant=self._quant())
                self.pool.append(self.b.reshape(flat, (1, *shape[1:])))
            elif self.rng.random() < 0.25:
                value = self.b.input(f"in{index}", shape, "float32")
                self.pool.append(self.b.quantize(value, self._quant()))
            else:
                self.pool.append(self.b.input(f"in{index}", shape, quant=self._quant()))
        ways = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        while len(self.b.ops) < size:
            # Recent tensors twice as likely: deep rather than wide.
            source = self.pool[
                -1 - min(self._int(0, 3), self._int(0, len(self.pool) - 1), len(self.pool) - 1)
            ]
            made = self._pick(ways)(source)
            for t in made if isinstance(made, list) else [made]:
                if t is not None:
                    self.pool.append(t)

    def graph(self) -> Graph:
        """The graph; what nobody reads is an output, and sometimes something in the middle too."""
        read = {t for op in self.b.ops for t in op.inputs}
        outputs = [t for t in self.pool if t not in read and t not in self.b.inputs]
        if self.rng.random() < 0.3:
            outputs.append(self._pick(self.pool))
        outputs = list(dict.fromkeys(outputs))[-4:] or [self.pool[-1]]
        outputs += self.ends[-2:]
        if self.rng.random() < 0.25 and outputs[0].dtype == "int8":
            outputs[0] = self.b.dequantize(outputs[0])
        return self.b.graph(outputs)

    # --- operators; each takes a tensor and returns what it makes, or None where it does not fit ---

    def do_conv(self, x):
        return self._conv(x, depthwise=False)

    def do_conv_again(self, x):
        return self._conv(x, depthwise=False)

    def do_depthwise(self, x):
        return self._conv(x, depthwise=True)

    def do_fully_connected(self, x):
        if x.elements > 600:
            return None
        rows = self._pick([1, 1, 2]) if x.elements % 2 == 0 else 1
        flat = self.b.reshape(x, (rows, x.elements // rows))
        units = self._int(1, 20)
        w, b = self._weights((units, flat.shape[1]), flat, axis=0)
        options = {"fusedActivationFunction": int(self._pick(_ACTIVATIONS)), "keepNumDims": False}
        return self.b.op(Builtin.FULLY_CONNECTED, [flat, w, b], (rows, units), self._quant(), options=options)

    def do_binary(self, x):
        kind = self._pick([Builtin.ADD, Builtin.SUB, Builtin.MUL])
        others = [t for t in self.pool if t.shape == x.shape and t.dtype == "int8"]
        other = self._pick(others)
        if self.rng.random() < 0.4:
            shape = self._pick([(), x.shape[-1:], x.shape])
            other = self.b.const(self._int8(shape), self._quant())
        options = {"fusedActivationFunction": int(self._pick(_ACTIVATIONS))}
        pair = [x, other] if self.rng.random() < 0.7 else [other, x]
        return self.b.op(kind, pair, x.shape, self._quant(), options=options)

    def do_extremum(self, x):
        others = [t for t in self.pool if t.shape == x.shape and t.quant == x.quant]
        kind = self._pick([Builtin.MAXIMUM, Builtin.MINIMUM])
        return self.b.op(kind, [x, self._pick(others)], x.shape, x.quant)

    def do_unary(self, x):
        kind, quant = self._pick(
            [
                (Builtin.RELU, x.quant),
                (Builtin.RELU6, x.quant),
                (Builtin.RELU, self._quant()),
                (Builtin.LOGISTIC, Quant.per_tensor(1 / 256, -128)),
                (Builtin.TANH, Quant.per_tensor(1 / 128, 0)),
                (Builtin.HARD_SWISH, self._quant()),
                (Builtin.QUANTIZE, self._quant()),
                (Builtin.QUANTIZE, x.quant),
            ]
        )
        return self.b.op(kind, [x], x.shape, quant)

    def do_rescale(self, x):
        """Half of the value at half of the scale: other meaning, same bytes."""
        half = self.b.const(np.array(1, np.int8), Quant.per_tensor(0.5))
        quant = Quant.per_tensor(x.quant.scale[0] / 2, x.quant.zero_point[0])
        return self.b.op(Builtin.MUL, [x, half], x.shape, quant, options={"fusedActivationFunction": 0})

    def do_leaky(self, x):
        return self.b.op(Builtin.LEAKY_RELU, [x], x.shape, self._quant(), options={"alpha": 0.25})

    def do_float_island(self, x):
        y = self.b.dequantize(x)
        for _ in range(self._int(1, 3)):
            kind = self._pick([Builtin.ABS, Builtin.NEG, Builtin.TANH, Builtin.SQUARE, Builtin.MUL])
            if kind is Builtin.MUL:
                scalar = self.b.const(np.array(self.rng.uniform(-2, 2), np.float32))
                y = self.b.op(
                    kind, [y, scalar], y.shape, dtype="float32", options={"fusedActivationFunction": 0}
                )
            else:
                y = self.b.op(kind, [y], y.shape, dtype="float32")
        return self.b.quantize(y, self._quant())

    def do_pool(self, x):
        if x.rank != 4:
            return None
        kind = self._pick([Builtin.MAX_POOL_2D, Builtin.AVERAGE_POOL_2D])
        kh, kw, sh, sw = (self._int(1, 3) for _ in range(4))
        padding = self._pick(list(Padding))
        out = self._window(x, (kh, kw), (sh, sw), (1, 1), padding)
        if out is None:
            return None
        options = {
            "padding": int(padding),
            "strideH": sh,
            "strideW": sw,
            "filterHeight": kh,
            "filterWidth": kw,
            "fusedActivationFunction": 0,
        }
        return self.b.op(kind, [x], (x.shape[0], *out, x.shape[3]), x.quant, options=options)

    def do_pad_conv(self, x):
        if x.rank != 4 or x.elements > 4000:
            return None
        amounts = np.array(
            [[0, 0], [self._int(0, 2), self._int(0, 2)], [self._int(0, 2), self._int(0, 2)], [0, 0]]
        )
        shape = tuple(int(d + a + b) for d, (a, b) in zip(x.shape, amounts, strict=True))
        padded = self.b.op(Builtin.PAD, [x, self.b.const(amounts.astype(np.int32))], shape, x.quant)
        return [padded, self._conv(padded, depthwise=self.rng.random() < 0.5)]

    def do_concat(self, x):
        axis = self._int(0, x.rank - 1)
        parts = [x]
        for t in self.pool:
            same = t.rank == x.rank and all(
                a == b for i, (a, b) in enumerate(zip(t.shape, x.shape, strict=True)) if i != axis
            )
            if same and t.dtype == "int8" and self.rng.random() < 0.5 and len(parts) < 3:
                parts.append(self.b.requantize(t, x.quant))
        if self.rng.random() < 0.5:
            axis -= x.rank
        shape = list(x.shape)
        shape[axis] = sum(t.shape[axis] for t in parts)
        if len(parts) == 1 or np.prod(shape) > 6000:
            return None
        return self.b.op(
            Builtin.CONCATENATION, parts, shape, x.quant, options={"axis": axis, "fusedActivationFunction": 0}
        )

    def do_slice(self, x):
        begin = [self._int(0, d - 1) for d in x.shape]
        if self.rng.random() < 0.5:  # along the outermost axis only: a view
            outer = next((i for i, d in enumerate(x.shape) if d > 1), 0)
            begin = [b if i == outer else 0 for i, b in enumerate(begin)]
        size = [d - b for d, b in zip(x.shape, begin, strict=True)]
        return self.b.op(Builtin.SLICE, [x, self.b.ints(begin), self.b.ints(size)], size, x.quant)

    def do_split(self, x):
        axes = [i for i, d in enumerate(x.shape) if d % 2 == 0]
        if not axes:
            return None
        axis = self._pick(axes)
        shape = [d // 2 if i == axis else d for i, d in enumerate(x.shape)]
        return self.b.multi_op(
            Builtin.SPLIT,
            [self.b.const(np.array(axis, np.int32)), x],
            [(shape, x.quant)] * 2,
            options={"numSplits": 2},
        )

    def do_unpack_pack(self, x):
        axis = self._int(0, x.rank - 1)
        if x.shape[axis] > 4:
            return None
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        parts = self.b.multi_op(
            Builtin.UNPACK,
            [x],
            [(shape, x.quant)] * x.shape[axis],
            options={"num": x.shape[axis], "axis": axis},
        )
        back = self._int(0, len(shape))
        out = (*shape[:back], len(parts), *shape[back:])
        if len(parts) == 1 or len(out) > 4:
            return None
        return self.b.op(Builtin.PACK, parts, out, x.quant, options={"valuesCount": len(parts), "axis": back})

    def do_strided_slice(self, x):
        if x.rank < 2:
            return None
        begin, end, stride = [0] * x.rank, list(x.shape), [1] * x.rank
        axis = self._int(0, x.rank - 1)
        stride[axis] = self._pick([1, 2])
        begin[axis] = self._int(0, x.shape[axis] - 1)
        shape = [len(range(b, e, s)) for b, e, s in zip(begin, end, stride, strict=True)]
        shrink = 0
        if self.rng.random() < 0.4 and x.rank > 2:
            shrink, begin[0], shape = 1, self._int(0, x.shape[0] - 1), shape[1:]
        options = {
            "beginMask": 0,
            "endMask": 0,
            "ellipsisMask": 0,
            "newAxisMask": 0,
            "shrinkAxisMask": shrink,
            "offset": False,
        }
        bounds = [self.b.ints(v) for v in (begin, end, stride)]
        return self.b.op(Builtin.STRIDED_SLICE, [x, *bounds], shape, x.quant, options=options)

    def do_reshape(self, x):
        shape = [d for d in x.shape if d != 1] or [1]
        if self.rng.random() < 0.5 and len(shape) > 1:
            shape = [shape[0] * shape[1], *shape[2:]]
        while len(shape) < 4:
            shape.insert(self._int(0, len(shape)), 1)
        return self.b.reshape(x, shape)

    def do_transpose(self, x):
        return self.b.transpose(x, [int(p) for p in self.rng.permutation(x.rank)])

    def do_softmax(self, x):
        return self.b.op(
            Builtin.SOFTMAX, [x], x.shape, Quant.per_tensor(1 / 256, -128), options={"beta": 1.0}
        )

    def do_mean(self, x):
        if x.rank != 4:
            return None
        shape = (x.shape[0], 1, 1, x.shape[3])
        return self.b.op(
            Builtin.MEAN, [x, self.b.ints((1, 2))], shape, self._quant(), options={"keepDims": True}
        )

    def do_broadcast(self, x):
        """Channel attention: a map times its own mean."""
        mean = self.do_mean(x)
        if mean is None:
            return None
        kind = self._pick([Builtin.MUL, Builtin.ADD, Builtin.SQUARED_DIFFERENCE])
        options = {} if kind is Builtin.SQUARED_DIFFERENCE else {"fusedActivationFunction": 0}
        return self.b.op(kind, [x, mean], x.shape, self._quant(), options=options)

    def do_prelu(self, x):
        slope = self.b.const(self._int8((1,) * (x.rank - 1) + x.shape[-1:]), self._quant())
        return self.b.op(Builtin.PRELU, [x, slope], x.shape, self._quant())

    def do_transpose_conv(self, x):
        if x.rank != 4 or x.elements > 400:
            return None
        channels, kernel, stride = self._int(1, 5), self._int(2, 3), self._int(1, 2)
        w, b = self._weights((channels, kernel, kernel, x.shape[3]), x, axis=0)
        shape = (x.shape[0], x.shape[1] * stride, x.shape[2] * stride, channels)
        options = {"padding": int(Padding.SAME), "strideH": stride, "strideW": stride}
        return self.b.op(
            Builtin.TRANSPOSE_CONV, [self.b.ints(shape), w, x, b], shape, self._quant(), options=options
        )

    def do_matmul(self, x):
        if x.rank < 3 or x.elements > 1500:
            return None
        options = {"adjX": False, "adjY": True}
        return self.b.op(
            Builtin.BATCH_MATMUL, [x, x], (*x.shape[:-1], x.shape[-2]), self._quant(), options=options
        )

    def do_resize(self, x):
        if x.rank != 4 or x.elements > 600:
            return None
        kind = self._pick([Builtin.RESIZE_BILINEAR, Builtin.RESIZE_NEAREST_NEIGHBOR])
        size = (2 * x.shape[1], 2 * x.shape[2])
        options = {"alignCorners": False, "halfPixelCenters": self.rng.random() < 0.5}
        shape = (x.shape[0], *size, x.shape[3])
        return self.b.op(kind, [x, self.b.ints(size)], shape, x.quant, options=options)

    def do_extremum_over_an_axis(self, x):
        axis = self._int(0, x.rank - 1)
        shape = [1 if a == axis else d for a, d in enumerate(x.shape)]
        kind = self._pick([Builtin.REDUCE_MAX, Builtin.REDUCE_MIN])
        return self.b.op(kind, [x, self.b.ints([axis])], shape, x.quant, options={"keepDims": True})

    def do_tile(self, x):
        times = [self._pick([1, 1, 2]) for _ in x.shape]
        if x.elements * np.prod(times) > 3000:
            return None
        shape = [d * t for d, t in zip(x.shape, times, strict=True)]
        return self.b.op(Builtin.TILE, [x, self.b.ints(times)], shape, x.quant)

    def do_mirror_pad(self, x):
        amounts = np.array([[min(1, d - 1), 0] for d in x.shape], np.int32)
        shape = [d + int(a.sum()) for d, a in zip(x.shape, amounts, strict=True)]
        if np.prod(shape) > 3000:
            return None
        return self.b.op(Builtin.MIRROR_PAD, [x, self.b.const(amounts)], shape, x.quant, options={"mode": 0})

    def do_grouped_conv(self, x):
        groups = [g for g in (2, 3, 4) if x.rank == 4 and x.shape[3] % g == 0]
        return self._conv(x, depthwise=False, groups=self._pick(groups)) if groups else None

    def do_wide_window(self, x):
        """Windows and strides as large as the map, or larger."""
        if x.rank != 4 or x.elements > 1200:
            return None
        kind = self._pick([Builtin.MAX_POOL_2D, Builtin.AVERAGE_POOL_2D])
        kernel, stride = ([self._int(1, d + 2) for d in x.shape[1:3]] for _ in range(2))
        padding = self._pick(list(Padding))
        out = self._window(x, kernel, stride, (1, 1), padding)
        if out is None:
            return None
        options = {
            "padding": int(padding),
            "strideH": stride[0],
            "strideW": stride[1],
            "filterHeight": kernel[0],
            "filterWidth": kernel[1],
            "fusedActivationFunction": 0,
        }
        return self.b.op(kind, [x], (x.shape[0], *out, x.shape[3]), x.quant, options=options)

    def do_gather(self, x):
        axis = self._int(0, x.rank - 1)
        indices = self.rng.integers(0, x.shape[axis], self._int(1, 6)).astype(np.int32)
        shape = [len(indices) if a == axis else d for a, d in enumerate(x.shape)]
        if np.prod(shape) > 3000:
            return None
        return self.b.op(
            Builtin.GATHER, [x, self.b.const(indices)], shape, x.quant, options={"axis": axis, "batchDims": 0}
        )

    def do_arg_max(self, x):
        axis = self._int(0, x.rank - 1)
        shape = [d for a, d in enumerate(x.shape) if a != axis]
        axes = self.b.const(np.array(axis, np.int32))
        self.ends.append(
            self.b.op(Builtin.ARG_MAX, [x, axes], shape, dtype="int32", options={"outputType": 2})
        )

    # --- helpers ---

    def _conv(self, x, depthwise, groups=1):
        if x.rank != 4 or x.dtype != "int8":
            return None
        kh, kw, sh, sw = self._int(1, 3), self._int(1, 3), self._int(1, 2), self._int(1, 2)
        dh, dw = (self._pick([1, 1, 2]), self._pick([1, 1, 2])) if sh == sw == 1 else (1, 1)
        padding = self._pick(list(Padding))
        out = self._window(x, (kh, kw), (sh, sw), (dh, dw), padding)
        if out is None:
            return None
        c = x.shape[3]
        multiplier = self._pick([1, 1, 2]) if depthwise else 1
        channels = c * multiplier if depthwise else groups * self._int(1, 12 // groups)
        shape = (1, kh, kw, channels) if depthwise else (channels, kh, kw, c // groups)
        w, b = self._weights(shape, x, axis=3 if depthwise else 0)
        options = {
            "padding": int(padding),
            "strideH": sh,
            "strideW": sw,
            "dilationHFactor": dh,
            "dilationWFactor": dw,
            "fusedActivationFunction": int(self._pick(_ACTIVATIONS)),
        }
        if depthwise:
            options["depthMultiplier"] = multiplier
        kind = Builtin.DEPTHWISE_CONV_2D if depthwise else Builtin.CONV_2D
        return self.b.op(kind, [x, w, b], (x.shape[0], *out, channels), self._quant(), options=options)

    def _window(self, x, kernel, stride, dilation, padding):
        size = []
        for d, k, s, f in zip(x.shape[1:3], kernel, stride, dilation, strict=True):
            reach = (k - 1) * f + 1
            if padding is Padding.VALID and d < reach:
                return None
            size.append(-(-d // s) if padding is Padding.SAME else (d - reach) // s + 1)
        return tuple(size)

    def _weights(self, shape, x, axis):
        count = shape[axis]
        scales = self.rng.uniform(0.002, 0.02, count if self.rng.random() < 0.6 else 1).astype(np.float32)
        quant = Quant.per_axis(scales, axis=axis) if len(scales) > 1 else Quant.per_tensor(scales[0])
        bias_scales = np.float32(x.quant.scale[0]) * scales
        bias_quant = Quant.per_axis(bias_scales) if len(scales) > 1 else Quant.per_tensor(bias_scales[0])
        weights = self.rng.integers(-127, 128, shape).astype(np.int8)
        bias = self.rng.integers(-3000, 3000, count).astype(np.int32)
        return self.b.const(weights, quant), self.b.const(bias, bias_quant)

    def _quant(self):
        return Quant.per_tensor(float(self.rng.uniform(0.01, 0.15)), self._int(-128, 127))

    def _int8(self, shape):
        return self.rng.integers(-128, 128, shape).astype(np.int8)

    def _int(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def _pick(self, items):
        return items[self._int(0, len(items) - 1)]


def random_graph(seed: int, size: int = 10) -> Graph:
    """The random graph of a seed."""
    return RandomGraph(seed, size).graph()


def random_inputs(graph: Graph, seed: int) -> list[np.ndarray]:
    """Inputs that use the whole range, extremes included."""
    rng = np.random.default_rng(seed)
    result = []
    for t in graph.inputs:
        if t.dtype == "float32":
            result.append(rng.normal(0, 4, t.shape).astype(np.float32))
        else:
            values = rng.integers(-128, 128, t.shape)
            result.append(
                np.where(rng.random(t.shape) < 0.1, rng.choice([-128, 127], t.shape), values).astype(np.int8)
            )
    return result
