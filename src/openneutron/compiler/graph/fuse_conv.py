"""Fusion into convolutions and pools: padding, groups, images in planes. Exact, as all of `fuse`."""

from __future__ import annotations

import numpy as np

from openneutron.compiler.graph.legalize import group_channels
from openneutron.compiler.graph.shapes import concat_axis, slice_of
from openneutron.compiler.microcode.format import Conv2DPlanar, Weave, limit_of
from openneutron.litert.ir import Builtin, Op, Padding, Quant, Tensor
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import rule

PADDING = "explicitPadding"
"""Option of convolutions in the compiler's graphs only: zero points around the input, (top, bottom, left,
right), beside what the operator pads itself. LiteRT knows SAME and VALID; the kernels take any padding."""

PLANAR = "PlanarConv2D"
"""CUSTOM operator of the compiler's graphs only: CONV_2D of an input with its channels in planes, NCHW, with
the inputs and options of CONV_2D, PADDING too."""
WEAVE = "WeavePlanes"  # the same bytes ordered by rows, then planes: N, H, C, W
INTERLEAVED = "interleaved"  # the option of a convolution that reads these
PLANAR_CHANNELS = 4  # at most; with more, gathering taps one by one costs more than the copy it saves
PLANAR_TAPS = limit_of(Conv2DPlanar, "PATCH_BYTES")
_PAD = (Builtin.PAD, Builtin.PADV2)


@rule(_PAD, Builtin.RESHAPE)
def pad_after_reshape(g: Rewriter, pad: Op, op: Op) -> bool:
    """PAD, then a reshape that adds or drops axes of length 1, become the reshape, then PAD.

    1-D convolutions come so: padded with rank 3, computed with rank 4. Where others read PAD too, both exist.
    """
    if not pad.operand(1).is_const:
        return False
    source, padded, target = pad.operand(0), pad.output.shape, op.output.shape
    if [d for d in padded if d != 1] != [d for d in target if d != 1] or target == padded:
        return False
    rows = zip(source.shape, pad.operand(1).array, padded, strict=True)
    kept = iter([(d, tuple(p)) for d, p, o in rows if o != 1])
    axes = [(1, (0, 0)) if d == 1 else next(kept) for d in target]
    shape = tuple(d for d, _ in axes)
    inner = source
    if shape != source.shape:
        inner = g.tensor(f"{source.name}_reshaped", shape, source.dtype, source.quant)
        g.reshape(source, inner, op.origin)
    amounts = g.constant(f"{op.output.name}_padding", np.array([p for _, p in axes], np.int32))
    g.add(pad.kind, [inner, amounts, *pad.inputs[2:]], op.output, pad.origin, pad.options)
    return True


@rule(_PAD, (Builtin.CONV_2D, Builtin.DEPTHWISE_CONV_2D, Builtin.MAX_POOL_2D))
def fuse_padding(g: Rewriter, pad: Op, op: Op) -> bool:
    """PAD of height and width goes into the convolutions and maxima that read it.

    Exact: a convolution's taps outside of its input count as the zero point, so that is what PAD must hold; a
    maximum leaves such taps out, which is the same if they hold the lowest value of all (PyTorch pads so) and
    every window has a tap inside. Averages are left alone: padding takes part in the count.
    """
    amounts = _padding_of(pad, lowest=op.kind is Builtin.MAX_POOL_2D)
    if amounts is None or PADDING in op.options:
        return False
    if op.kind is Builtin.CONV_2D and op.operand(1).shape[1:3] == (1, 1):
        return False  # the pointwise kernel has no padding, and is worth more than the copy it would save
    images, (top, bottom), (left, right), channels = amounts
    if any(images) or any(channels) or min(top, bottom, left, right) < 0:
        return False
    if op.kind is Builtin.MAX_POOL_2D:
        sizes = int(op.options["filterHeight"]), int(op.options["filterWidth"])
        if Padding(op.options["padding"]) is not Padding.VALID:
            return False
        if max(top, bottom) >= sizes[0] or max(left, right) >= sizes[1]:
            return False
    options = {**op.options, PADDING: (top, bottom, left, right)}
    g.update(op, inputs=[pad.operand(0), *op.inputs[1:]], options=options, merged=[pad, op])
    return True


def _padding_of(op: Op, lowest: bool) -> list[tuple[int, int]] | None:
    """The amounts of a 4-D int8 PAD with the number 0, or with the lowest value; None for anything else."""
    if not op.operand(1).is_const or op.operand(0).rank != 4:
        return None
    quant = op.operand(0).quant
    if quant is None or op.operand(0).dtype != "int8":
        return None
    value = quant.zero_point[0]
    if op.kind is Builtin.PADV2:
        if not op.operand(2).is_const:
            return None
        value = int(op.operand(2).array.reshape(-1)[0])
    if value != (-128 if lowest else quant.zero_point[0]):
        return None
    return [(int(a), int(b)) for a, b in op.operand(1).array]


@rule(Builtin.DEPTHWISE_CONV_2D)
def widen_depthwise_of_one(g: Rewriter, op: Op) -> bool:
    """A depthwise convolution of one channel is a dense one, which has faster kernels.

    Exact: the same products are added up and scaled in the same way.
    """
    return op.operand(0).shape[3] == 1 and group_channels(g, op)


@rule(Builtin.CONCATENATION)
def join_group_convolutions(g: Rewriter, op: Op) -> bool:
    """Convolutions of equal slices of the channels, put together again, become one grouped convolution.

    Exact: it is computed group by group, each reading and writing its channels where they lie. Scales of
    weights become per channel, which is what the kernels take.
    """
    convs = [c for t in op.inputs if t is not None and (c := g.maker(t, Builtin.CONV_2D)) is not None]
    if not len(op.inputs) == len(convs) > 1 or op.options.get("fusedActivationFunction"):
        return False
    cuts = [g.maker(conv.operand(0)) for conv in convs]
    source = None if cuts[0] is None else cuts[0].operand(0)
    width = convs[0].operand(1).shape[3]
    if source is None or concat_axis(op) != 3 or source.shape[3:] != (len(convs) * width,):
        return False
    for index, (conv, cut) in enumerate(zip(convs, cuts, strict=True)):
        begin, size = (0, 0, 0, index * width), (*source.shape[:3], width)
        box = slice_of(cut) if cut is not None and cut.operand(0) is source else None
        if box is None or (box.begin, box.size) != (begin, size):
            return False
        if not _is_same_layer(conv, convs[0]) or not g.only_for(conv.output, op):
            return False
        if conv.output.quant != op.output.quant:
            return False
    weights, bias = (_stacked(g, [conv.operand(i) for conv in convs]) for i in (1, 2))
    origin = tuple(dict.fromkeys(name for conv in convs for name in conv.origin))
    g.add(Builtin.CONV_2D, [source, weights, bias], op.output, origin, convs[0].options)
    return True


def _is_same_layer(conv: Op, other: Op) -> bool:
    """Whether two convolutions differ in nothing but their constants."""
    has_constants = len(conv.inputs) == 3 and all(t is not None and t.is_const for t in conv.inputs[1:])
    return has_constants and conv.options == other.options and conv.operand(1).shape == other.operand(1).shape


def _stacked(g: Rewriter, parts: list[Tensor]) -> Tensor:
    """Constants of several groups along their first axis, with a scale for every channel."""
    scales: list[float] = []
    for part in parts:
        assert part.quant is not None
        scales += part.quant.scale if not part.quant.is_per_tensor else part.quant.scale * part.shape[0]
    return g.constant(
        f"{parts[0].name}_groups", np.concatenate([p.array for p in parts]), Quant.per_axis(np.array(scales))
    )


@rule(Builtin.TRANSPOSE, Builtin.CONV_2D)
def read_planes(g: Rewriter, before: Op, op: Op) -> bool:
    """A transpose from NCHW of a few channels goes into the convolutions that read it, and nothing else does.

    Exact: only the addresses of the taps change.
    """
    source = op.operand(0)
    if source.shape[0] != 1 or source.shape[-1] > PLANAR_CHANNELS or source.dtype != "int8":
        return False
    if [int(p) for p in before.operand(1).array] != [0, 2, 3, 1] or g.is_output(source):
        return False
    if not all(_takes_planes(reader, source) for reader in g.readers(source)):
        return False
    inputs = [before.operand(0), *op.inputs[1:]]
    g.update(op, kind=Builtin.CUSTOM, inputs=inputs, merged=[before, op], custom_name=PLANAR)
    return True


def _takes_planes(op: Op, source: Tensor) -> bool:
    if op.kind is not Builtin.CONV_2D or op.operand(0) is not source or not op.operand(1).is_const:
        return False
    weights = op.operand(1).shape
    return weights[3] == source.shape[3] and weights[1] * weights[2] * weights[3] <= PLANAR_TAPS


@rule(PLANAR)
def interleave_planes(g: Rewriter, op: Op) -> bool:
    """Images that only convolutions of planes read are ordered by rows first, which needs no memory.

    Exact: only the addresses of the taps change. Worth it where rows of the image should die as a whole.
    """
    source, readers = op.operand(0), g.readers(op.operand(0))
    n, channels, height, width = source.shape
    fits = channels * height <= limit_of(Weave, "MOST_RUNS")
    if not fits or INTERLEAVED in op.options or any(reader.key != PLANAR for reader in readers):
        return False
    rows = g.tensor(f"{source.name}_rows", (n, height, channels, width), source.dtype, source.quant)
    g.add(Builtin.CUSTOM, [source], rows, op.origin, custom_name=WEAVE)
    for reader in readers:
        g.update(reader, inputs=[rows, *reader.inputs[1:]], options={**reader.options, INTERLEAVED: True})
    return True
