"""Convolutions: 1-D and 2-D, grouped, depthwise, transposed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Activation, Builtin, Padding, Quant, Tensor
from openneutron.ops.common import at_most, fused, nxp_limit, per_axis, quant_of
from openneutron.ops.spec import Call, Case, Constraint, Lowering, OpSpec, Value, Weighted

# --------------------------------------------------------------------------------------------------
# Geometry shared with pooling


def same_or_valid(size: int, out: int, kernel: int, stride: int, before: int) -> set[Padding]:
    """The LiteRT padding modes that read exactly these windows along one dimension."""
    modes = set()
    if before == 0 and (out - 1) * stride + kernel <= size and out == (size - kernel) // stride + 1:
        modes.add(Padding.VALID)
    total = max((out - 1) * stride + kernel - size, 0)
    if out == -(-size // stride) and before == total // 2:
        modes.add(Padding.SAME)
    return modes


def padding_mode(
    sizes: list[int], outs: list[int], kernels: list[int], strides: list[int], before: list[int]
) -> Padding | None:
    """One LiteRT padding mode for all dimensions, or None if explicit padding is needed."""
    modes = set(Padding)
    for args in zip(sizes, outs, kernels, strides, before, strict=True):
        modes &= same_or_valid(*args)
    return max(modes) if modes else None


def rows_after(size: int, out: int, kernel: int, stride: int, before: int) -> int:
    """How many rows beyond the input the last window reads."""
    return max((out - 1) * stride + kernel - before - size, 0)


def spatial(value: Any, dims: int, default: int) -> list[int]:
    """A per-dimension argument for `dims` spatial dimensions, as two values (height 1 for 1-D)."""
    return [default] * (2 - dims) + [int(v) for v in per_axis(value, dims)]


def as_nchw(shape: tuple[int, ...], dims: int) -> tuple[int, ...]:
    """The shape with a batch, which torch lets users leave out, and with a height, which 1-D has not."""
    batched = (1, *shape) if len(shape) == dims + 1 else shape
    return (*batched[:2], 1, batched[2]) if dims == 1 else batched


# --------------------------------------------------------------------------------------------------
# Constraints


def is_transposed(call: Call) -> bool:
    """Whether the call is a transposed convolution, under any of its names."""
    return bool(call.get("transposed", "conv_transpose" in call.op))


def _dims(call: Call) -> int:
    return call["weight"].rank - 2


def _channels(call: Call) -> int:
    """Of the input."""
    return call["input"].shape[-_dims(call) - 1]


def _kernel(call: Call) -> list[int]:
    return list(call["weight"].shape[2:])


def _values(name: str, default: int) -> Any:
    return lambda call: spatial(call.get(name, default), _dims(call), default)


def _kernel_area(call: Call) -> int:
    """kH * kW * input channels, these rounded up to the multipliers of a pipe."""
    channels = call["weight"].shape[0 if is_transposed(call) else 1]
    pipe = call.target.macs_per_pipe
    return math.prod(_kernel(call)) * -(-channels // pipe) * pipe


def _is_depthwise(call: Call) -> bool:
    return call.get("groups", 1) == _channels(call) and call["weight"].shape[1] == 1


def _conv_case(
    label: str,
    cin: int,
    cout: int,
    kernel: Any,
    size: tuple[int, ...],
    *,
    batch: int = 1,
    layer: str = "",
    relu: str = "",
    **kwargs: Any,
) -> Case:
    def make(torch: Any) -> Any:
        conv = getattr(torch.nn, layer or f"Conv{len(size)}d")(cin, cout, kernel, **kwargs)
        return torch.nn.Sequential(conv, getattr(torch.nn, relu)()) if relu else conv

    return Case(label, make, ((batch, cin, *size),), channels_last=len(size) == 2, qat=not layer)


_WIDE = Case("kernel 4097", lambda torch: torch.nn.Conv1d(1, 1, 4097), ((1, 1, 4100),))
COMMON = (
    Constraint(
        "Convolution must be 1-D or 2-D",
        lambda c: _dims(c) in (1, 2),
        _dims,
        hint="Give the model to NeutronQuantizer: it writes 3-D ones with constant weights as 2-D ones.",
    ),
    Constraint(
        "Weights must be constant",
        lambda c: c["weight"].is_const,
    ),
    Constraint(
        "Weights must be symmetric (zero point 0)",
        lambda c: set(c["weight"].quant.zero_point) == {0},
        lambda c: sorted(set(c["weight"].quant.zero_point)),
        hint="Quantize with NeutronQuantizer.",
    ),
    Constraint("Bias must be constant", lambda c: c.get("bias") is None or c["bias"].is_const),
)
PUBLISHED = (
    nxp_limit(
        "Transposed convolution must have groups 1",
        lambda c: not is_transposed(c) or c["groups"] == 1,
        lambda c: c["groups"],
        Case("groups 2", lambda torch: torch.nn.ConvTranspose2d(4, 4, 2, groups=2), ((1, 4, 4, 4),)),
    ),
    at_most("kernel", "Kernel", _kernel, _WIDE),
    at_most(
        "stride",
        "Stride",
        _values("stride", 1),
        Case("stride 4097", lambda torch: torch.nn.Conv1d(1, 1, 1, stride=4097), ((1, 1, 4100),)),
    ),
    at_most(
        "dilation",
        "Dilation",
        _values("dilation", 1),
        Case("dilation 4097", lambda torch: torch.nn.Conv1d(1, 1, 2, dilation=4097), ((1, 1, 4100),)),
    ),
    at_most(
        "window",
        "kH * kW * channels (rounded up to the multipliers of a pipe)",
        lambda c: [_kernel_area(c)],
        Case("large window", lambda torch: torch.nn.Conv2d(1024, 1, 8), ((1, 1024, 8, 8),)),
        _kernel_area,
    ),
    nxp_limit(
        "Transposed convolution's dilation must be 1",
        lambda c: not is_transposed(c) or max(_values("dilation", 1)(c)) == 1,
        _values("dilation", 1),
        Case("dilated", lambda torch: torch.nn.ConvTranspose2d(2, 2, 2, dilation=2), ((1, 2, 5, 5),)),
    ),
    nxp_limit(
        "Transposed convolution's stride must be 1 or 2",
        lambda c: not is_transposed(c) or max(_values("stride", 1)(c)) <= 2,
        _values("stride", 1),
        Case("stride 3", lambda torch: torch.nn.ConvTranspose2d(2, 2, 3, stride=3), ((1, 2, 4, 4),)),
    ),
    nxp_limit(
        "Transposed convolution's stride must be at most its kernel",
        lambda c: not is_transposed(c) or all(s <= k for s, k in zip(c["stride"], _kernel(c), strict=False)),
        lambda c: c["stride"],
        Case(
            "stride over kernel", lambda torch: torch.nn.ConvTranspose2d(2, 2, 1, stride=2), ((1, 2, 4, 4),)
        ),
    ),
    nxp_limit(
        "Transposed convolution's padding must be less than its kernel",
        lambda c: not is_transposed(c) or all(p < k for p, k in zip(c["padding"], _kernel(c), strict=False)),
        lambda c: c["padding"],
        Case("wide padding", lambda torch: torch.nn.ConvTranspose2d(2, 2, 2, padding=2), ((1, 2, 5, 5),)),
    ),
)

# --------------------------------------------------------------------------------------------------
# Lowering


def weight_quant(weight: Value, axis: int) -> Quant:
    """The weight's parameters, with the output-channel axis where LiteRT has it."""
    assert weight.quant is not None
    q = weight.quant
    return q if q.is_per_tensor else Quant(q.scale, q.zero_point, axis)


def bias_const(at: Lowering, bias: Value | None, x: Quant, weight: Quant, channels: int) -> Tensor:
    """The int32 bias in units of input scale times weight scale; zeros if there is none."""
    if not at.build.quantized:
        return at.build.const(np.zeros(channels, np.float32) if bias is None else bias.real().reshape(-1))
    steps = np.float64(x.scale[0]) * np.array(weight.scale, np.float64)
    quant = Quant.per_tensor(float(steps[0])) if len(steps) == 1 else Quant.per_axis(steps)
    if bias is None:
        return at.build.const(np.zeros(channels, np.int32), quant)
    if bias.quant is not None and bias.dtype == "int32":
        unit = np.array(bias.quant.scale, np.float64)
        if np.allclose(unit, steps, rtol=1e-5):
            return at.build.const(bias.array().reshape(-1), quant)
    # A float bias (a bias-less convolution whose batch norm was folded in QAT), or foreign parameters.
    values = np.rint(bias.real().reshape(-1) / steps)
    return at.build.const(np.clip(values, -(2**31), 2**31 - 1).astype(np.int32), quant)


def lower_convolution(at: Lowering, call: Call) -> Tensor:
    """CONV_2D, DEPTHWISE_CONV_2D or TRANSPOSE_CONV on channels-last tensors."""
    b = at.build
    dims = _dims(call)
    x = b.reshape(at(call["input"]), as_nchw(call["input"].shape, dims))
    weights = call["weight"].array()
    weights = weights.reshape(*weights.shape[:2], *([1] * (4 - weights.ndim)), *weights.shape[2:])
    out = as_nchw(call.out.shape, dims)
    y = (_transpose_conv if is_transposed(call) else _conv)(at, call, x, weights, out)
    return b.reshape(b.to_channels_first(y), call.out.shape)


def _conv(at: Lowering, call: Call, x: Tensor, weights: np.ndarray, out: tuple[int, ...]) -> Tensor:
    b, dims = at.build, _dims(call)
    stride, dilation = spatial(call.get("stride", 1), dims, 1), spatial(call.get("dilation", 1), dims, 1)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weights.shape[2:], strict=True)]
    before = _padding_before(call, reach, dims)
    mode = padding_mode(list(x.shape[2:]), list(out[2:]), reach, stride, before)
    if mode is None:
        after = [rows_after(*a) for a in zip(x.shape[2:], out[2:], reach, stride, before, strict=True)]
        x = pad_spatial(b, x, before, after)
        mode = Padding.VALID
    depthwise = _is_depthwise(call)
    kind = Builtin.DEPTHWISE_CONV_2D if depthwise else Builtin.CONV_2D
    quant = weight_quant(call["weight"], 3 if depthwise else 0)
    packed = weights.transpose(1, 2, 3, 0) if depthwise else weights.transpose(0, 2, 3, 1)
    options = {
        "padding": mode,
        "strideH": stride[0],
        "strideW": stride[1],
        "dilationHFactor": dilation[0],
        "dilationWFactor": dilation[1],
        **fused(call),
    }
    if depthwise:
        options["depthMultiplier"] = weights.shape[0] // x.shape[1]
    operands = [
        b.to_channels_last(x),
        b.const(packed, quant),
        bias_const(at, call.get("bias"), call["input"].quant, quant, weights.shape[0]),
    ]
    return b.op(kind, operands, (out[0], out[2], out[3], out[1]), quant_of(call), options=options)


def _padding_before(call: Call, reach: list[int], dims: int) -> list[int]:
    padding = call.get("padding", 0)
    if padding == "same":
        return [(r - 1) // 2 for r in reach]
    return [0, 0] if padding == "valid" else spatial(padding, dims, 0)


def pad_spatial(b: Builder, x: Tensor, before: list[int], after: list[int]) -> Tensor:
    """Zeros around the height and width of an NCHW tensor."""
    rows = np.array([[0, 0], [0, 0], [before[0], after[0]], [before[1], after[1]]], np.int32)
    shape = tuple(int(d + lo + hi) for d, (lo, hi) in zip(x.shape, rows, strict=True))
    return b.op(Builtin.PAD, [x, b.const(rows)], shape, x.quant)


def _transpose_conv(at: Lowering, call: Call, x: Tensor, weights: np.ndarray, out: tuple[int, ...]) -> Tensor:
    b, dims = at.build, _dims(call)
    stride, padding = spatial(call.get("stride", 1), dims, 1), spatial(call.get("padding", 0), dims, 0)
    weights = _spread(weights, spatial(call.get("dilation", 1), dims, 1))
    if call.get("groups", 1) > 1:
        return _grouped_transpose_conv(at, call, x, weights, out)
    weights = weights.transpose(1, 2, 3, 0)
    kernel, size, wanted = weights.shape[1:3], x.shape[2:], out[2:]
    # SAME is right where its own padding, (reach - output) / 2, is the call's.
    same = all(
        -(-w // s) == i and max((i - 1) * s + k - w, 0) // 2 == p
        for w, s, i, k, p in zip(wanted, stride, size, kernel, padding, strict=True)
    )
    # Otherwise compute all that the input reaches and crop.
    full = (
        wanted
        if same
        else tuple(
            max((i - 1) * s + k, p + w)
            for i, s, k, p, w in zip(size, stride, kernel, padding, wanted, strict=True)
        )
    )
    quant = weight_quant(call["weight"], 0)
    shape = (out[0], *full, out[1])
    operands = [
        b.const(np.array(shape, np.int32)),
        b.const(weights, quant),
        b.to_channels_last(x),
        bias_const(at, call.get("bias"), call["input"].quant, quant, weights.shape[0]),
    ]
    y = b.op(
        Builtin.TRANSPOSE_CONV,
        operands,
        shape,
        quant_of(call),
        options={
            "padding": Padding.SAME if same else Padding.VALID,
            "strideH": stride[0],
            "strideW": stride[1],
            **fused(call),
        },
    )
    if full == wanted:
        return y
    begin = np.array([0, *padding, 0], np.int32)
    final = (out[0], *wanted, out[1])
    return b.op(Builtin.SLICE, [y, b.const(begin), b.const(np.array(final, np.int32))], final, y.quant)


def _grouped_transpose_conv(
    at: Lowering, call: Call, x: Tensor, weights: np.ndarray, out: tuple[int, ...]
) -> Tensor:
    """LiteRT's TRANSPOSE_CONV has one group: a convolution for each phase of the stride, and their rows and
    columns interleaved."""
    b, dims, groups = at.build, _dims(call), call["groups"]
    stride, padding = spatial(call.get("stride", 1), dims, 1), spatial(call.get("padding", 0), dims, 0)
    channels, group_out, _, _ = weights.shape
    # (in, out / groups, h, w) as (out, in / groups, h, w)
    forward = weights.reshape(groups, channels // groups, group_out, *weights.shape[2:]).swapaxes(1, 2)
    forward = forward.reshape(groups * group_out, channels // groups, *weights.shape[2:])
    counts = [-(-o // s) for o, s in zip(out[2:], stride, strict=True)]
    x = b.to_channels_last(x)
    rows = []
    for phase_y in range(stride[0]):
        columns = []
        for phase_x in range(stride[1]):
            phases = zip((phase_y, phase_x), padding, weights.shape[2:], stride, strict=True)
            (taps_y, first_y), (taps_x, first_x) = (_phase(*p) for p in phases)
            part = forward[:, :, taps_y][:, :, :, taps_x]
            if not part.size:  # no tap falls on this phase: one of zeros leaves the bias
                part, first_y, first_x = np.zeros_like(forward[:, :, :1, :1]), 0, 0
            window = _moved(
                b, x, (first_y, first_x), (counts[0] + part.shape[2] - 1, counts[1] + part.shape[3] - 1)
            )
            columns.append(_phase_conv(at, call, window, part, (out[0], *counts, out[1])))
        wide = (out[0], counts[0], counts[1] * stride[1], out[1])
        rows.append(b.reshape(_joined(b, columns, 3), wide))
    high = (out[0], counts[0] * stride[0], counts[1] * stride[1], out[1])
    y = b.reshape(_joined(b, rows, 2), high)
    final = (out[0], *out[2:], out[1])
    if final == y.shape:
        return y
    return b.op(Builtin.SLICE, [y, b.ints((0, 0, 0, 0)), b.ints(final)], final, y.quant)


def _phase(phase: int, pad: int, kernel: int, stride: int) -> tuple[list[int], int]:
    """The taps of a phase in the order they meet rising input rows, and where the first window begins."""
    first = (phase + pad) % stride
    taps = list(range(first, kernel, stride))[::-1]
    return taps, (phase + pad) // stride - len(taps) + 1


def _moved(b: Builder, x: Tensor, first: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """`size` rows and columns of an NHWC tensor from `first` on, zeros where they lie outside."""
    begin = (0, max(first[0], 0), max(first[1], 0), 0)
    end = [min(f + n, d) for f, n, d in zip(first, size, x.shape[1:3], strict=True)]
    kept = (x.shape[0], end[0] - begin[1], end[1] - begin[2], x.shape[3])
    before = [begin[1] - first[0], begin[2] - first[1]]
    if kept != x.shape:
        x = b.op(Builtin.SLICE, [x, b.ints(begin), b.ints(kept)], kept, x.quant)
    after = [n - k - lo for n, k, lo in zip(size, kept[1:3], before, strict=True)]
    if not any((*before, *after)):
        return x
    around = np.array([[0, 0], [before[0], after[0]], [before[1], after[1]], [0, 0]], np.int32)
    return b.op(Builtin.PAD, [x, b.const(around)], (x.shape[0], *size, x.shape[3]), x.quant)


def _phase_conv(at: Lowering, call: Call, x: Tensor, weights: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    b, groups = at.build, call["groups"]
    depthwise = weights.shape[1] == 1
    quant = call["weight"].quant
    if not quant.is_per_tensor:  # along the output channels of a group, the same for each
        quant = Quant(quant.scale * groups, quant.zero_point * groups, 3 if depthwise else 0)
    options = {
        "padding": Padding.VALID,
        **dict.fromkeys(("strideH", "strideW", "dilationHFactor", "dilationWFactor"), 1),
        **fused(call),
    }
    if depthwise:
        options["depthMultiplier"] = weights.shape[0] // groups
    packed = weights.transpose(1, 2, 3, 0) if depthwise else weights.transpose(0, 2, 3, 1)
    bias = bias_const(at, call.get("bias"), call["input"].quant, quant, weights.shape[0])
    kind = Builtin.DEPTHWISE_CONV_2D if depthwise else Builtin.CONV_2D
    return b.op(kind, [x, b.const(packed, quant), bias], shape, quant_of(call), options=options)


def _joined(b: Builder, parts: list[Tensor], axis: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] *= len(parts)
    options = {"axis": axis, "fusedActivationFunction": Activation.NONE}
    return b.op(Builtin.CONCATENATION, list(parts), shape, parts[0].quant, options=options)


def _spread(weights: np.ndarray, dilation: list[int]) -> np.ndarray:
    """Dilated weights as dense ones with zeros between: LiteRT's TRANSPOSE_CONV has no dilation."""
    if dilation == [1, 1]:
        return weights
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weights.shape[2:], strict=True)]
    dense = np.zeros((*weights.shape[:2], *reach), weights.dtype)
    dense[:, :, :: dilation[0], :: dilation[1]] = weights
    return dense


# --------------------------------------------------------------------------------------------------
# Entries

_CONV_CASES = (
    _conv_case("1x1", 5, 7, 1, (6, 6)),
    _conv_case("3x3 same", 3, 8, 3, (7, 8), padding=1),
    _conv_case("3x3 stride 2", 3, 8, 3, (7, 8), stride=2, padding=1),
    _conv_case("valid", 3, 4, (3, 2), (6, 7)),
    _conv_case("stride 3", 3, 4, 3, (10, 10), stride=3),
    _conv_case("dilated", 3, 4, 3, (9, 9), dilation=2, padding=2),
    _conv_case("wide padding", 3, 4, 3, (6, 6), padding=2),
    _conv_case("no bias", 3, 4, 3, (6, 6), bias=False),
    _conv_case("batch 3", 3, 4, 3, (6, 6), batch=3),
    _conv_case("uneven stride", 3, 4, 3, (8, 9), stride=(2, 1), padding=(0, 1)),
    _conv_case("depthwise", 6, 6, 3, (7, 7), groups=6, padding=1),
    _conv_case("one channel", 1, 4, 3, (6, 6)),
    _conv_case("depthwise x2", 3, 6, 3, (7, 7), groups=3, stride=2),
    _conv_case("groups 2", 4, 6, 3, (6, 6), groups=2),
    _conv_case("groups 4", 8, 16, 3, (6, 6), groups=4, stride=2, padding=1, relu="ReLU"),
    _conv_case("relu", 3, 4, 3, (6, 6), relu="ReLU"),
    _conv_case("relu6", 3, 4, 3, (6, 6), relu="ReLU6"),
    _conv_case("hardtanh", 3, 4, 3, (6, 6), relu="Hardtanh"),
    _conv_case("sigmoid", 3, 4, 3, (6, 6), relu="Sigmoid"),
    _conv_case("padding same", 3, 4, 4, (6, 6), padding="same"),
)
_CONV1D_CASES = (
    _conv_case("1d", 3, 5, 3, (12,)),
    _conv_case("1d causal", 3, 4, 3, (12,), padding=4, dilation=2),
    _conv_case("1d stride 2", 3, 5, 4, (13,), stride=2, padding=1),
    _conv_case("1d depthwise", 4, 4, 3, (12,), groups=4, padding=1),
)
_TRANSPOSED_CASES = tuple(
    _conv_case(label, 3, 4, kernel, size, layer=f"ConvTranspose{len(size)}d", **kwargs)
    for label, kernel, size, kwargs in (
        ("transposed", 3, (4, 5), {}),
        ("transposed stride 2", 2, (4, 4), {"stride": 2}),
        ("transposed same", 4, (4, 4), {"stride": 2, "padding": 1}),
        ("transposed cropped", 3, (4, 4), {"stride": 2, "padding": 1, "output_padding": 1}),
        ("transposed no bias", 3, (4, 4), {"bias": False}),
        ("transposed dilated", 2, (4, 4), {"dilation": 2}),
        ("transposed 1d", 3, (6,), {"stride": 2}),
    )
)

_TRANSPOSED_CASES += tuple(
    _conv_case(label, cin, cout, kernel, (4, 5), layer="ConvTranspose2d", **kwargs)
    for label, cin, cout, kernel, kwargs in (
        ("transposed, groups", 4, 6, 3, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
        ("transposed depthwise", 4, 4, 4, {"stride": 2, "padding": 1, "groups": 4}),
        ("transposed depthwise x2, uneven", 3, 6, (2, 3), {"stride": (3, 1), "groups": 3, "bias": False}),
        ("transposed, groups, wide padding", 4, 4, 3, {"padding": 2, "groups": 2, "dilation": 2}),
    )
)

_REQUIRES = COMMON + PUBLISHED
CONVOLUTION = OpSpec(
    ("aten.convolution.default", "aten.conv2d.default", "aten.conv2d.padding"),
    Weighted(),
    lower_convolution,
    _REQUIRES,
    _CONV_CASES,
    fuses_activation=True,
)
CONV1D = OpSpec(
    ("aten.conv1d.default", "aten.conv1d.padding"),
    Weighted(),
    lower_convolution,
    cases=_CONV1D_CASES,
    fuses_activation=True,
    requires=_REQUIRES,
)
CONV_TRANSPOSE = OpSpec(
    ("aten.conv_transpose2d.input", "aten.conv_transpose1d.default"),
    Weighted(channel_axis=1),
    lower_convolution,
    cases=_TRANSPOSED_CASES,
    fuses_activation=True,
    requires=_REQUIRES,
)
