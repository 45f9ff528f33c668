"""Fusion into convolutions and pools: padding, groups, pictures in planes. Exact, as all of `fuse`."""

from __future__ import annotations

import numpy as np

from openneutron.compiler.graph.rewrite import Rewriter, rewrite
from openneutron.compiler.graph.shapes import concat_axis, slice_of
from openneutron.litert.ir import Builtin, Graph, Op, Padding, Quant, Tensor

PADDING = "explicitPadding"
"""Option of convolutions in the compiler's graphs only: zero points around the input, (top, bottom, left,
right). LiteRT knows SAME and VALID; the kernels take any padding."""

PLANAR = "PlanarConv2D"
"""CUSTOM operator of the compiler's graphs only: CONV_2D of an input with its channels in planes, NCHW, with
the inputs of CONV_2D and its options, and PLANAR_PADDING in the place of PADDING."""
PLANAR_PADDING = "planarPadding"
PLANAR_CHANNELS = 4  # at most; with more, gathering taps one by one costs more than the copy it saves
PLANAR_TAPS = 1024  # what the kernel takes


def pad_after_reshape(graph: Graph) -> Graph:
    """PAD, then a reshape that adds or drops axes of length 1, become the reshape, then PAD.

    1-D convolutions come so: padded with rank 3, computed with rank 4. Where others read PAD too, both exist.
    """
    producers = graph.producers()

    def swap(op: Op, out: Rewriter) -> bool:
        pad = producers.get(op.operand(0)) if op.kind is Builtin.RESHAPE else None
        if pad is None or pad.kind not in (Builtin.PAD, Builtin.PADV2) or not pad.operand(1).is_const:
            return False
        source, padded, target = pad.operand(0), pad.output.shape, op.output.shape
        if [d for d in padded if d != 1] != [d for d in target if d != 1] or target == padded:
            return False
        kept = iter(
            [
                (d, tuple(p))
                for d, p, o in zip(source.shape, pad.operand(1).array, padded, strict=True)
                if o != 1
            ]
        )
        axes = [(1, (0, 0)) if d == 1 else next(kept) for d in target]
        shape = tuple(d for d, _ in axes)
        inner = out.current(source)
        if shape != inner.shape:
            inner = out.reshape(
                inner, out.tensor(f"{source.name}_reshaped", shape, source.dtype, source.quant), op.origin
            )
        amounts = out.constant(f"{op.output.name}_padding", np.array([p for _, p in axes], np.int32))
        out.add(pad.kind, [inner, amounts, *pad.inputs[2:]], op.output, pad.origin, pad.options)
        return True

    return rewrite(graph, swap)


def fuse_padding(graph: Graph) -> Graph:
    """PAD of height and width goes into the convolutions and maxima that read it.

    Exact: a convolution's taps outside of its input count as the zero point, so that is what PAD must hold; a
    maximum leaves such taps out, which is the same if they hold the lowest value of all (PyTorch pads so) and
    every window has a tap inside. Averages are left alone: padding takes part in the count.
    """
    producers = graph.producers()

    def fuse_one(op: Op, out: Rewriter) -> bool:
        if op.kind not in _PADDED or PADDING in op.options:
            return False
        pad = producers.get(op.operand(0))
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
        inputs = [out.current(pad.operand(0)), *op.inputs[1:]]
        out.add(op.kind, inputs, op.output, (*pad.origin, *op.origin), options)
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

    def widen(op: Op, out: Rewriter) -> bool:
        if op.kind is not Builtin.DEPTHWISE_CONV_2D or op.operand(0).shape[3] != 1:
            return False
        weights = op.operand(1)
        if not weights.is_const or weights.quant is None:
            return False
        quant = weights.quant
        if not quant.is_per_tensor:
            quant = Quant(quant.scale, quant.zero_point, 0)
        plain = out.constant(f"{weights.name}_plain", weights.array.transpose(3, 1, 2, 0).copy(), quant)
        options = {k: v for k, v in op.options.items() if k != "depthMultiplier"}
        out.add(Builtin.CONV_2D, [op.operand(0), plain, *op.inputs[2:]], op.output, op.origin, options)
        return True

    return rewrite(graph, widen)


def join_group_convolutions(graph: Graph) -> Graph:
    """Convolutions of equal slices of the channels, put together again, become one grouped convolution.

    Exact: it is computed group by group, each reading and writing its channels where they lie. Scales of
    weights become per channel, which is what the kernels take.
    """
    producers, readers, outputs = graph.producers(), graph.consumers(), set(graph.outputs)

    def joined(op: Op) -> tuple[Tensor, list[Op]] | None:
        if op.kind is not Builtin.CONCATENATION or op.output.rank != 4 or concat_axis(op) != 3:
            return None
        parts = [producers.get(t) if t is not None else None for t in op.inputs]
        convs = [p for p in parts if p is not None and p.kind is Builtin.CONV_2D]
        if len(convs) != len(op.inputs) or len(convs) < 2 or op.options.get("fusedActivationFunction", 0):
            return None
        first = convs[0]
        slices = [producers.get(conv.operand(0)) for conv in convs]
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
                or conv.output in outputs
                or len(readers[conv.output]) != 1
            ):
                return None
        return source, convs

    def join(op: Op, out: Rewriter) -> bool:
        if (found := joined(op)) is None:
            return False
        source, convs = found
        weights, bias = (_stacked(out, [conv.operand(i) for conv in convs]) for i in (1, 2))
        origin = tuple(dict.fromkeys(name for conv in convs for name in conv.origin))
        out.add(Builtin.CONV_2D, [out.current(source), weights, bias], op.output, origin, convs[0].options)
        return True

    return rewrite(graph, join)


def _stacked(out: Rewriter, parts: list[Tensor]) -> Tensor:
    """Constants of several groups along their first axis, with a scale for every channel."""
    scales: list[float] = []
    for part in parts:
        assert part.quant is not None
        scales += part.quant.scale if not part.quant.is_per_tensor else part.quant.scale * part.shape[0]
    return out.constant(
        f"{parts[0].name}_groups", np.concatenate([p.array for p in parts]), Quant.per_axis(np.array(scales))
    )


def read_planes(graph: Graph) -> Graph:
    """A transpose from NCHW of a few channels goes into the convolutions that read it, and nothing else does.

    Exact: only the addresses of the taps change.
    """
    producers, readers, outputs = graph.producers(), graph.consumers(), set(graph.outputs)

    def takes_planes(op: Op, source: Tensor) -> bool:
        if op.kind is not Builtin.CONV_2D or op.operand(0) is not source or not op.operand(1).is_const:
            return False
        weights = op.operand(1).shape
        return weights[3] == source.shape[3] and weights[1] * weights[2] * weights[3] <= PLANAR_TAPS

    def planes_of(source: Tensor) -> Tensor | None:
        before = producers.get(source)
        if before is None or before.kind is not Builtin.TRANSPOSE or source in outputs:
            return None
        if source.shape[0] != 1 or source.shape[-1] > PLANAR_CHANNELS or source.dtype != "int8":
            return None
        if [int(p) for p in before.operand(1).array] != [0, 2, 3, 1]:
            return None
        return before.operand(0) if all(takes_planes(op, source) for op in readers[source]) else None

    def read(op: Op, out: Rewriter) -> bool:
        if op.kind is not Builtin.CONV_2D or (planes := planes_of(op.operand(0))) is None:
            return False
        options = {k: v for k, v in op.options.items() if k != PADDING}
        options[PLANAR_PADDING] = op.options.get(PADDING, (0, 0, 0, 0))
        origin = (*producers[op.operand(0)].origin, *op.origin)
        inputs = [out.current(planes), *op.inputs[1:]]
        out.add(Builtin.CUSTOM, inputs, op.output, origin, options, custom_name=PLANAR)
        return True

    return rewrite(graph, read)
