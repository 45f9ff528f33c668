"""The networks that times are published of, as LiteRT graphs with random weights: only shapes count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Graph, Padding, Quant, Tensor


class Network:
    """A builder of int8 networks, layer by layer."""

    def __init__(self, *shape: int, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.b = Builder()
        self.x = self.b.input("input", shape, quant=self._quant())

    def _quant(self) -> Quant:
        return Quant.per_tensor(float(self.rng.uniform(0.02, 0.1)), int(self.rng.integers(-20, 20)))

    def _weights(self, x: Tensor, shape: tuple[int, ...], axis: int) -> tuple[Tensor, Tensor]:
        scales = self.rng.uniform(0.002, 0.01, shape[axis]).astype(np.float32)
        weights = self.rng.integers(-127, 128, shape).astype(np.int8)
        bias = self.rng.integers(-2000, 2000, shape[axis]).astype(np.int32)
        assert x.quant is not None
        bias_quant = Quant.per_axis(np.float32(x.quant.scale[0]) * scales)
        return self.b.const(weights, Quant.per_axis(scales, axis=axis)), self.b.const(bias, bias_quant)

    def conv(
        self,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        relu: bool = True,
        padding: Padding = Padding.SAME,
    ) -> Network:
        """A convolution; `channels` 0 means depthwise."""
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        n, h, w, c = self.x.shape
        depthwise = channels == 0
        shape = (1, kh, kw, c) if depthwise else (channels, kh, kw, c)
        weights, bias = self._weights(self.x, shape, 3 if depthwise else 0)
        options = {"padding": int(padding), "strideH": stride, "strideW": stride, "dilationHFactor": 1,
                   "dilationWFactor": 1,
                   "fusedActivationFunction": int(Activation.RELU6 if relu else Activation.NONE)}  # fmt: skip
        if depthwise:
            options["depthMultiplier"] = 1
        kind = Builtin.DEPTHWISE_CONV_2D if depthwise else Builtin.CONV_2D
        if padding is Padding.VALID:
            h, w = h - kh + 1, w - kw + 1
        out = (n, -(-h // stride), -(-w // stride), channels or c)
        self.x = self.b.op(kind, [self.x, weights, bias], out, self._quant(), options=options)
        return self

    def pool(self, kind: Builtin, size: tuple[int, int], stride: tuple[int, int]) -> Network:
        """VALID pooling."""
        n, h, w, c = self.x.shape
        out = (n, (h - size[0]) // stride[0] + 1, (w - size[1]) // stride[1] + 1, c)
        options = {"padding": int(Padding.VALID), "strideH": stride[0], "strideW": stride[1],
                   "filterHeight": size[0], "filterWidth": size[1], "fusedActivationFunction": 0}  # fmt: skip
        self.x = self.b.op(kind, [self.x], out, self.x.quant, options=options)
        return self

    def add(self, other: Tensor) -> Network:
        """Residual connection."""
        options = {"fusedActivationFunction": 0}
        self.x = self.b.op(Builtin.ADD, [other, self.x], self.x.shape, self._quant(), options=options)
        return self

    def double(self) -> Network:
        """Nearest neighbours, twice the rows and columns."""
        n, h, w, c = self.x.shape
        options = {"alignCorners": False, "halfPixelCenters": False}
        size = self.b.ints((2 * h, 2 * w))
        kind = Builtin.RESIZE_NEAREST_NEIGHBOR
        self.x = self.b.op(kind, [self.x, size], (n, 2 * h, 2 * w, c), self.x.quant, options=options)
        return self

    def beside(self, *others: Tensor) -> Network:
        """Concatenation along the channels, of one scale."""
        quant = self._quant()
        parts = [self.b.op(Builtin.QUANTIZE, [t], t.shape, quant) for t in (*others, self.x)]
        shape = (*self.x.shape[:3], sum(t.shape[3] for t in parts))
        options = {"axis": 3, "fusedActivationFunction": 0}
        self.x = self.b.op(Builtin.CONCATENATION, parts, shape, quant, options=options)
        return self

    def dense(self, size: int, relu: bool = True) -> Network:
        """Fully connected, of a map as a row."""
        flat = self.x if self.x.rank == 2 else self.b.reshape(self.x, (1, self.x.elements))
        weights, bias = self._weights(flat, (size, flat.shape[1]), 0)
        options = {"fusedActivationFunction": int(Activation.RELU if relu else Activation.NONE),
                   "keepNumDims": False}  # fmt: skip
        self.x = self.b.op(
            Builtin.FULLY_CONNECTED, [flat, weights, bias], (1, size), self._quant(), options=options
        )
        return self

    def classify(self, classes: int) -> Graph:
        """Flatten, fully connected, softmax."""
        self.dense(classes, relu=False)
        quant = Quant.per_tensor(1 / 256, -128)
        return self.b.graph(
            [self.b.op(Builtin.SOFTMAX, [self.x], (1, classes), quant, options={"beta": 1.0})]
        )


def cifarnet() -> Graph:
    """CifarNet: 5x5 convolutions with 32, 32 and 64 channels, each with a 2x2 pool; 12,298,240 MACs."""
    net = Network(1, 32, 32, 3)
    for channels in (32, 32, 64):
        net.conv(channels, 5).pool(Builtin.MAX_POOL_2D, (2, 2), (2, 2))
    return net.classify(10)


def dscnn() -> Graph:
    """DS-CNN for keywords as in MLPerf Tiny: 64 channels, four separable convolutions; 2,656,768 MACs."""
    net = Network(1, 49, 10, 1).conv(64, (10, 4), 2)
    for _ in range(4):
        net.conv(0, 3).conv(64, 1)
    rows, columns = net.x.shape[1:3]
    return net.pool(Builtin.AVERAGE_POOL_2D, (rows, columns), (1, 1)).classify(12)


def mobilenet_v1(alpha: float = 0.25, size: int = 128, classes: int = 1001) -> Graph:
    """MobileNetV1."""
    net = Network(1, size, size, 3).conv(int(32 * alpha), 3, 2)
    for channels, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5,
                             (1024, 2), (1024, 1)):  # fmt: skip
        net.conv(0, 3, stride).conv(int(channels * alpha), 1)
    rows, columns = net.x.shape[1:3]
    return net.pool(Builtin.AVERAGE_POOL_2D, (rows, columns), (1, 1)).classify(classes)


def autoencoder() -> Graph:
    """Anomaly detection as in MLPerf Tiny: fully connected, 640 to 8 and back."""
    net = Network(1, 640)
    for size in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        net.dense(size)
    return net.b.graph([net.dense(640, relu=False).x])


def resnet8() -> Graph:
    """ResNet-8 as in MLPerf Tiny: three stacks of 16, 32 and 64 channels; 12,501,632 MACs."""
    net = Network(1, 32, 32, 3).conv(16, 3)
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        before = net.x
        net.conv(channels, 3, stride).conv(channels, 3, relu=False)
        beside, after = net.x, net.x
        if stride > 1:
            net.x = before
            beside = net.conv(channels, 1, stride, relu=False).x
            net.x = after
        else:
            beside = before
        net.add(beside)
    rows, columns = net.x.shape[1:3]
    return net.pool(Builtin.AVERAGE_POOL_2D, (rows, columns), (1, 1)).classify(10)


NETWORKS: dict[str, Callable[[], Graph]] = {
    "cifarnet": cifarnet,
    "dscnn": dscnn,
    "mobilenet_v1_025_128": mobilenet_v1,
    "mobilenet_v1": lambda: mobilenet_v1(1.0, 224),
    "mobilenet_v1_vww": lambda: mobilenet_v1(0.25, 96, 2),
    "resnet8": resnet8,
    "autoencoder": autoencoder,
}
