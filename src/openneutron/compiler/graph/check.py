"""What a LiteRT graph must be before anything is made of it: every shape is the one its operator yields.

Files come from anywhere. The stages after this one take shapes, axes and window sizes at their word, so they
are checked here once, by a rule for each operator; a graph that breaks one is damaged or was made wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from openneutron.compiler.graph.shapes import concat_axis, resolve_strided_slice
from openneutron.diagnostics import fail
from openneutron.litert.ir import Activation, Builtin, Graph, Op, Padding, Tensor, Trait, kinds

MOST_BYTES = (
    1 << 30
)  # of one tensor; far above every target, far below what would exhaust the compiler's host

Shape = tuple[int, ...]


def check_graph(graph: Graph) -> Graph:
    """The graph itself if every shape is static, of a sane size, and what its operator yields."""
    for t in graph.tensors():
        _check_tensor(t)
    for op in graph.ops:
        where = f"{op.custom_name or op.kind.name} {op.outputs[0].name if op.outputs else '(no output)'}"
        rule = SHAPE_RULES.get(op.kind)
        if rule is None:
            supported = ", ".join(sorted(kind.name for kind in SHAPE_RULES))
            fail(
                "ON401", where, f"the open converter does not know {op.kind.name}", f"Supported: {supported}"
            )
        activation = op.options.get("fusedActivationFunction", 0)
        if activation not in Activation._value2member_map_:
            names = ", ".join(a.name for a in Activation)
            fail(
                "ON401",
                where,
                f"its fused activation (number {activation}) is not supported",
                f"Supported: {names}",
            )
        try:
            expected = rule(op)
        except (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A rule reads options and operands as if they made sense; whatever fails in it says they do not.
            fail(
                "ON402",
                where,
                f"its operands or parameters make no sense ({type(error).__name__}: {error})",
                "The file is damaged or was made wrongly: export the model again.",
            )
        declared = [t.shape for t in op.outputs]
        if expected != declared:
            fail(
                "ON402",
                where,
                f"it declares {_text(declared)}, its operands yield {_text(expected)}",
                "The file is damaged or was made wrongly: export the model again.",
            )
    return graph


def _check_tensor(t: Tensor) -> None:
    if any(d < 1 for d in t.shape) and not t.is_const:
        fail(
            "ON402",
            f"tensor {t.name}",
            f"the shape {list(t.shape)} is not static and positive",
            "Convert the model with fixed sizes.",
        )
    if t.nbytes > MOST_BYTES:
        fail(
            "ON402",
            f"tensor {t.name}",
            f"{t.dtype}{list(t.shape)} has {t.nbytes:,} bytes; at most {MOST_BYTES:,} can be compiled",
            "Use smaller inputs, or check the file.",
        )


def _text(shapes: list[Shape]) -> str:
    return ", ".join(str(list(s)) for s in shapes)


def _same(op: Op) -> list[Shape]:
    return [op.operand(0).shape]


def _broadcast(op: Op) -> list[Shape]:
    return [np.broadcast_shapes(op.operand(0).shape, op.operand(1).shape)]


def _select(op: Op) -> list[Shape]:
    return [np.broadcast_shapes(*(op.operand(i).shape for i in range(3)))]


def _same_elements(op: Op) -> list[Shape]:
    assert op.operand(0).elements == op.output.elements, "the number of elements changes"
    return [op.output.shape]


def _windows(op: Op, size: Shape, kernel: Shape) -> Shape:
    """Output rows and columns of a sliding window."""
    options = op.options
    strides = (options["strideH"], options["strideW"])
    dilations = (options.get("dilationHFactor", 1), options.get("dilationWFactor", 1))
    padding = Padding(options["padding"])
    result = []
    for length, taps, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        assert taps > 0 and stride > 0 and dilation > 0, "window, stride and dilation must be positive"
        reach = (taps - 1) * dilation + 1
        result.append(-(-length // stride) if padding is Padding.SAME else (length - reach) // stride + 1)
    return tuple(result)


def _check_channels(weights: Tensor, axis: int, bias: Tensor | None) -> int:
    channels = weights.shape[axis]
    scales = 1 if weights.quant is None else len(weights.quant.scale)
    assert scales in (1, channels), f"{scales} weight scales for {channels} channels"
    assert bias is None or bias.elements == channels, (
        f"a bias of {bias and bias.elements} for {channels} channels"
    )
    return channels


def _optional(op: Op, index: int) -> Tensor | None:
    return op.inputs[index] if len(op.inputs) > index else None


def _conv(op: Op) -> list[Shape]:
    (n, h, w, c), weights = op.operand(0).shape, op.operand(1)
    _, kh, kw, depth = weights.shape
    assert c % depth == 0, f"{c} channels for weights of depth {depth}"
    return [(n, *_windows(op, (h, w), (kh, kw)), _check_channels(weights, 0, _optional(op, 2)))]


def _depthwise(op: Op) -> list[Shape]:
    (n, h, w, c), weights = op.operand(0).shape, op.operand(1)
    one, kh, kw, out = weights.shape
    assert one == 1 and out % c == 0, f"{c} channels for weights {list(weights.shape)}"
    return [(n, *_windows(op, (h, w), (kh, kw)), _check_channels(weights, 3, _optional(op, 2)))]


def _transpose_conv(op: Op) -> list[Shape]:
    """The output's size is an operand; the forward convolution of it must give the input's."""
    target, weights, (n, h, w, c) = op.operand(0), op.operand(1), op.operand(2).shape
    _, kh, kw, depth = weights.shape
    assert c == depth, f"{c} channels for weights of depth {depth}"
    rows, columns = op.output.shape[1:3]
    assert _windows(op, (rows, columns), (kh, kw)) == (h, w), "input and output size do not belong together"
    if target.is_const:
        assert tuple(target.array.reshape(-1).tolist()) == op.output.shape, (
            "the output's shape is not as given"
        )
    return [(n, rows, columns, _check_channels(weights, 0, _optional(op, 3)))]


def _fully_connected(op: Op) -> list[Shape]:
    source, weights = op.operand(0), op.operand(1)
    units, depth = weights.shape
    assert source.elements % depth == 0, f"{source.elements} elements for weights of depth {depth}"
    _check_channels(weights, 0, _optional(op, 2))
    if op.options.get("keepNumDims"):
        assert source.shape[-1] == depth, (
            f"the last axis has {source.shape[-1]} elements, the weights {depth}"
        )
        return [(*source.shape[:-1], units)]
    return [(source.elements // depth, units)]


def _batch_matmul(op: Op) -> list[Shape]:
    a, b = op.operand(0).shape, op.operand(1).shape
    m, k = a[-2:][::-1] if op.options.get("adjX") else a[-2:]
    k2, n = b[-2:][::-1] if op.options.get("adjY") else b[-2:]
    assert k == k2, f"inner sizes {k} and {k2} differ"
    return [(*np.broadcast_shapes(a[:-2], b[:-2]), m, n)]


def _pool(op: Op) -> list[Shape]:
    n, h, w, c = op.operand(0).shape
    return [(n, *_windows(op, (h, w), (op.options["filterHeight"], op.options["filterWidth"])), c)]


def _reduce(op: Op) -> list[Shape]:
    source, axes = op.operand(0), _axes(op.operand(1), op.operand(0).rank)
    if op.options.get("keepDims"):
        return [tuple(1 if a in axes else d for a, d in enumerate(source.shape))]
    return [tuple(d for a, d in enumerate(source.shape) if a not in axes)]


def _arg_max(op: Op) -> list[Shape]:
    axes = _axes(op.operand(1), op.operand(0).rank)
    return [tuple(d for a, d in enumerate(op.operand(0).shape) if a not in axes)]


def _axes(tensor: Tensor, rank: int) -> set[int]:
    return {_axis(int(a), rank) for a in tensor.array.reshape(-1)}


def _axis(axis: int, rank: int) -> int:
    assert -rank <= axis < rank, f"there is no axis {axis} in {rank} dimensions"
    return axis % rank


def _transpose(op: Op) -> list[Shape]:
    shape, perm = op.operand(0).shape, op.operand(1).array.reshape(-1).tolist()
    assert sorted(perm) == list(range(len(shape))), f"{perm} is not a permutation"
    return [tuple(shape[p] for p in perm)]


def _slice(op: Op) -> list[Shape]:
    shape, (begin, size) = op.operand(0).shape, (op.operand(i).array.reshape(-1).tolist() for i in (1, 2))
    lengths = tuple(d - b if s == -1 else s for d, b, s in zip(shape, begin, size, strict=True))
    inside = all(b >= 0 and s > 0 and b + s <= d for d, b, s in zip(shape, begin, lengths, strict=True))
    assert inside, f"{begin} + {list(lengths)} is outside of {list(shape)}"
    return [lengths]


def _strided_slice(op: Op) -> list[Shape]:
    begin, _, _, size = resolve_strided_slice(op)
    shape = op.operand(0).shape
    assert all(0 <= b < d for b, d in zip(begin, shape, strict=True)), f"{begin} is outside of {list(shape)}"
    assert math.prod(size) == op.output.elements, f"the cut has the shape {size}"
    return [op.output.shape]


def _concat(op: Op) -> list[Shape]:
    axis, shapes = (
        _axis(concat_axis(op), op.output.rank),
        [op.operand(i).shape for i in range(len(op.inputs))],
    )
    assert len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) == 1, "its inputs differ beside the axis"
    return [(*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])]


def _pack(op: Op) -> list[Shape]:
    shapes = {op.operand(i).shape for i in range(len(op.inputs))}
    (shape,) = shapes
    axis = _axis(int(op.options.get("axis", 0)), len(shape) + 1)
    return [(*shape[:axis], len(op.inputs), *shape[axis:])]


def _unpack(op: Op) -> list[Shape]:
    shape = op.operand(0).shape
    axis = _axis(int(op.options.get("axis", 0)), len(shape))
    return [(*shape[:axis], *shape[axis + 1 :])] * shape[axis]


def _split(op: Op) -> list[Shape]:
    shape = op.operand(1).shape
    (axis,) = _axes(op.operand(0), len(shape))
    count = len(op.outputs)
    assert shape[axis] % count == 0, f"{shape[axis]} does not divide into {count}"
    return [(*shape[:axis], shape[axis] // count, *shape[axis + 1 :])] * count


def _split_v(op: Op) -> list[Shape]:
    shape, sizes = op.operand(0).shape, op.operand(1).array.reshape(-1).tolist()
    (axis,) = _axes(op.operand(2), len(shape))
    sizes = [shape[axis] - sum(s for s in sizes if s != -1) if s == -1 else s for s in sizes]
    assert sum(sizes) == shape[axis] and min(sizes) > 0, f"{sizes} does not divide {shape[axis]}"
    return [(*shape[:axis], s, *shape[axis + 1 :]) for s in sizes]


def _pad(op: Op) -> list[Shape]:
    amounts = op.operand(1).array.reshape(-1, 2).tolist()
    assert min(min(pair) for pair in amounts) >= 0, "padding is negative"
    if op.kind is Builtin.MIRROR_PAD:
        limit = (
            1 if op.options.get("mode", 0) == 0 else 0
        )  # REFLECT leaves the border out, SYMMETRIC does not
        lengths = zip(op.operand(0).shape, amounts, strict=True)
        assert all(max(pair) <= d - limit for d, pair in lengths), "the mirror is shorter than the padding"
    return [tuple(d + a + b for d, (a, b) in zip(op.operand(0).shape, amounts, strict=True))]


def _tile(op: Op) -> list[Shape]:
    times = op.operand(1).array.reshape(-1).tolist()
    return [tuple(d * t for d, t in zip(op.operand(0).shape, times, strict=True))]


def _broadcast_to(op: Op) -> list[Shape]:
    shape = tuple(op.operand(1).array.reshape(-1).tolist()) if op.operand(1).is_const else op.output.shape
    assert np.broadcast_shapes(op.operand(0).shape, shape) == shape, f"it does not broadcast to {list(shape)}"
    return [shape]


def _gather(op: Op) -> list[Shape]:
    source, indices = op.operand(0), op.operand(1)
    assert not op.options.get("batchDims"), "batch dimensions are not supported"
    axis = _axis(int(op.options.get("axis", 0)), source.rank)
    if indices.is_const:
        assert indices.array.min() >= 0 and indices.array.max() < source.shape[axis], (
            "an index is out of range"
        )
    return [(*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :])]


def _update(op: Op) -> list[Shape]:
    target, part, begin = (op.operand(i) for i in range(3))
    assert part.rank == target.rank and begin.elements == target.rank, "its operands differ in rank"
    fits = all(0 < p <= d for p, d in zip(part.shape, target.shape, strict=True))
    assert fits, f"{list(part.shape)} does not fit into {list(target.shape)}"
    return [target.shape]


def _blocks(op: Op) -> list[Shape]:
    (n, h, w, c), block = op.operand(0).shape, int(op.options["blockSize"])
    if op.kind is Builtin.DEPTH_TO_SPACE:
        assert block > 0 and c % block**2 == 0, f"{c} channels for blocks of {block}"
        return [(n, h * block, w * block, c // block**2)]
    assert block > 0 and h % block == 0 and w % block == 0, f"{h} x {w} for blocks of {block}"
    return [(n, h // block, w // block, c * block**2)]


def _batches(op: Op) -> list[Shape]:
    """SPACE_TO_BATCH_ND and its inverse: blocks of the inner axes go to the batch, and back."""
    shape, blocks = op.operand(0).shape, op.operand(1).array.reshape(-1).tolist()
    amounts = op.operand(2).array.reshape(-1, 2).tolist()
    count, inner = math.prod(blocks), shape[1 : 1 + len(blocks)]
    assert min(blocks) > 0 and min(min(pair) for pair in amounts) >= 0, f"blocks {blocks}, padding {amounts}"
    if op.kind is Builtin.SPACE_TO_BATCH_ND:
        padded = [d + a + b for d, (a, b) in zip(inner, amounts, strict=True)]
        assert all(d % b == 0 for d, b in zip(padded, blocks, strict=True)), f"{padded} for blocks {blocks}"
        sizes = [d // b for d, b in zip(padded, blocks, strict=True)]
        return [(shape[0] * count, *sizes, *shape[1 + len(blocks) :])]
    assert shape[0] % count == 0, f"a batch of {shape[0]} for blocks {blocks}"
    sizes = [d * block - a - b for d, block, (a, b) in zip(inner, blocks, amounts, strict=True)]
    return [(shape[0] // count, *sizes, *shape[1 + len(blocks) :])]


def _resize(op: Op) -> list[Shape]:
    n, _, _, c = op.operand(0).shape
    rows, columns = op.operand(1).array.reshape(-1).tolist()
    return [(n, rows, columns, c)]


def _shape(op: Op) -> list[Shape]:
    return [(op.operand(0).rank,)]


SHAPE_RULES: dict[Builtin, Callable[[Op], list[Shape]]] = {
    **dict.fromkeys(kinds(Trait.UNARY | Trait.ROWWISE), _same),
    **dict.fromkeys(kinds(Trait.BINARY), _broadcast),
    **dict.fromkeys(kinds(Trait.TERNARY), _select),
    **dict.fromkeys(kinds(Trait.RENAMES), _same_elements),
    **dict.fromkeys((Builtin.AVERAGE_POOL_2D, Builtin.MAX_POOL_2D), _pool),
    **dict.fromkeys(kinds(Trait.REDUCES), _reduce),
    **dict.fromkeys(kinds(Trait.PADS), _pad),
    **dict.fromkeys((Builtin.DEPTH_TO_SPACE, Builtin.SPACE_TO_DEPTH), _blocks),
    **dict.fromkeys((Builtin.SPACE_TO_BATCH_ND, Builtin.BATCH_TO_SPACE_ND), _batches),
    **dict.fromkeys((Builtin.RESIZE_BILINEAR, Builtin.RESIZE_NEAREST_NEIGHBOR), _resize),
    Builtin.CONV_2D: _conv,
    Builtin.DEPTHWISE_CONV_2D: _depthwise,
    Builtin.TRANSPOSE_CONV: _transpose_conv,
    Builtin.FULLY_CONNECTED: _fully_connected,
    Builtin.BATCH_MATMUL: _batch_matmul,
    Builtin.ARG_MAX: _arg_max,
    Builtin.ARG_MIN: _arg_max,
    Builtin.TRANSPOSE: _transpose,
    Builtin.SLICE: _slice,
    Builtin.STRIDED_SLICE: _strided_slice,
    Builtin.CONCATENATION: _concat,
    Builtin.PACK: _pack,
    Builtin.UNPACK: _unpack,
    Builtin.SPLIT: _split,
    Builtin.SPLIT_V: _split_v,
    Builtin.TILE: _tile,
    Builtin.BROADCAST_TO: _broadcast_to,
    Builtin.GATHER: _gather,
    Builtin.DYNAMIC_UPDATE_SLICE: _update,
    Builtin.SHAPE: _shape,
}
