"""Networks as LiteRT graphs with random weights, for benchmarks: shapes and operators are what counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from openneutron.bench.networks import Network, autoencoder, cifarnet, mobilenet_v1
from openneutron.litert.file import read
from openneutron.litert.ir import Builtin, Graph, Op, Padding, Tensor, constant

SHARED_MODELS = Path(__file__).resolve().parents[2] / "shared" / "models"


def mobilenet_v2(size: int = 224, classes: int = 1000) -> Graph:
    """MobileNetV2 1.0."""
    net = Network(1, size, size, 3).conv(32, 3, 2).conv(0, 3).conv(16, 1, relu=False)
    for channels, count, first in ((24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)):
        for index in range(count):
            before = net.x
            net.conv(6 * before.shape[3], 1).conv(0, 3, first if index == 0 else 1).conv(
                channels, 1, relu=False
            )
            if index:
                net.add(before)
    net.conv(1280, 1)
    rows, columns = net.x.shape[1:3]
    return net.pool(Builtin.AVERAGE_POOL_2D, (rows, columns), (1, 1)).classify(classes)


def in_planes(graph: Graph) -> Graph:
    """The same network with its picture in planes, as from PyTorch."""
    (picture,) = graph.inputs
    n, height, width, channels = picture.shape
    planes = Tensor("planes", (n, channels, height, width), picture.dtype, picture.quant)
    order = constant("order", np.array([0, 2, 3, 1], np.int32))
    transpose = Op(Builtin.TRANSPOSE, [planes, order], [picture], {})
    return Graph([planes], graph.outputs, [transpose, *graph.ops])


def wake_word(padding: Padding = Padding.SAME) -> Graph:
    """Streaming wake words as in MLPerf Tiny: 30 frames of 40 features, separable convolutions over time."""
    net = Network(1, 30, 1, 40)
    for channels, taps in ((128, 3), (128, 5), (128, 9), (32, 13)):
        net.conv(0, (taps, 1), padding=padding).conv(channels, 1)
    return net.classify(3)


def stream() -> Graph:
    """A streaming 1-D network of 128, 64, 64 and 32 channels, separable convolutions without padding."""
    net = Network(1, 30, 1, 40)
    for channels, taps in ((128, 3), (64, 5), (64, 9), (32, 9)):
        net.conv(0, (taps, 1), padding=Padding.VALID).conv(channels, 1)
    return net.classify(4)


def ecg() -> Graph:
    """1-D convolutions over 360 samples, and the maximum over time."""
    net = Network(1, 360, 1, 1).conv(32, (7, 1)).conv(64, (5, 1)).conv(64, (3, 1))
    rows, columns = net.x.shape[1:3]
    return net.pool(Builtin.MAX_POOL_2D, (rows, columns), (1, 1)).classify(5)


def global_average() -> Graph:
    """The average over a large map straight behind convolutions."""
    net = Network(1, 64, 64, 3).conv(32, 3).conv(64, 3)
    rows, columns = net.x.shape[1:3]
    return net.pool(Builtin.AVERAGE_POOL_2D, (rows, columns), (1, 1)).classify(10)


def large_head() -> Graph:
    """A fully connected layer on a map of 32 KiB."""
    return Network(1, 32, 32, 1).conv(16, 3).conv(32, 3).dense(64).classify(10)


def unet() -> Graph:
    """A U-Net on 64x64 pixels: 16 to 128 channels and back, two convolutions at each level."""
    net = Network(1, 64, 64, 3)
    kept = []
    for channels in (16, 32, 64):
        kept.append(net.conv(channels, 3).conv(channels, 3).x)
        net.pool(Builtin.MAX_POOL_2D, (2, 2), (2, 2))
    net.conv(128, 3).conv(128, 3)
    for skip in reversed(kept):
        channels = skip.shape[3]
        net.conv(channels, 1).double().beside(skip).conv(channels, 3).conv(channels, 3)
    return net.b.graph([net.conv(2, 1, relu=False).x])


def vovnet() -> Graph:
    """Two blocks of VoVNet: four convolutions in a row, of which all results are concatenated."""
    net = Network(1, 64, 64, 3).conv(16, 3, 2)
    for channels, out in ((16, 32), (24, 64)):
        maps = [net.x, *(net.conv(channels, 3).x for _ in range(3))]
        net.conv(channels, 3).beside(*maps).conv(out, 1).pool(Builtin.MAX_POOL_2D, (2, 2), (2, 2))
    rows, columns = net.x.shape[1:3]
    return net.pool(Builtin.AVERAGE_POOL_2D, (rows, columns), (1, 1)).classify(10)


def shared(name: str) -> Callable[[], Graph]:
    """A trained model beside the repository; FileNotFoundError where it is absent."""
    return lambda: read((SHARED_MODELS / name).read_bytes(), name)


NETWORKS: dict[str, Callable[[], Graph]] = {
    "CifarNet": cifarnet,
    "MobileNetV1-0.25-128": mobilenet_v1,
    "MobileNetV1-0.25-96": lambda: mobilenet_v1(0.25, 96, 2),
    "MobileNetV2-224": mobilenet_v2,
    "autoencoder 640": autoencoder,
    "wake word 30x40": wake_word,
    "wake word, valid": lambda: wake_word(Padding.VALID),
    "1-D, 128/64/64/32": stream,
    "ECG, 360 samples": ecg,
    "average of 64x64x64": global_average,
    "head on 32x32x32": large_head,
    "U-Net 64x64": unet,
    "VoVNet 64x64": vovnet,
    "DS-CNN (MLPerf Tiny)": shared("mlperf_tiny_kws_dscnn_int8.tflite"),
    "ResNet-8 (MLPerf Tiny)": shared("mlperf_tiny_ic_resnet8_int8.tflite"),
}
