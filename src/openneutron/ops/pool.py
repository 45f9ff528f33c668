"""Pooling: average and maximum, 1-D and 2-D, adaptive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Padding, Quant, Tensor
from openneutron.ops.common import as_layer, at_most, nxp_limit, quant_of
from openneutron.ops.conv import as_nchw, padding_mode, rows_after, spatial
from openneutron.ops.spec import Call, Case, Constraint, Lowering, OpSpec, Shared, Values


def _dims(call: Call) -> int:
    return 1 if "pool1d" in call.op else 2


def _kernel(call: Call) -> list[int]:
    return spatial(call["kernel_size"], _dims(call), 1)


def _stride(call: Call) -> list[int]:
    stride = call.get("stride") or call["kernel_size"]
    return spatial(stride, _dims(call), 1)


def _padding(call: Call) -> list[int]:
    return spatial(call.get("padding", 0), _dims(call), 0)


def _dilation(call: Call) -> list[int]:
    return spatial(call.get("dilation", 1), _dims(call), 1)


def _reach(call: Call) -> list[int]:
    """Rows and columns from the first to the last tap of a window."""
    return [(k - 1) * d + 1 for k, d in zip(_kernel(call), _dilation(call), strict=True)]


def _batched(call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Input and output shapes as NCHW; torch allows input without batch, and 1-D pooling has no height."""
    return as_nchw(call.input.shape, _dims(call)), as_nchw(call.out.shape, _dims(call))


def _mode(call: Call) -> Padding | None:
    shape, out = _batched(call)
    return padding_mode(list(shape[2:]), list(out[2:]), _reach(call), _stride(call), _padding(call))


def _window_options(mode: Padding, kernel: list[int], stride: list[int]) -> dict[str, Any]:
    return {
        "padding": mode,
        "filterHeight": kernel[0],
        "filterWidth": kernel[1],
        "strideH": stride[0],
        "strideW": stride[1],
        "fusedActivationFunction": Activation.NONE,
    }


def _pool(b: Builder, kind: Builtin, x: Tensor, out: tuple[int, ...], call: Call, mode: Padding) -> Tensor:
    options = _window_options(mode, _kernel(call), _stride(call))
    y = b.op(kind, [b.to_channels_last(x)], (out[0], out[2], out[3], out[1]), quant_of(call), options=options)
    return b.reshape(b.to_channels_first(y), call.out.shape)


def _explicit(call: Call) -> np.ndarray:
    """The rows and columns of padding that the windows really read."""
    shape, out = _batched(call)
    before = _padding(call)
    after = [
        rows_after(*a) for a in zip(shape[2:], out[2:], _reach(call), _stride(call), before, strict=True)
    ]
    return np.array([[0, 0], [0, 0], [before[0], after[0]], [before[1], after[1]]], np.int32)


def _lower_max_pool(at: Lowering, call: Call) -> Tensor:
    b, (shape, out) = at.build, _batched(call)
    x = b.requantize(b.reshape(at(call.input), shape), quant_of(call))
    mode, dilated = _mode(call), _dilation(call) != [1, 1]
    if mode is None or dilated:
        rows = _explicit(call)
        least = np.array([-128], np.int8) if b.quantized else np.array([np.finfo(np.float32).min], np.float32)
        lowest = b.const(least, x.quant)
        padded = tuple(int(d) for d in np.array(shape) + rows.sum(axis=1))
        if padded != shape:
            x = b.op(Builtin.PADV2, [x, b.const(rows), lowest], padded, x.quant)
    if dilated:
        x = _dilated_max(b, b.to_channels_last(x), out, call)
        return b.reshape(b.to_channels_first(x), call.out.shape)
    return _pool(b, Builtin.MAX_POOL_2D, x, out, call, Padding.VALID if mode is None else mode)


def _dilated_max(b: Builder, x: Tensor, out: tuple[int, ...], call: Call) -> Tensor:
    """LiteRT has no dilated pools: the largest of what the taps see, along rows and then along columns."""
    geometry = zip((1, 2), out[2:], _kernel(call), _stride(call), _dilation(call), strict=True)
    for axis, count, taps, stride, dilation in geometry:
        seen = [_every(b, x, axis, tap * dilation, count, stride) for tap in range(taps)]
        x = seen[0]
        for other in seen[1:]:
            x = b.op(Builtin.MAXIMUM, [x, other], x.shape, x.quant)
    return x


def _every(b: Builder, x: Tensor, axis: int, start: int, count: int, step: int) -> Tensor:
    """`count` rows along an axis, `step` apart."""
    begin, end, steps = [0] * x.rank, list(x.shape), [1] * x.rank
    begin[axis], end[axis], steps[axis] = start, start + (count - 1) * step + 1, step
    shape = [count if a == axis else d for a, d in enumerate(x.shape)]
    if step == 1:
        return b.op(Builtin.SLICE, [x, b.ints(begin), b.ints(shape)], shape, x.quant)
    masks = ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask")
    options = {**dict.fromkeys(masks, 0), "offset": False}
    return b.op(
        Builtin.STRIDED_SLICE, [x, *map(b.ints, (begin, end, steps))], shape, x.quant, options=options
    )


def _counts_padding(call: Call) -> bool:
    return any(_padding(call)) and bool(call.get("count_include_pad", True))


def _lower_avg_pool(at: Lowering, call: Call) -> Tensor:
    b, (shape, out) = at.build, _batched(call)
    x = b.reshape(at(call.input), shape)
    mode = _mode(call)
    if _counts_padding(call):  # zeros that count are zeros of the input
        rows = _explicit(call)
        x = b.op(
            Builtin.PAD,
            [x, b.const(rows)],
            tuple(int(d) for d in np.array(shape) + rows.sum(axis=1)),
            x.quant,
        )
        mode = Padding.VALID
    if mode is None or (mode is Padding.SAME and _changes_scale(b, x, call)):
        # Padding neither counted nor SAME: windows that the border cuts are smaller than the others.
        sizes = zip(shape[2:], out[2:], _kernel(call), _stride(call), _padding(call), strict=True)
        heights, widths = (_clipped_windows(*a) for a in sizes)
        return _banded_average(b, x, heights, widths, call)
    if _changes_scale(b, x, call):
        y = _average(
            b, b.to_channels_last(x), (out[0], out[2], out[3], out[1]), _kernel(call), _stride(call), call
        )
        return b.reshape(b.to_channels_first(y), call.out.shape)
    return _pool(b, Builtin.AVERAGE_POOL_2D, x, out, call, mode)


def _changes_scale(b: Builder, x: Tensor, call: Call) -> bool:
    """Whether the result has parameters of its own, as files quantized by others may have it."""
    return b.quantized and x.quant != quant_of(call)


def _average(
    b: Builder, x: Tensor, out: tuple[int, ...], kernel: list[int], stride: list[int], call: Call
) -> Tensor:
    """Windows without padding of a channels-last tensor, rounded once.

    LiteRT's pools keep their input's parameters. Changing those in front of the pool would clip what only the
    mean brings into range, behind it round twice; so it is a mean, or a convolution whose weights are all 1.
    """
    quant = quant_of(call)
    if not _changes_scale(b, x, call):
        options = _window_options(Padding.VALID, kernel, stride)
        return b.op(Builtin.AVERAGE_POOL_2D, [x], out, quant, options=options)
    if out[1:3] == (1, 1) and list(x.shape[1:3]) == kernel:
        return b.op(Builtin.MEAN, [x, b.ints((1, 2))], out, quant, options={"keepDims": True})
    assert x.quant is not None
    unit = np.full(out[3], 1 / (kernel[0] * kernel[1]), np.float32)
    steps = np.float64(np.float32(x.quant.scale[0])) * unit.astype(np.float64)
    weights = b.const(np.ones((1, *kernel, out[3]), np.int8), Quant.per_axis(unit, axis=3))
    bias = b.const(np.zeros(out[3], np.int32), Quant.per_axis(steps))
    options = {
        "padding": Padding.VALID,
        "strideH": stride[0],
        "strideW": stride[1],
        "depthMultiplier": 1,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": Activation.NONE,
    }
    return b.op(Builtin.DEPTHWISE_CONV_2D, [x, weights, bias], out, quant, options=options)


@dataclass(frozen=True)
class Band:
    """Neighbouring windows of one size along one dimension, which read `start` to `stop`."""

    start: int
    stop: int
    kernel: int
    stride: int
    count: int


Windows = list[tuple[int, int]]
"""Where each window along one dimension begins and ends, inside the input."""


def bands(windows: Windows) -> list[Band]:
    """Windows in order, those of one size and distance together."""
    result: list[Band] = []
    previous = 0
    for start, stop in windows:
        last = result[-1] if result else None
        stride = start - previous
        if last is not None and last.kernel == stop - start and stride and last.stride in (0, stride):
            result[-1] = Band(last.start, stop, last.kernel, stride, last.count + 1)
        else:
            result.append(Band(start, stop, stop - start, 0, 1))
        previous = start
    return [replace(b, stride=b.stride or 1) for b in result]


def adaptive_windows(size: int, out: int) -> Windows:
    """The windows of an adaptive pool: as even as they can be, overlapping where they do not divide."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _clipped_windows(size: int, out: int, kernel: int, stride: int, before: int) -> Windows:
    starts = (i * stride - before for i in range(out))
    return [(max(at, 0), min(at + kernel, size)) for at in starts]


def _banded_average(b: Builder, x: Tensor, rows_of: Windows, columns_of: Windows, call: Call) -> Tensor:
    """Uneven windows: each band of even ones is pooled without padding, then they are joined."""
    x = b.to_channels_last(x)
    n, _, _, channels = x.shape
    rows = []
    for r in bands(rows_of):
        pieces = []
        for c in bands(columns_of):
            shape = (n, r.stop - r.start, c.stop - c.start, channels)
            part = x
            if shape != x.shape:
                part = b.op(
                    Builtin.SLICE, [x, b.ints((0, r.start, c.start, 0)), b.ints(shape)], shape, x.quant
                )
            pooled = (n, r.count, c.count, channels)
            pieces.append(_average(b, part, pooled, [r.kernel, c.kernel], [r.stride, c.stride], call))
        rows.append(_join(b, pieces, 2))
    return b.reshape(b.to_channels_first(_join(b, rows, 1)), call.out.shape)


def _join(b: Builder, parts: list[Tensor], axis: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    options = {"axis": axis, "fusedActivationFunction": Activation.NONE}
    return b.op(Builtin.CONCATENATION, list(parts), shape, parts[0].quant, options=options)


def _ceil_counts_outside(call: Call) -> bool:
    """ceil_mode may add windows that reach beyond the counted padding; torch does not count those."""
    shape, out = _batched(call)
    return any(
        rows_after(size, o, k, s, p) > p
        for size, o, k, s, p in zip(
            shape[2:], out[2:], _kernel(call), _stride(call), _padding(call), strict=True
        )
    )


_CEIL = Case("ceil mode", as_layer("AvgPool2d", 2, ceil_mode=True), ((1, 2, 5, 5),))
_AVG_REQUIRES = (
    Constraint(
        "divisor_override must be None",
        lambda c: c.get("divisor_override") is None,
        lambda c: c["divisor_override"],
        hint="Give the model to NeutronQuantizer: it writes it as a product.",
    ),
    Constraint(
        "ceil_mode with counted padding must not reach beyond it",
        lambda c: not _counts_padding(c) or not _ceil_counts_outside(c),
        hint="Give the model to NeutronQuantizer: it pads before the pool.",
    ),
    nxp_limit("ceil_mode must be False", lambda c: not c.get("ceil_mode", False), violated_by=_CEIL),
    nxp_limit(
        "Padding must be counted (count_include_pad)",
        lambda c: not any(c.get("padding", ())) or _counts_padding(c),
        violated_by=Case(
            "padding not counted",
            as_layer("AvgPool2d", 3, padding=1, count_include_pad=False),
            ((1, 2, 6, 6),),
        ),
    ),
    at_most("kernel", "Kernel", _kernel, Case("kernel 4097", as_layer("AvgPool1d", 4097), ((1, 1, 4100),))),
    at_most(
        "stride",
        "Stride",
        _stride,
        Case("stride 4097", as_layer("AvgPool1d", 1, stride=4097), ((1, 1, 4100),)),
    ),
)


def _pool_cases(layer: str, size: tuple[int, ...], **kwargs: Any) -> tuple[Case, ...]:
    flags: dict[str, Any] = {"channels_last": len(size) == 2, **kwargs}
    cases = (
        ("2", {"kernel_size": 2}),
        ("3 stride 1", {"kernel_size": 3, "stride": 1}),
        ("3 stride 2 padded", {"kernel_size": 3, "stride": 2, "padding": 1}),
        ("ceil", {"kernel_size": 2, "ceil_mode": True}),
        ("3 stride 1 padded", {"kernel_size": 3, "stride": 1, "padding": 1}),
    )
    return tuple(Case(label, as_layer(layer, **args), ((2, 3, *size),), **flags) for label, args in cases)


AVG_POOL = OpSpec(
    ("aten.avg_pool2d.default", "aten.avg_pool1d.default"),
    Shared(Values.ROUNDED),
    _lower_avg_pool,
    _AVG_REQUIRES,
    _pool_cases("AvgPool2d", (7, 8))
    + _pool_cases("AvgPool1d", (9,))
    + (
        Case(
            "not counted, stride 2",
            as_layer("AvgPool2d", 3, stride=2, padding=1, count_include_pad=False),
            ((1, 3, 8, 9),),
            channels_last=True,
        ),
        Case(
            "not counted, ceil",
            as_layer("AvgPool2d", (3, 5), stride=2, padding=(1, 2), ceil_mode=True, count_include_pad=False),
            ((1, 3, 8, 8),),
        ),
        Case(
            "not counted",
            as_layer("AvgPool2d", 3, stride=1, padding=1, count_include_pad=False),
            ((1, 3, 6, 6),),
        ),
    ),
)


# --------------------------------------------------------------------------------------------------
# Adaptive


def _adaptive_out(call: Call) -> list[int]:
    return spatial(call["output_size"], _dims(call), 1)


def _divides(call: Call) -> bool:
    shape, _ = _batched(call)
    return all(o and size % o == 0 for size, o in zip(shape[2:], _adaptive_out(call), strict=True))


def _lower_adaptive(at: Lowering, call: Call) -> Tensor:
    """An average pool for each band of even windows; where the sizes divide, that is one."""
    b, (shape, out) = at.build, _batched(call)
    x = b.reshape(at(call.input), shape)
    rows, columns = (adaptive_windows(size, o) for size, o in zip(shape[2:], out[2:], strict=True))
    return _banded_average(b, x, rows, columns, call)


ADAPTIVE_AVG_POOL = OpSpec(
    (
        "aten._adaptive_avg_pool2d.default",
        "aten.adaptive_avg_pool2d.default",
        "aten.adaptive_avg_pool1d.default",
    ),
    Shared(Values.ROUNDED),
    _lower_adaptive,
    (
        nxp_limit(
            "Input rows and columns must be multiples of the output's",
            _divides,
            lambda c: [list(_batched(c)[0][2:]), _adaptive_out(c)],
            Case("7 to 3", as_layer("AdaptiveAvgPool2d", 3), ((1, 2, 7, 7),)),
        ),
        nxp_limit(
            "Kernel must be at most 4096",
            lambda c: max(_batched(c)[0][2:]) <= c.target.limits.kernel,
            lambda c: list(c.input.shape),
        ),
    ),
    (
        Case("global", as_layer("AdaptiveAvgPool2d", 1), ((2, 3, 6, 6),), channels_last=True),
        Case("to 2x3", as_layer("AdaptiveAvgPool2d", (2, 3)), ((2, 3, 6, 6),), channels_last=True),
        Case("1d", as_layer("AdaptiveAvgPool1d", 2), ((2, 3, 6),)),
        Case("7x8 to 3x5", as_layer("AdaptiveAvgPool2d", (3, 5)), ((2, 3, 7, 8),), channels_last=True),
        Case("3 to 7", as_layer("AdaptiveAvgPool1d", 7), ((2, 3, 3),)),
    ),
)

MAX_POOL = OpSpec(
    ("aten.max_pool2d.default", "aten.max_pool2d_with_indices.default", "aten.max_pool1d.default"),
    Shared(Values.CHOSEN),
    _lower_max_pool,
    (
        nxp_limit(
            "Dilation must be 1",
            lambda c: _dilation(c) == [1, 1],
            _dilation,
            Case("dilation 2", as_layer("MaxPool2d", 2, dilation=2), ((1, 2, 6, 6),)),
        ),
        nxp_limit(
            "ceil_mode must be False",
            lambda c: not c.get("ceil_mode", False),
            violated_by=Case("ceil mode", as_layer("MaxPool2d", 2, ceil_mode=True), ((1, 2, 5, 5),)),
        ),
        nxp_limit(
            "Stride must be at most 4096", lambda c: max(_stride(c)) <= c.target.limits.stride, _stride
        ),
    ),
    _pool_cases("MaxPool2d", (7, 8), tolerance=0)
    + _pool_cases("MaxPool1d", (9,), tolerance=0)
    + (
        Case("dilated", as_layer("MaxPool2d", 3, stride=1, dilation=2), ((2, 3, 7, 8),), tolerance=0),
        Case(
            "dilated, padded",
            as_layer("MaxPool2d", (3, 2), stride=2, padding=1, dilation=(2, 3), ceil_mode=True),
            ((1, 3, 11, 12),),
            channels_last=True,
            tolerance=0,
        ),
        Case("1d dilated", as_layer("MaxPool1d", 3, dilation=3), ((2, 3, 12),), tolerance=0),
        Case(
            "indices unread",
            lambda torch: lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True)[0],
            ((1, 3, 6, 6),),
            tolerance=0,
        ),
    ),
)
