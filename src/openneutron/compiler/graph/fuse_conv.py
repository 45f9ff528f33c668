"""Fusion into convolutions and pools: padding, groups, pictures in planes. Exact, as all of `fuse`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openneutron.compiler.graph.shapes import concat_axis, slice_of
from openneutron.compiler.microcode.format import Conv2DPlanar, Weave, limit_of
from openneutron.litert.ir import Builtin, Graph, Op, Padding, Quant, Tensor
from openneutron.litert.rewriter import Rewriter, rewrite

PADDING = "explicitPadding"
"""Option of convolutions in the compiler's graphs only: zero points around the input, (top, bottom, left,
right), beside what the operator pads itself. LiteRT knows SAME and VALID; the kernels take any padding."""

PLANAR = "PlanarConv2D"
"""CUSTOM operator of the compiler's graphs only: CONV_2D of an input with its channels in planes, NCHW, with
the inputs and options of CONV_2D, PADDING too."""
WEAVE = "WeavePlanes"  # the same bytes ordered by rows, then planes: N, H, C, W
WOVEN = "woven"  # the option of a convolution that reads these
PLANAR_CHANNELS = 4  # at most; with more, gathering taps one by one costs more than the copy it saves
PLANAR_TAPS = limit_of(Conv2DPlanar, "PATCH_BYTES")


def pad_after_reshape(graph: Graph) -> Graph:
    """PAD, then a reshape that adds or drops axes of length 1, become the reshape, then PAD.

    1-D convolutions come so: padded with rank 3, computed with rank 4. Where others read PAD too, both exist.
    """

    def swap(g: Rewriter, op: Op) -> bool:
        pad = g.maker(op.operand(0), Builtin.PAD, Builtin.PADV2) if op.kind is Builtin.RESHAPE else None
        if pad is None or not pad.operand(1).is_const:
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

    return rewrite(graph, swap)


def fuse_padding(graph: Graph) -> Graph:
    """PAD of height and width goes into the convolutions and maxima that read it.

    Exact: a convolution's taps outside of its input count as the zero point, so that is what PAD must hold; a
    maximum leaves such taps out, which is the same if they hold the lowest value of all (PyTorch pads so) and
    every window has a tap inside. Averages are left alone: padding takes part in the count.
    """

    def fuse_one(g: Rewriter, op: Op) -> bool:
        if op.kind not in _PADDED or PADDING in op.options:
            return False
        pad = g.maker(op.operand(0))
        amounts = _padding_of(pad, lowest=op.kind is Builtin.MAX_POOL_2D) if pad is not None else None
        if pad is None or amounts is None:
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

    return rewrite(graph, fuse_one)


_PADDED = (Builtin.CONV_2D, Builtin.DEPTHWISE_CONV_2D, Builtin.MAX_POOL_2D)


def _padding_of(op: Op, lowest: bool) -> list[tuple[int, int]] | None:
    """The amounts of a 4-D int8 PAD with the number 0, or with the lowest value; None for anything else."""
    if op.kind not in (Builtin.PAD, Builtin.PADV2) or not op.operand(1).is_const or op.operand(0).rank != 4:
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


def widen_depthwise_of_one(graph: Graph) -> Graph:
    """A depthwise convolution of one channel is a plain one, which has faster kernels.

    Exact: the same products are added up and scaled in the same way.
    """

    def widen(g: Rewriter, op: Op) -> bool:
        if op.kind is not Builtin.DEPTHWISE_CONV_2D or op.operand(0).shape[3] != 1:
            return False
        weights = op.operand(1)
        if not weights.is_const or weights.quant is None:
            return False
        quant = weights.quant
        if not quant.is_per_tensor:
            quant = Quant(quant.scale, quant.zero_point, 0)
        plain = g.constant(f"{weights.name}_plain", weights.array.transpose(3, 1, 2, 0).copy(), quant)
        options = {k: v for k, v in op.options.items() if k != "depthMultiplier"}
        g.update(op, kind=Builtin.CONV_2D, inputs=[op.operand(0), plain, *op.inputs[2:]], options=options)
        return True

    return rewrite(graph, widen)


def join_group_convolutions(graph: Graph) -> Graph:
    """Convolutions of equal slices of the channels, put together again, become one grouped convolution.

    Exact: it is computed group by group, each reading and writing its channels where they lie. Scales of
    weights become per channel, which is what the kernels take.
    """

    def joined(g: Rewriter, op: Op) -> tuple[Tensor, list[Op]] | None:
        if op.kind is not Builtin.CONCATENATION or op.output.rank != 4 or concat_axis(op) != 3:
            return None
        parts = [g.maker(t, Builtin.CONV_2D) for t in op.inputs if t is not None]
        convs = [p for p in parts if p is not None]
        if len(convs) != len(op.inputs) or len(convs) < 2 or op.options.get("fusedActivationFunction", 0):
            return None
        first = convs[0]
        slices = [g.maker(conv.operand(0)) for conv in convs]
        source = slices[0].operand(0) if slices[0] is not None and slice_of(slices[0]) else None
        if source is None or source.shape[3] != len(convs) * first.operand(1).shape[3]:
            return None
        for index, (conv, cut) in enumerate(zip(convs, slices, strict=True)):
            box = slice_of(cut) if cut is not None else None
            begin = (0, 0, 0, index * first.operand(1).shape[3])
            if (
                box is None
                or cut is None
                or cut.operand(0) is not source
                or (box.begin, box.size) != (begin, (*source.shape[:3], first.operand(1).shape[3]))
                or conv.options != first.options
                or conv.operand(1).shape != first.operand(1).shape
                or not all(t is None or t.is_const for t in conv.inputs[1:])
                or len(conv.inputs) != 3
                or conv.inputs[2] is None
                or conv.output.quant != op.output.quant
                or not g.only_for(conv.output, op)
            ):
                return None
        return source, convs

    def join(g: Rewriter, op: Op) -> bool:
        if (found := joined(g, op)) is None:
            return False
        source, convs = found
        weights, bias = (_stacked(g, [conv.operand(i) for conv in convs]) for i in (1, 2))
        origin = tuple(dict.fromkeys(name for conv in convs for name in conv.origin))
        g.add(Builtin.CONV_2D, [source, weights, bias], op.output, origin, convs[0].options)
        return True

    return rewrite(graph, join)


def _stacked(g: Rewriter, parts: list[Tensor]) -> Tensor:
    """Constants of several groups along their first axis, with a scale for every channel."""
    scales: list[float] = []
    for part in parts:
        assert part.quant is not None
        scales += part.quant.scale if not part.quant.is_per_tensor else part.quant.scale * part.shape[0]
    return g.constant(
        f"{parts[0].name}_groups", np.concatenate([p.array for p in parts]), Quant.per_axis(np.array(scales))
    )


def read_planes(graph: Graph) -> Graph:
    """A transpose from NCHW of a few channels goes into the convolutions that read it, and nothing else does.

    Exact: only the addresses of the taps change.
    """

    def takes_planes(op: Op, source: Tensor) -> bool:
        if op.kind is not Builtin.CONV_2D or op.operand(0) is not source or not op.operand(1).is_const:
            return False
        weights = op.operand(1).shape
        return weights[3] == source.shape[3] and weights[1] * weights[2] * weights[3] <= PLANAR_TAPS

    def read(g: Rewriter, op: Op) -> bool:
        source = op.operand(0) if op.kind is Builtin.CONV_2D else None
        before = g.maker(source, Builtin.TRANSPOSE) if source is not None else None
        if source is None or before is None or g.is_output(source):
            return False
        if source.shape[0] != 1 or source.shape[-1] > PLANAR_CHANNELS or source.dtype != "int8":
            return False
        if [int(p) for p in before.operand(1).array] != [0, 2, 3, 1]:
            return False
        if not all(takes_planes(reader, source) for reader in g.readers(source)):
            return False
        inputs = [before.operand(0), *op.inputs[1:]]
        g.update(op, kind=Builtin.CUSTOM, inputs=inputs, merged=[before, op], custom_name=PLANAR)
        return True

    return rewrite(graph, read)


def weave_planes(graph: Graph) -> Graph:
    """Pictures that only convolutions of planes read are ordered by rows first, which needs no memory.

    Exact: only the addresses of the taps change. Worth it where rows of the picture should die as a whole.
    """
    readers = graph.consumers()
    woven: dict[Tensor, Tensor] = {}
    ops: list[Op] = []
    for op in graph.ops:
        source = op.operand(0) if op.custom_name == PLANAR else None
        if source is None or not all(r.custom_name == PLANAR for r in readers[source]):
            ops.append(op)
            continue
        n, channels, height, width = source.shape
        if channels * height > limit_of(Weave, "MOST_RUNS"):
            ops.append(op)
            continue
        if source not in woven:
            name = f"{source.name}_rows"
            woven[source] = replace(source, name=name, shape=(n, height, channels, width))
            ops.append(Op(Builtin.CUSTOM, [source], [woven[source]], {}, op.origin, WEAVE))
        options = {**op.options, WOVEN: True}
        ops.append(replace(op, inputs=[woven[source], *op.inputs[1:]], options=options))
    return replace(graph, ops=ops).verify()
