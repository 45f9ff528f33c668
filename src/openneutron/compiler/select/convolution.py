"""Convolutions, matrix products and pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from openneutron.compiler.graph.arithmetic import (
    GROUP,
    activation_range,
    channel_multipliers,
    fold_zero_point,
    pack_matrix,
    quant_of,
    quantize_multiplier,
    scale_of,
    scale_product,
    zero_of,
)
from openneutron.compiler.graph.fuse_conv import INTERLEAVED, PADDING, PLANAR, WEAVE
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import KernelCall, Ref, View, Window
from openneutron.compiler.select.context import Context, Gaps, KernelRule, copies, int8_problem
from openneutron.litert.ir import Builtin, Op, Padding, Tensor


def padding_before(padding: int, size: int, window: int, stride: int, dilation: int = 1) -> int:
    """Rows or columns that LiteRT's SAME padding puts before the input; 0 for VALID."""
    reach = (window - 1) * dilation + 1
    if Padding(padding) is Padding.SAME:
        out = -(-size // stride)
    else:
        out = (size + stride - reach) // stride
    return max((out - 1) * stride + reach - size, 0) // 2


def dense_view(ref: Ref, shape: tuple[int, ...]) -> View:
    """The view of a dense NHWC tensor."""
    return View(ref, shape[3], shape[2] * shape[3])


def _channels(bias: np.ndarray, multipliers: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    return np.stack([bias, multipliers, shifts]).astype(np.int32)


def _bias(op: Op, index: int, channels: int) -> np.ndarray:
    tensor = op.inputs[index] if len(op.inputs) > index else None
    return np.zeros(channels, np.int32) if tensor is None else tensor.array.reshape(-1)


def _scales(source: Tensor, weights: Tensor, output: Tensor, channels: int) -> np.ndarray:
    """input * weight / output scale of each channel, in double precision as LiteRT computes it."""
    scales = np.array(quant_of(weights).scale, np.float64)
    return np.broadcast_to(scale_of(source) * scales / scale_of(output), channels)


def _weights_problem(weights: Tensor | None, bias: Tensor | None) -> str:
    if weights is None or not weights.is_const:
        return "its weights must be constant"
    if weights.dtype != "int8" or weights.quant is None:
        return f"its weights are {weights.dtype}, not int8"
    if any(weights.quant.zero_point):
        return "its weights must be symmetric (zero point 0)"
    if bias is not None and not bias.is_const:
        return "its bias must be constant"
    if bias is not None and bias.dtype != "int32":
        return f"its bias is {bias.dtype}, not int32"
    return ""


def _conv_problem(op: Op) -> str:
    source, weights = op.operand(0), op.operand(1)
    problem = int8_problem(source, op.output) or _weights_problem(
        weights, op.inputs[2] if len(op.inputs) > 2 else None
    )
    if problem or source.rank != 4:
        return problem or f"its input has rank {source.rank}, not 4"
    if op.kind is Builtin.CONV_2D and (
        source.shape[3] % weights.shape[3] or weights.shape[0] % (source.shape[3] // weights.shape[3])
    ):
        return f"{source.shape[3]} input channels do not divide into groups of {weights.shape[3]}"
    return ""


def _window(op: Op, kernel_h: int, kernel_w: int, shape: tuple[int, ...] | None = None) -> Window:
    """The window of an op on its input, or on an input of another `shape`, with all of its padding."""
    (batch, in_h, in_w, in_c), (_, out_h, out_w, out_c) = shape or op.operand(0).shape, op.output.shape
    o = op.options
    top, bottom, left, right = o.get(PADDING, (0, 0, 0, 0))
    stride_h, stride_w = int(o.get("strideH", 1)), int(o.get("strideW", 1))
    dilation_h, dilation_w = int(o.get("dilationHFactor", 1)), int(o.get("dilationWFactor", 1))
    padding = int(o.get("padding", 0))
    return Window(
        batch=batch, in_h=in_h, in_w=in_w, in_c=in_c, out_h=out_h, out_w=out_w, out_c=out_c,
        kernel_h=kernel_h, kernel_w=kernel_w, stride_h=stride_h, stride_w=stride_w,
        dilation_h=dilation_h, dilation_w=dilation_w,
        pad_top=top + padding_before(padding, in_h + top + bottom, kernel_h, stride_h, dilation_h),
        pad_left=left + padding_before(padding, in_w + left + right, kernel_w, stride_w, dilation_w),
        y0=0, y1=out_h,
    )  # fmt: skip


def _quantized_io(op: Op, source: Tensor) -> dict[str, Any]:
    low, high = activation_range(op.options.get("fusedActivationFunction", 0), quant_of(op.output))
    zeros = {"input_zero": zero_of(source), "output_zero": zero_of(op.output)}
    return {**zeros, "clamp_min": low, "clamp_max": high}


def _conv(op: Op, ctx: Context) -> list[KernelCall]:
    """One call; a grouped convolution is one call for each group, on channel slices of the same maps."""
    source, weights = op.operand(0), op.operand(1).array
    out_c, kernel_h, kernel_w, group_in = weights.shape
    groups = source.shape[3] // group_in
    group_out = out_c // groups
    bias = fold_zero_point(_bias(op, 2, out_c), weights, zero_of(source))
    multipliers, shifts = channel_multipliers(_scales(source, op.operand(1), op.output, out_c))
    window = replace(_window(op, kernel_h, kernel_w), in_c=group_in, out_c=group_out)
    pointwise = kernel_h == kernel_w == 1 and window.pad_top == window.pad_left == 0
    kernel = mc.Conv2DPointwise if pointwise else mc.Conv2D
    inputs, outputs = ctx.view(source), ctx.view(op.output)
    calls: list[KernelCall] = []
    for g in range(groups):
        part = slice(g * group_out, (g + 1) * group_out)
        calls.append(
            kernel(
                input=replace(inputs, ref=inputs.ref.plus(g * group_in)),
                output=replace(outputs, ref=outputs.ref.plus(g * group_out)),
                window=window,
                weights=ctx.pool.add(pack_matrix(weights[part].reshape(group_out, -1))),
                channels=ctx.pool.add(_channels(bias[part], multipliers[part], shifts[part])),
                **_quantized_io(op, source),
            )
        )
    return calls


def _planar_problem(op: Op) -> str:
    return int8_problem(op.operand(0), op.output) or _weights_problem(
        op.operand(1), op.inputs[2] if len(op.inputs) > 2 else None
    )


def _planar(op: Op, ctx: Context) -> list[KernelCall]:
    """The window of the convolution on NHWC, with the weights in the order in which planes are read."""
    source, weights = op.operand(0), op.operand(1).array
    interleaved = INTERLEAVED in op.options
    channels, height, width = (source.shape[axis] for axis in ((2, 1, 3) if interleaved else (1, 2, 3)))
    out_c, kernel_h, kernel_w, _ = weights.shape
    bias = fold_zero_point(_bias(op, 2, out_c), weights, zero_of(source))
    multipliers, shifts = channel_multipliers(_scales(source, op.operand(1), op.output, out_c))
    return [
        mc.Conv2DPlanar(
            input=View(ctx.place(source), 1, channels * width if interleaved else width),
            output=ctx.view(op.output),
            window=_window(op, kernel_h, kernel_w, (1, height, width, channels)),
            plane=width if interleaved else height * width,
            weights=ctx.pool.add(pack_matrix(weights.transpose(0, 3, 1, 2).reshape(out_c, -1))),
            channels=ctx.pool.add(_channels(bias, multipliers, shifts)),
            **_quantized_io(op, source),
        )
    ]


def _weave(op: Op, ctx: Context) -> list[KernelCall]:
    """In place, or a copy where the planes must stay."""
    source, output = ctx.place(op.operand(0)), ctx.ref(op.output)
    _, planes, rows, length = op.operand(0).shape
    if source == output:
        return [mc.Weave(output, planes, rows, length)]
    plane, row = rows * length, planes * length
    return copies(source, output, (rows, planes, length), (length, plane, 1), (row, length, 1), 1)


def _depthwise(op: Op, ctx: Context) -> list[KernelCall]:
    source, weights = op.operand(0), op.operand(1).array
    _, kernel_h, kernel_w, out_c = weights.shape
    multipliers, shifts = channel_multipliers(_scales(source, op.operand(1), op.output, out_c))
    return [
        mc.DepthwiseConv2D(
            input=ctx.view(source),
            output=ctx.view(op.output),
            window=_window(op, kernel_h, kernel_w),
            weights=ctx.pool.add(weights),
            channels=ctx.pool.add(_channels(_bias(op, 2, out_c), multipliers, shifts)),
            **_quantized_io(op, source),
        )
    ]


def _transpose_conv_problem(op: Op) -> str:
    source, weights = op.operand(2), op.operand(1)
    bias = op.inputs[3] if len(op.inputs) > 3 else None
    problem = int8_problem(source, op.output) or _weights_problem(weights, bias)
    if problem or source.rank != 4:
        return problem or f"its input has rank {source.rank}, not 4"
    return "" if weights.shape[3] == source.shape[3] else "it is grouped"


def _transpose_conv(op: Op, ctx: Context) -> list[KernelCall]:
    """One plain convolution for each phase of the stride.

    Output row y = stride * j + phase takes the kernel rows k with (y + pad - k) divisible by the stride.
    These are every stride-th row, and over j they slide by one input row; the phase's pixels are a strided
    view of the output.
    """
    source, weights = op.operand(2), op.operand(1).array
    out_c, kernel_h, kernel_w, _ = weights.shape
    (batch, in_h, in_w, in_c), (_, out_h, out_w, _) = source.shape, op.output.shape
    stride_h, stride_w, padding = (int(op.options[k]) for k in ("strideH", "strideW", "padding"))
    pad_top = padding_before(padding, out_h, kernel_h, stride_h)
    pad_left = padding_before(padding, out_w, kernel_w, stride_w)
    multipliers, shifts = channel_multipliers(_scales(source, op.operand(1), op.output, out_c))
    inputs, outputs = ctx.place(source), ctx.ref(op.output)
    row = out_w * out_c
    calls: list[KernelCall] = []
    for phase_y in range(min(stride_h, out_h)):
        taps_y, before_y = _phase(phase_y, pad_top, kernel_h, stride_h)
        for phase_x in range(min(stride_w, out_w)):
            taps_x, before_x = _phase(phase_x, pad_left, kernel_w, stride_w)
            if taps_y and taps_x:
                part = weights[:, taps_y][:, :, taps_x]
            else:  # no tap falls on this phase: one of zeros leaves the bias
                part = np.zeros((out_c, 1, 1, in_c), np.int8)
            bias = fold_zero_point(_bias(op, 3, out_c), part, zero_of(source))
            window = Window(
                batch=1, in_h=in_h, in_w=in_w, in_c=in_c,
                out_h=-(-(out_h - phase_y) // stride_h), out_w=-(-(out_w - phase_x) // stride_w), out_c=out_c,
                kernel_h=part.shape[1], kernel_w=part.shape[2],
                stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
                pad_top=before_y, pad_left=before_x, y0=0, y1=-(-(out_h - phase_y) // stride_h),
            )  # fmt: skip
            for b in range(batch):
                at = b * out_h * row + phase_y * row + phase_x * out_c
                calls.append(
                    mc.Conv2D(
                        input=dense_view(inputs.plus(b * in_h * in_w * in_c), source.shape),
                        output=View(outputs.plus(at), stride_w * out_c, stride_h * row),
                        window=window,
                        weights=ctx.pool.add(pack_matrix(part.reshape(out_c, -1))),
                        channels=ctx.pool.add(_channels(bias, multipliers, shifts)),
                        **_quantized_io(op, source),
                    )
                )
    return calls


def _phase(phase: int, pad: int, kernel: int, stride: int) -> tuple[list[int], int]:
    """The kernel rows of a phase in the order they meet rising input rows, and the padding before them."""
    first = (phase + pad) % stride
    taps = list(range(first, kernel, stride))[::-1]
    return taps, len(taps) - 1 - (phase + pad) // stride if taps else 0


def _fully_connected_problem(op: Op) -> str:
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    problem = int8_problem(op.operand(0), op.output) or _weights_problem(op.operand(1), bias)
    if not problem and op.options.get("weightsFormat", 0):
        problem = "its weights are shuffled"
    return problem


def _product(op: Op, ctx: Context) -> dict[str, Any]:
    """What every call of a fully connected layer has."""
    source, weights = op.operand(0), op.operand(1).array
    io = _quantized_io(op, source)
    del io["input_zero"]  # folded into the bias
    return {
        "input": ctx.place(source),
        "output": ctx.ref(op.output),
        "bias": ctx.pool.add(fold_zero_point(_bias(op, 2, len(weights)), weights, zero_of(source))),
        "scales": ctx.pool.add(_scales(source, op.operand(1), op.output, len(weights))),
        "out_features": len(weights),
        **io,
    }


def _fully_connected(op: Op, ctx: Context) -> list[KernelCall]:
    source, weights = op.operand(0), op.operand(1).array
    packed = ctx.pool.add(pack_matrix(weights))
    rows, in_features = source.elements // weights.shape[1], weights.shape[1]
    return [mc.FullyConnected(weights=packed, rows=rows, in_features=in_features, **_product(op, ctx))]


def fully_connected_rows(op: Op, ctx: Context, rows: int, sums: Ref) -> mc.FullyConnectedRows | None:
    """A layer that reads a feature map of `rows` rows whole, taking a few of them at a time."""
    source, weights = op.operand(0), op.operand(1).array
    row = source.elements // rows
    if weights.shape[1] != source.elements or row % GROUP or ctx.pitch(source):
        return None
    each = [pack_matrix(weights[:, y * row : (y + 1) * row]) for y in range(rows)]
    packed = ctx.pool.add(np.concatenate(each))
    product = _product(op, ctx)
    return mc.FullyConnectedRows(weights=packed, sums=sums, height=rows, row=row, y0=0, y1=rows, **product)


def _batch_matmul_problem(op: Op) -> str:
    problem = int8_problem(op.operand(0), op.operand(1), op.output)
    return problem or (f"rank {op.output.rank} is more than 6" if op.output.rank > 6 else "")


def _batch_matmul(op: Op, ctx: Context) -> list[KernelCall]:
    lhs, rhs = op.operand(0), op.operand(1)
    adj_x, adj_y = bool(op.options.get("adjX")), bool(op.options.get("adjY"))
    m, n = op.output.shape[-2:]
    k = lhs.shape[-2] if adj_x else lhs.shape[-1]
    batch = op.output.shape[:-2]

    def strides(t: Tensor) -> tuple[int, ...]:
        shape = (1,) * (len(batch) - (t.rank - 2)) + t.shape[:-2]
        size, result = t.shape[-2] * t.shape[-1], []
        for d in reversed(shape):
            result.append(0 if d == 1 else size)
            size *= d
        return (0,) * (4 - len(batch)) + tuple(reversed(result))

    multiplier, shift = quantize_multiplier(scale_product(lhs, rhs) / scale_of(op.output))
    return [
        mc.BatchMatmul(
            lhs=ctx.place(lhs), rhs=ctx.place(rhs), output=ctx.ref(op.output),
            batch=(1,) * (4 - len(batch)) + tuple(batch),
            lhs_batch_strides=strides(lhs), rhs_batch_strides=strides(rhs), m=m, n=n, k=k,
            lhs_row=1 if adj_x else k, lhs_column=m if adj_x else 1,
            rhs_row=1 if adj_y else n, rhs_column=k if adj_y else 1,
            lhs_zero=zero_of(lhs), rhs_zero=zero_of(rhs), output_zero=zero_of(op.output),
            multiplier=multiplier, shift=shift, clamp_min=-128, clamp_max=127,
        )
    ]  # fmt: skip


def _pool_problem(op: Op) -> str:
    source = op.operand(0)
    if problem := int8_problem(source, op.output):
        return problem
    if source.rank != 4:
        return f"its input has rank {source.rank}, not 4"
    if source.quant != op.output.quant:
        return "its input and output have different quantization"
    return ""


def _pool(op: Op, ctx: Context) -> list[KernelCall]:
    source = op.operand(0)
    window = _window(op, int(op.options["filterHeight"]), int(op.options["filterWidth"]))
    low, high = activation_range(op.options.get("fusedActivationFunction", 0), quant_of(op.output))
    kernel = mc.AveragePool2D if op.kind is Builtin.AVERAGE_POOL_2D else mc.MaxPool2D
    return [
        kernel(
            input=ctx.view(source),
            output=ctx.view(op.output),
            window=window,
            clamp_min=low,
            clamp_max=high,
        )
    ]


RULES: dict[Builtin | str, KernelRule] = {
    PLANAR: KernelRule(_planar, _planar_problem),
    WEAVE: KernelRule(_weave, lambda op: "", in_place=True),
    Builtin.CONV_2D: KernelRule(_conv, _conv_problem, Gaps.BOTH),
    Builtin.DEPTHWISE_CONV_2D: KernelRule(_depthwise, _conv_problem, Gaps.BOTH),
    Builtin.TRANSPOSE_CONV: KernelRule(_transpose_conv, _transpose_conv_problem),
    Builtin.FULLY_CONNECTED: KernelRule(_fully_connected, _fully_connected_problem),
    Builtin.BATCH_MATMUL: KernelRule(_batch_matmul, _batch_matmul_problem),
    Builtin.AVERAGE_POOL_2D: KernelRule(_pool, _pool_problem, Gaps.BOTH),
    Builtin.MAX_POOL_2D: KernelRule(_pool, _pool_problem, Gaps.BOTH),
}
