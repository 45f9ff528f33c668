"""The calls the tests make: for every operator of the dialect, arguments over all it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

Arguments = tuple[Any, ...]
INT32 = torch.iinfo(torch.int32)


@dataclass
class Maker:
    """Random arguments, the same in every run."""

    seed: int
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def integer(self, low: int, high: int) -> int:
        """Both ends included."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def choice(self, options: Any) -> Any:
        return options[self.integer(0, len(options) - 1)]

    def flip(self) -> bool:
        return bool(self.integer(0, 1))

    def tensor(self, *shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
        """Any values of an integer type; a 4-D tensor in either layout."""
        info = torch.iinfo(dtype)
        values = torch.randint(info.min, info.max + 1, shape, generator=self.generator, dtype=torch.int64)
        return self.layout(values.to(dtype))

    def layout(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 4 and self.flip():
            return tensor.to(memory_format=torch.channels_last)
        return tensor

    def ints(self, count: int, low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high + 1, (count,), generator=self.generator).to(torch.int32)

    def shape(self, low: int = 1, high: int = 4, most: int = 6) -> tuple[int, ...]:
        return tuple(self.integer(1, most) for _ in range(self.integer(low, high)))

    def zero(self) -> int:
        return self.choice([-128, 127, 0, self.integer(-128, 127), self.integer(-128, 127)])

    def bounds(self) -> tuple[int, int]:
        """Activation bounds: mostly none or a range, sometimes a point or crossed."""
        pairs = [(-128, 127), sorted((self.zero(), self.zero())), (5, 5), (40, -40)]
        low, high = self.choice([pairs[0], pairs[0], pairs[1], pairs[1], pairs[1], *pairs[2:]])
        return low, high

    def multiplier(self) -> int:
        usual = self.integer(1 << 30, INT32.max)
        return self.choice(
            [usual, usual, usual, usual, -usual, self.integer(0, INT32.max), 1 << 30, INT32.min, 0]
        )

    def shift(self, middle: int) -> int:
        """Around one that makes int8 of the operator's sums; sometimes any, or an extreme one."""
        near = self.integer(middle - 2, middle + 2)
        return self.choice([near, near, near, near, near, near, self.integer(-40, 12), -63, 31])

    def scratch(self) -> torch.Tensor:
        return torch.zeros(self.integer(0, 3), dtype=torch.uint8)


def quantize_per_tensor(m: Maker) -> Iterator[Arguments]:
    special = torch.tensor([0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e30, -1e30, float("inf"), -float("inf")])
    ranges = {torch.uint8: (0, 255), torch.int8: (-128, 127), torch.int16: (-32768, 32767)}
    ranges |= {torch.uint16: (0, 65535), torch.int32: (INT32.min, INT32.max)}
    yield special, 1.0, 0, -128, 127, torch.int8
    yield torch.tensor([float("nan"), 1.0]), 1.0, 3, -128, 127, torch.int8
    yield torch.randn((), generator=m.generator), 0.1, 3, -128, 127, torch.int8
    yield torch.empty(0, 3), 0.1, 3, -128, 127, torch.int8
    for i in range(30):
        dtype = m.choice([torch.int8, torch.int8, *ranges])
        low, high = ranges[dtype]
        if m.flip():
            low, high = sorted((m.integer(low, high), m.integer(low, high)))
        scale = float(10 ** (torch.rand((), generator=m.generator).double() * 6 - 5))
        spread = scale * (high - low) * m.choice([0.3, 1, 4])
        values = m.layout(torch.randn(m.shape(), generator=m.generator) * spread)
        if i % 4 == 0:  # ties
            values, scale = (values / spread * 64).round() / 2, 1.0
        kind = m.choice([torch.float32, torch.float32, torch.float32, torch.float16, torch.bfloat16])
        yield values.to(kind), scale, m.integer(-300, 300), low, high, dtype


def dequantize_per_tensor(m: Maker) -> Iterator[Arguments]:
    for i in range(30):
        dtype = (torch.int8, torch.int8, torch.uint8, torch.int16, torch.int32, torch.uint16)[i % 6]
        drawn = torch.int16 if dtype == torch.uint16 else dtype  # torch draws no uint16
        values = m.tensor(*m.shape(0 if i == 0 else 1), dtype=drawn).to(dtype)
        info = torch.iinfo(dtype)
        scale = float(10 ** (torch.rand((), generator=m.generator).double() * 6 - 5))
        yield values, scale, m.integer(-300, 300), info.min, info.max, dtype


def _pair(m: Maker) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands of one shape, or one of them a value per channel."""
    if m.integer(0, 2):
        shape = m.shape(0, 5)
        return m.tensor(*shape), m.tensor(*shape)
    n, c, h, w = m.integer(1, 3), m.integer(1, 5), m.integer(1, 4), m.integer(1, 4)
    whole = m.tensor(n, c, h, w).to(memory_format=torch.channels_last)
    channel = m.tensor(1, c, 1, 1)
    return (whole, channel) if m.flip() else (channel, whole)


def quantized_add(m: Maker) -> Iterator[Arguments]:
    for _ in range(36):
        a, b = _pair(m)
        yield (a, m.zero(), m.multiplier(), m.shift(-1), b, m.zero(), m.multiplier(), m.shift(-1), m.zero(),
               m.multiplier(), m.shift(-19), *m.bounds())  # fmt: skip
    yield (m.tensor(9), 70000, 1 << 30, 0, m.tensor(9), -70000, 1 << 30, 5, 0, 1 << 30, -19, -128, 127)
    yield (m.tensor(9), 0, 1 << 30, 0, m.tensor(9), 0, 1 << 30, 5, 0, 1 << 30, -19, -400, 300)


def quantized_mul(m: Maker) -> Iterator[Arguments]:
    for _ in range(28):
        a, b = _pair(m)
        yield a, m.zero(), b, m.zero(), m.zero(), m.multiplier(), m.shift(-7)
    yield m.tensor(9), 70000, m.tensor(9), -70000, 0, 1 << 30, -25


def quantized_div(m: Maker) -> Iterator[Arguments]:
    for i in range(18):
        dtype = torch.int16 if i % 3 == 0 else torch.int8
        shape = m.shape(0, 5)
        scale = float(2 ** (torch.rand((), generator=m.generator).double() * 14 - 4))
        yield (m.tensor(*shape, dtype=dtype), m.zero(), m.tensor(*shape, dtype=dtype), m.zero(), m.zero(),
               m.choice([scale, scale, 0.5, 1.0, -scale]))  # fmt: skip
    yield torch.arange(-128, 128).to(torch.int8), 0, torch.full((256,), 2, dtype=torch.int8), 0, 0, 1.0


def quantized_activation(m: Maker) -> Iterator[Arguments]:
    for _ in range(10):
        yield m.tensor(*m.shape(0, 5)), m.tensor(256)


def _extremum(m: Maker) -> Iterator[Arguments]:
    for i in range(20):
        dtype = (torch.int8, torch.int8, torch.int32, torch.uint8, torch.int16)[i % 5]
        shape = m.shape(1, 5)
        other = m.choice([shape, shape, tuple(m.choice([1, s]) for s in shape), shape[1:], (1,) * len(shape)])
        a, b = m.tensor(*shape, dtype=dtype), m.tensor(*other, dtype=dtype)
        yield (a, b) if m.flip() or b.numel() == 1 else (b, a)
    yield m.tensor(3), m.tensor(dtype=torch.int8)
    yield torch.tensor([1.0, -2.0, float("nan")]), torch.tensor([2.0, float("nan"), 0.0])


def minimum(m: Maker) -> Iterator[Arguments]:
    yield from _extremum(m)


def maximum(m: Maker) -> Iterator[Arguments]:
    yield from _extremum(m)


def quantized_linear(m: Maker) -> Iterator[Arguments]:
    for i in range(24):
        outputs, length = m.integer(1, 9), m.choice([1, m.integer(1, 40), 300])
        x, w = m.tensor(*m.shape(0, 4), length), m.tensor(outputs, length)
        bias = m.choice([None, m.ints(outputs, -20000, 20000), m.ints(outputs, INT32.min, INT32.max)])
        sums = m.ints(outputs, -20000, 20000).reshape(m.choice([(1, outputs), (outputs,)]))
        low, high = m.bounds()
        offsets = m.choice([0, -m.zero(), 40000]), m.choice([0, 0, m.zero()]), m.zero()
        yield (x, w, bias, None if i % 3 else sums, *offsets, [m.multiplier()], [m.shift(-8)], high, low)


def quantized_batch_matmul(m: Maker) -> Iterator[Arguments]:
    for _ in range(18):
        batch, rows, columns, inner = m.integer(1, 3), m.integer(1, 5), m.integer(1, 5), m.integer(1, 60)
        yield (m.tensor(batch, rows, inner), -m.zero(), m.tensor(batch, columns, inner), -m.zero(), m.zero(),
               m.multiplier(), m.shift(-8), m.scratch())  # fmt: skip


def softmax(m: Maker) -> Iterator[Arguments]:
    for i in range(36):
        depth = m.choice([1, 7, 8, 15, 16, 17, 33, 100, 256, 1000])
        shape = m.shape(1, 4) if i % 3 else (m.integer(1, 4), depth)
        shift = m.integer(15, 26)
        dim, multiplier = m.choice([-1, len(shape) - 1]), m.integer(1 << 30, INT32.max)
        yield m.tensor(*shape), dim, m.zero(), -128, multiplier, shift, -((31 << 26) >> shift)
    yield torch.zeros(2, 512, dtype=torch.int8), 1, 3, -128, 1 << 30, 20, -5  # every share is half a step


def transpose(m: Maker) -> Iterator[Arguments]:
    for i in range(24):
        dtype = (torch.int8, torch.int8, torch.int16, torch.int32, torch.int64)[i % 5]
        x = m.tensor(*m.shape(1, 6, 4), dtype=torch.int32 if dtype == torch.int64 else dtype).to(dtype)
        perm = torch.randperm(x.dim(), generator=m.generator).tolist()
        yield x, [p - x.dim() if m.integer(0, 4) == 0 else p for p in perm]
    yield torch.randn(2, 3, generator=m.generator), [1, 0]


def pad(m: Maker) -> Iterator[Arguments]:
    for i in range(28):
        dtype = (torch.int8, torch.int8, torch.int8, torch.int16, torch.int32)[i % 5]
        x = m.tensor(*m.shape(1, 4), dtype=dtype)
        amounts = [[m.choice([0, 0, 1, 2, 3]) for _ in range(4)] for _ in range(2)]
        yield x, *amounts, m.zero()
    yield m.tensor(2, 3, 5, 6).contiguous(), [0, 0, -1, 2], [0, 1, -2, -3], 7


def _window(m: Maker, taps: tuple[int, int]) -> tuple[list[int], list[int]]:
    return [m.integer(1, 3), m.integer(1, 3)], [m.integer(0, taps[0]), m.integer(0, taps[1])]


def _requantize(m: Maker, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    multipliers = torch.tensor([m.multiplier() for _ in range(channels)], dtype=torch.int32)
    return multipliers, torch.tensor([m.shift(-9) for _ in range(channels)], dtype=torch.int32)


def _bias(m: Maker, channels: int) -> torch.Tensor | None:
    return m.choice([None, m.ints(channels, -20000, 20000), m.ints(channels, INT32.min, INT32.max)])


def _feature_map(m: Maker, nhwc: bool, channels: int, least: tuple[int, int]) -> torch.Tensor:
    """One or two images at least this high and wide."""
    n, h, w = m.integer(1, 2), least[0] + m.integer(0, 6), least[1] + m.integer(0, 6)
    return m.tensor(n, h, w, channels) if nhwc else m.tensor(n, channels, h, w)


def _conv2d(m: Maker, nhwc: bool) -> Iterator[Arguments]:
    for i in range(20):
        groups, depth, channels = m.integer(1, 3), m.integer(1, 5), m.integer(1, 3)
        taps = m.choice([(1, 1), (3, 3), (m.integer(1, 4), m.integer(1, 4))])
        x = _feature_map(m, nhwc, groups * depth, taps)
        w = m.tensor(groups * channels, *taps, depth)
        stride, padding = _window(m, taps)
        offset = 40000 if i == 7 else -m.zero()
        yield (x, w, _bias(m, groups * channels), stride, padding, [1, 1], offset, m.zero(),
               *_requantize(m, groups * channels), *m.bounds(), m.scratch())  # fmt: skip


def quantized_conv2d(m: Maker) -> Iterator[Arguments]:
    yield from _conv2d(m, False)


def quantized_conv2d_nhwc(m: Maker) -> Iterator[Arguments]:
    yield from _conv2d(m, True)


def _depthwise(m: Maker, nhwc: bool) -> Iterator[Arguments]:
    for i in range(20):
        depth, multiplier = m.integer(1, 7), m.choice([1, 1, 2, 3])
        taps = m.choice([(1, 1), (3, 3), (m.integer(1, 4), m.integer(1, 4))])
        x = _feature_map(m, nhwc, depth, taps)
        w = m.tensor(1, *taps, depth * multiplier)
        stride, padding = _window(m, taps)
        offset = 40000 if i == 7 else -m.zero()
        yield (x, w, _bias(m, depth * multiplier), stride, padding, [1, 1], multiplier, offset, m.zero(),
               *_requantize(m, depth * multiplier), *m.bounds(), m.scratch())  # fmt: skip


def quantized_depthwise_conv2d(m: Maker) -> Iterator[Arguments]:
    yield from _depthwise(m, False)


def quantized_depthwise_conv2d_nhwc(m: Maker) -> Iterator[Arguments]:
    yield from _depthwise(m, True)


def _transpose_conv2d(m: Maker, nhwc: bool) -> Iterator[Arguments]:
    for _ in range(16):
        depth, channels = m.integer(1, 6), m.integer(1, 5)
        taps = m.choice([(1, 1), (3, 3), (m.integer(1, 4), m.integer(1, 4))])
        x = _feature_map(m, nhwc, depth, (2, 2))
        w = m.tensor(channels, *taps, depth)
        stride, dilation = [m.integer(1, 3), m.integer(1, 3)], m.choice([[1, 1], [2, 1], [1, 3]])
        padding = [m.integer(0, (t - 1) * d // 2) for t, d in zip(taps, dilation, strict=True)]
        extra = [m.integer(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
        # The reference sums in float32, which holds every integer only up to 2^24.
        bias = m.choice([None, m.ints(channels, -20000, 20000)])
        yield (x, w, bias, stride, padding, extra, dilation, -m.zero(), m.zero(), *_requantize(m, channels),
               *m.bounds(), m.scratch(), m.scratch())  # fmt: skip


def quantized_transpose_conv2d(m: Maker) -> Iterator[Arguments]:
    yield from _transpose_conv2d(m, False)


def quantized_transpose_conv2d_nhwc(m: Maker) -> Iterator[Arguments]:
    yield from _transpose_conv2d(m, True)


def _pool(m: Maker, nhwc: bool) -> tuple[torch.Tensor, list[int], list[int], list[int]]:
    kernel = [m.integer(1, 4), m.integer(1, 4)]
    x = _feature_map(m, nhwc, m.integer(1, 5), (kernel[0], kernel[1]))
    stride, padding = [m.integer(1, 4), m.integer(1, 4)], [m.integer(0, k // 2) for k in kernel]
    if m.integer(0, 4) == 0:  # one value for both
        least = min(kernel)
        return x, [least], [stride[0]], [least // 2]
    return x, kernel, stride, padding


def _avg_pool2d(m: Maker, nhwc: bool) -> Iterator[Arguments]:
    for i in range(20):
        multiplier = m.integer(1 << 30, INT32.max)
        yield *_pool(m, nhwc), m.flip() if i else False, m.zero(), multiplier, m.integer(-12, 2), m.scratch()


def quantized_avg_pool2d(m: Maker) -> Iterator[Arguments]:
    yield from _avg_pool2d(m, False)


def quantized_avg_pool2d_nhwc(m: Maker) -> Iterator[Arguments]:
    yield from _avg_pool2d(m, True)


def _max_pool2d(m: Maker, nhwc: bool) -> Iterator[Arguments]:
    for i in range(16):
        zero = m.zero()
        yield *_pool(m, nhwc), [1] if i % 5 == 0 else [1, 1], False, zero, zero, *m.bounds()


def quantized_max_pool2d(m: Maker) -> Iterator[Arguments]:
    yield from _max_pool2d(m, False)


def quantized_max_pool2d_nhwc(m: Maker) -> Iterator[Arguments]:
    yield from _max_pool2d(m, True)


MAKERS: tuple[Callable[[Maker], Iterator[Arguments]], ...] = (
    quantize_per_tensor,
    dequantize_per_tensor,
    quantized_add,
    quantized_mul,
    quantized_div,
    quantized_activation,
    minimum,
    maximum,
    quantized_linear,
    softmax,
    transpose,
    pad,
    quantized_conv2d,
    quantized_conv2d_nhwc,
    quantized_depthwise_conv2d,
    quantized_depthwise_conv2d_nhwc,
    quantized_transpose_conv2d,
    quantized_transpose_conv2d_nhwc,
    quantized_avg_pool2d,
    quantized_avg_pool2d_nhwc,
    quantized_max_pool2d,
    quantized_max_pool2d_nhwc,
    quantized_batch_matmul,
)
CASES = {maker.__name__: maker for maker in MAKERS}
