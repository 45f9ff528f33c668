"""Convolutions and pooling: operators that slide a window over the spatial dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from openneutron.onnx.spec import Call, Case, OnnxOp, Unsupported
from openneutron.onnx.values import Dequantized, Tensor, Value, as_tensor

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Window:
    """A window's geometry, one number per spatial dimension."""

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    before: list[int]
    after: list[int]

    @property
    def symmetric(self) -> bool:
        return self.before == self.after

    @property
    def extent(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]


def window_of(call: Call, sizes: list[int], kernel: list[int]) -> Window:
    """The window of a convolution or pooling over `sizes`."""
    rank = len(sizes)
    stride = [int(s) for s in call.attr("strides", [1] * rank)]
    dilation = [int(d) for d in call.attr("dilations", [1] * rank)]
    pads = [int(p) for p in call.attr("pads", [0] * 2 * rank)]
    if len(stride) != rank or len(dilation) != rank or len(pads) != 2 * rank or len(kernel) != rank:
        raise Unsupported(f"its strides, dilations, pads and kernel do not fit {rank} spatial dimensions")
    if min((*stride, *dilation, *kernel), default=1) < 1:
        raise Unsupported("its kernel, strides and dilations must be positive")
    auto = call.choice("auto_pad", AUTO_PADS, "NOTSET")
    before, after = pads[:rank], pads[rank:]
    if auto == "VALID":
        before, after = [0] * rank, [0] * rank
    elif auto != "NOTSET":
        extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        total = [max((-(-n // s) - 1) * s + e - n, 0) for n, s, e in zip(sizes, stride, extent, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
    return Window(kernel, stride, dilation, before, after)


def torch_pads(before: list[int], after: list[int]) -> list[int]:
    """Pads as torch.nn.functional.pad takes them: last dimension first."""
    return [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]


# --------------------------------------------------------------------------------------------------
# Convolutions


def padded(value: Value, pads: list[int]) -> Tensor:
    """A value with zeros around it; what was quantized stays so, for zero is exactly a zero point."""
    if isinstance(value, Dequantized):
        return value.source.like(F.pad(value.real(), pads)).real()
    return F.pad(as_tensor(value), pads)


def convolve(call: Call, value: Value, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution with the attributes of the node."""
    rank = len(value.shape) - 2
    if rank not in (1, 2, 3):
        raise Unsupported(f"its input has {rank} spatial dimensions", "1, 2 and 3 are read.")
    window = window_of(call, [int(d) for d in value.shape[2:]], [int(d) for d in weight.shape[2:]])
    padding = window.before
    if not window.symmetric or min(padding) < 0:
        x, padding = padded(value, torch_pads(window.before, window.after)), [0] * rank
    else:
        x = as_tensor(value)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    groups = int(call.attr("group", 1))
    return function(x, weight, bias, window.stride, padding, window.dilation, groups)


def _conv(call: Call) -> Tensor:
    return convolve(call, call.value(0), call.tensor(1), call.optional(2))


def _conv_transpose(call: Call) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    rank, groups = x.dim() - 2, int(call.attr("group", 1))
    if rank not in (1, 2, 3):
        raise Unsupported(f"its input has {rank} spatial dimensions", "1, 2 and 3 are read.")
    stride = [int(s) for s in call.attr("strides", [1] * rank)]
    dilation = [int(d) for d in call.attr("dilations", [1] * rank)]
    extra = [int(p) for p in call.attr("output_padding", [0] * rank)]
    pads = [int(p) for p in call.attr("pads", [0] * 2 * rank)]
    before, after = pads[:rank], pads[rank:]
    extent = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation, strict=True)]
    full = [(n - 1) * s + e for n, s, e in zip(x.shape[2:], stride, extent, strict=True)]
    auto, wanted = call.choice("auto_pad", AUTO_PADS, "NOTSET"), call.attr("output_shape")
    if auto == "VALID":
        before, after = [0] * rank, [0] * rank
    if wanted is not None or auto.startswith("SAME"):
        if wanted is None:
            wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
        total = [f + o - int(w) for f, o, w in zip(full, extra, wanted[-rank:], strict=True)]
        if auto == "SAME_UPPER":
            before, after = [t // 2 for t in total], [t - t // 2 for t in total]
        else:
            before, after = [t - t // 2 for t in total], [t // 2 for t in total]
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    bias = call.optional(2)
    fits = all(o < max(s, d) for o, s, d in zip(extra, stride, dilation, strict=True))
    if before == after and min(before) >= 0 and fits:
        return function(x, weight, bias, stride, before, extra, groups, dilation)
    # What is cut off behind is less by what the output is padded with.
    padded = [o - a for o, a in zip(extra, after, strict=True)]
    y = function(x, weight, None, stride, [0] * rank, [0] * rank, groups, dilation)
    y = F.pad(y, torch_pads([-b for b in before], padded))
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


# --------------------------------------------------------------------------------------------------
# Pooling


def _pooled_sizes(call: Call, sizes: list[int], w: Window) -> tuple[list[int], list[int]]:
    """The sizes of the result, and how much must be read behind the input for them."""
    outs, reads = [], []
    ceil = bool(call.attr("ceil_mode", 0)) and call.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    for n, s, e, b, a in zip(sizes, w.stride, w.extent, w.before, w.after, strict=True):
        room = n + b + a - e
        if room < 0 and not ceil:
            raise Unsupported(f"its window ({e}) is larger than the padded input ({n + b + a})")
        out = (-(-room // s) if ceil else room // s) + 1
        if ceil and (out - 1) * s >= n + b:
            out -= 1  # a window that starts behind the input and its padding in front is left out
        outs.append(out)
        reads.append(max((out - 1) * s + e - n - b, 0))
    return outs, reads


def _max_pool(call: Call) -> Any:
    x = call.tensor(0)
    rank = x.dim() - 2
    sizes = [int(d) for d in x.shape[2:]]
    w = window_of(call, sizes, [int(k) for k in call.required("kernel_shape")])
    outs, reads = _pooled_sizes(call, sizes, w)
    if rank not in (1, 2, 3):
        raise Unsupported(f"its input has {rank} spatial dimensions", "1, 2 and 3 are read.")
    function: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    indices = len(call.node.outputs) > 1 and bool(call.node.outputs[1])
    even = _even_padding(sizes, outs, w)
    integer = not x.is_floating_point() and x.dtype != torch.int64
    source = x.to(torch.int64) if integer else x
    if even is not None:
        y = function(source, w.kernel, w.stride, even.padding, w.dilation, even.ceil, indices)
        y = tuple(_cropped(part, outs, even.skip) for part in y) if indices else _cropped(y, outs, even.skip)
    elif indices:
        raise Unsupported("it returns indices with asymmetric padding")
    else:
        low = float("-inf") if source.is_floating_point() else torch.iinfo(source.dtype).min
        if any(w.before) or any(reads):
            source = F.pad(source, torch_pads(w.before, reads), value=low)
        y = function(source, w.kernel, w.stride, 0, w.dilation)
        y = _cropped(y, outs)
    values, places = y if indices else (y, None)
    values = values.to(x.dtype) if integer else values
    return values if places is None else (values, _flat_indices(call, places, x))


def _flat_indices(call: Call, places: Tensor, x: Tensor) -> Tensor:
    """torch counts within a plane, ONNX through the whole tensor, either way round within a plane."""
    sizes = [int(d) for d in x.shape[2:]]
    plane = math.prod(sizes)
    if call.attr("storage_order", 0):
        parts, rest = [], places
        for size in reversed(sizes):
            parts.append(rest % size)
            rest = torch.div(rest, size, rounding_mode="trunc")
        places = torch.zeros_like(places)
        for part, size in zip(parts, reversed(sizes), strict=True):
            places = places * size + part
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *[1] * len(sizes))
    return places + planes * plane


def _cropped(y: Tensor, sizes: list[int], skip: Sequence[int] | None = None) -> Tensor:
    for i, size in enumerate(sizes):
        if y.shape[i + 2] != size:
            y = y.narrow(i + 2, skip[i] if skip else 0, size)
    return y


@dataclass(frozen=True)
class _Even:
    """Padding that is the same on both sides, as torch has it, and how many windows it adds in front."""

    padding: list[int]
    ceil: bool
    skip: list[int]


def _even_padding(sizes: list[int], outs: list[int], w: Window) -> _Even | None:
    """Even padding that gives the windows of the uneven one among others; what is too many is cut off.

    So a pool stays one operator: elements that padding adds never count, nor do those that ceil mode reaches.
    """
    most = w.kernel if len(sizes) == 3 else w.extent  # torch pads by at most half a window
    for ceil in (False, True):
        padding = []
        lines = zip(sizes, outs, w.before, w.extent, most, w.stride, strict=True)
        for n, out, before, reach, window, step in lines:
            for pad in range(before, window // 2 + 1, step):
                count = (n + 2 * pad - reach + (step - 1 if ceil else 0)) // step + 1
                if ceil and (count - 1) * step >= n + pad:
                    count -= 1  # torch leaves out a window that begins behind the input
                if count - (pad - before) // step >= out:
                    padding.append((pad, (pad - before) // step))
                    break
        if len(padding) == len(sizes):
            return _Even([p for p, _ in padding], ceil, [s for _, s in padding])
    return None


def average(call: Call, x: Tensor) -> Tensor:
    """AveragePool on a tensor."""
    sizes = [int(d) for d in x.shape[2:]]
    rank = len(sizes)
    if rank not in (1, 2, 3):
        raise Unsupported(f"its input has {rank} spatial dimensions", "1, 2 and 3 are read.")
    w = window_of(call, sizes, [int(k) for k in call.required("kernel_shape")])
    outs, reads = _pooled_sizes(call, sizes, w)
    with_pads = bool(call.attr("count_include_pad", 0))
    function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    even = _even_padding(sizes, outs, w) if max(w.dilation) == 1 else None
    if even is not None and (not with_pads or (w.symmetric and even == _Even(w.before, False, [0] * rank))):
        y = function(x, w.kernel, w.stride, even.padding, even.ceil, with_pads)
        return _cropped(y, outs, even.skip)
    # The sum over each window, by a depthwise convolution, over the number of elements that count.
    x = F.pad(x, torch_pads(w.before, reads))
    channels = int(x.shape[1])
    ones = torch.ones(channels, 1, *w.kernel, dtype=x.dtype)
    convolution: Any = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    total = convolution(x, ones, None, w.stride, 0, w.dilation, channels)
    return _cropped(total, outs) / torch.from_numpy(_counts(w, sizes, outs, with_pads)).to(x.dtype)


def _counts(w: Window, sizes: list[int], outs: list[int], with_pads: bool) -> np.ndarray:
    """How many elements of each window count."""
    result = np.ones((1, 1), np.float64)
    for i, (n, out) in enumerate(zip(sizes, outs, strict=True)):
        low = -w.before[i] if with_pads else 0
        high = n + w.after[i] if with_pads else n
        line = [
            sum(low <= o * w.stride[i] - w.before[i] + k * w.dilation[i] < high for k in range(w.kernel[i]))
            for o in range(out)
        ]
        result = result[..., None] * np.maximum(np.array(line, np.float64), 1)
    return result


def _lp_pool(call: Call) -> Tensor:
    x, p = call.tensor(0), float(call.attr("p", 2))
    kernel = [int(k) for k in call.required("kernel_shape")]
    sizes = [int(d) for d in x.shape[2:]]
    w = window_of(call, sizes, kernel)
    outs, reads = _pooled_sizes(call, sizes, w)
    powered = F.pad(x.abs().pow(p), torch_pads(w.before, reads))
    channels = int(x.shape[1])
    ones = torch.ones(channels, 1, *kernel, dtype=x.dtype)
    convolution: Any = (F.conv1d, F.conv2d, F.conv3d)[len(sizes) - 1]
    return _cropped(convolution(powered, ones, None, w.stride, 0, w.dilation, channels), outs).pow(1 / p)


def global_average(x: Tensor) -> Tensor:
    """The mean over all spatial dimensions, as PyTorch's adaptive pooling writes it."""
    return F.adaptive_avg_pool2d(x, 1) if x.dim() == 4 else x.mean(list(range(2, x.dim())), True)


def _global_max(call: Call) -> Tensor:
    x = call.tensor(0)
    if x.dim() == 4:
        return F.max_pool2d(x, [int(d) for d in x.shape[2:]])
    return torch.amax(x, list(range(2, x.dim())), True)


def _global_lp(call: Call) -> Tensor:
    x, p = call.tensor(0), float(call.attr("p", 2))
    return x.abs().pow(p).sum(list(range(2, x.dim())), True).pow(1 / p)


def _max_unpool(call: Call) -> Tensor:
    x, places = call.tensor(0), call.tensor(1)
    rank = x.dim() - 2
    kernel = [int(k) for k in call.required("kernel_shape")]
    stride = [int(s) for s in call.attr("strides", [1] * rank)]
    pads = [int(p) for p in call.attr("pads", [0] * 2 * rank)]
    sizes = [
        (n - 1) * s - b - a + k
        for n, s, b, a, k in zip(x.shape[2:], stride, pads[:rank], pads[rank:], kernel, strict=True)
    ]
    natural = [int(x.shape[0]), int(x.shape[1]), *sizes]
    shape = call.ints(2, "output shape") if call.has(2) else natural
    flat = torch.zeros(math.prod(shape), dtype=x.dtype)
    if shape != natural:  # the indices are those of the natural shape
        where, index = [], places.reshape(-1)
        for size in reversed(natural):
            where.append(index % size)
            index = torch.div(index, size, rounding_mode="trunc")
        index = torch.zeros_like(index)
        for part, size in zip(reversed(where), shape, strict=True):
            index = index * size + part
        places = index
    return flat.scatter(0, places.reshape(-1), x.reshape(-1)).reshape(shape)


def _depth_to_space(call: Call) -> Tensor:
    x, block = call.tensor(0), int(call.required("blocksize"))
    if call.choice("mode", ("DCR", "CRD"), "DCR") == "CRD":
        return F.pixel_shuffle(x, block)
    n, c, h, w = x.shape
    y = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return y.reshape(n, c // block**2, h * block, w * block)


def _space_to_depth(call: Call) -> Tensor:
    x, block = call.tensor(0), int(call.required("blocksize"))
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // block, block, w // block, block).permute(0, 3, 5, 1, 2, 4)
    return y.reshape(n, c * block**2, h // block, w // block)


def is_constant_weight(call: Call, index: int) -> bool:
    """Whether an input is a constant, quantized or not."""
    value = call.values[index]
    return call.is_static(index) or (isinstance(value, Dequantized) and value.constant)


def _conv_case(label: str, x: tuple[int, ...], w: tuple[int, ...], **attributes: Any) -> Case:
    return Case(label, (x, w, (w[0],)), attributes, constants=(1, 2))


def _pool_case(label: str, opset: int | None = None, **attributes: Any) -> Case:
    return Case(label, ((2, 3, 9, 8),), {"kernel_shape": [3, 3], **attributes}, opset=opset)


OPERATORS: tuple[OnnxOp, ...] = (
    OnnxOp(
        "Conv",
        22,
        _conv,
        cases=(
            _conv_case("plain", (1, 3, 8, 8), (4, 3, 3, 3), pads=[1, 1, 1, 1]),
            _conv_case("asymmetric", (1, 3, 8, 8), (4, 3, 3, 3), pads=[0, 1, 1, 2], strides=[2, 1]),
            _conv_case("same upper", (1, 3, 9, 8), (4, 3, 4, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
            _conv_case("same lower", (1, 3, 9, 8), (4, 3, 4, 3), auto_pad="SAME_LOWER", strides=[2, 2]),
            _conv_case("depthwise", (1, 4, 8, 8), (4, 1, 3, 3), group=4),
            _conv_case("1d dilated", (1, 3, 16), (4, 3, 3), dilations=[2]),
            _conv_case("3d", (1, 2, 4, 4, 4), (3, 2, 2, 2, 2)),
        ),
    ),
    OnnxOp(
        "ConvTranspose",
        22,
        _conv_transpose,
        cases=(
            Case("stride", ((1, 3, 5, 5), (3, 4, 3, 3)), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, (1,)),
            Case("groups", ((1, 4, 5, 5), (4, 2, 3, 3)), {"group": 2, "strides": [2, 2]}, (1,)),
            Case(
                "output shape",
                ((1, 3, 5, 5), (3, 4, 3, 3)),
                {"output_shape": [10, 11], "strides": [2, 2]},
                (1,),
            ),
            Case("1d asymmetric", ((1, 3, 5), (3, 4, 3), (4,)), {"strides": [2], "pads": [0, 1]}, (1, 2)),
        ),
    ),
    OnnxOp(
        "MaxPool",
        22,
        _max_pool,
        moves=True,
        cases=(
            _pool_case("stride", strides=[2, 2]),
            _pool_case("pads", pads=[1, 1, 1, 1], strides=[2, 2]),
            _pool_case("asymmetric", pads=[0, 0, 1, 1], strides=[2, 2]),
            _pool_case("ceil", ceil_mode=1, strides=[2, 2]),
        ),
    ),
    OnnxOp(
        "AveragePool",
        22,
        lambda call: average(call, call.tensor(0)),
        cases=(
            _pool_case("stride", strides=[2, 2]),
            _pool_case("pads", pads=[1, 1, 1, 1]),
            _pool_case("with pads", pads=[1, 1, 1, 1], count_include_pad=1),
            _pool_case("asymmetric", pads=[0, 0, 1, 1], strides=[2, 2]),
            _pool_case("same", auto_pad="SAME_UPPER", strides=[2, 2]),
        ),
    ),
    OnnxOp("LpPool", 22, _lp_pool),
    OnnxOp("GlobalAveragePool", 22, lambda call: global_average(call.tensor(0))),
    OnnxOp("GlobalMaxPool", 22, _global_max),
    OnnxOp("GlobalLpPool", 22, _global_lp, cases=(Case("p 3", ((2, 3, 4, 5),), {"p": 3}),)),
    OnnxOp("MaxUnpool", 22, _max_unpool),
    OnnxOp(
        "DepthToSpace",
        13,
        _depth_to_space,
        moves=True,
        cases=(
            Case("dcr", ((1, 8, 2, 3),), {"blocksize": 2}),
            Case("crd", ((1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
        ),
    ),
    OnnxOp("SpaceToDepth", 13, _space_to_depth, moves=True),
)
