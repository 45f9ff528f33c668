"""Operators that move, pick or make values without computing: shapes, slices, gathers, constants."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from openneutron.onnx.file import torch_dtype
from openneutron.onnx.narrow import closed, opened
from openneutron.onnx.spec import Call, Case, OnnxOp, Unsupported, normalized
from openneutron.onnx.values import Dequantized, Quantized, Tensor, as_array, wide_type

# --------------------------------------------------------------------------------------------------
# Shapes


def _reshape(call: Call) -> Tensor:
    x = call.tensor(0)
    wanted = call.ints(1, "shape")
    if not call.attr("allowzero", 0):
        if any(d == 0 and i >= x.dim() for i, d in enumerate(wanted)):
            raise Unsupported(f"its shape {wanted} copies a dimension that the input does not have")
        wanted = [int(x.shape[i]) if d == 0 else d for i, d in enumerate(wanted)]
    return x.reshape(wanted)


def _flatten(call: Call) -> Tensor:
    x = call.tensor(0)
    axis = int(call.attr("axis", 1))
    axis = axis + x.dim() if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    if axis == 1 and x.dim() > 1:
        return torch.flatten(x, 1)
    return x.reshape(rows, -1) if x.numel() else x.reshape(rows, int(np.prod(x.shape[axis:], dtype=np.int64)))


def _axes(call: Call) -> list[int] | None:
    if call.version < 13:
        axes = call.attr("axes")
        return None if axes is None else [int(a) for a in axes]
    return call.ints(1, "axes") if call.has(1) else None


def _squeeze(call: Call) -> Tensor:
    x, axes = call.tensor(0), _axes(call)
    if axes is None:
        axes = [i for i, d in enumerate(x.shape) if d == 1]
    where = sorted({normalized(a, x.dim()) for a in axes}, reverse=True)
    for axis in where:
        if x.shape[axis] != 1:
            raise Unsupported(f"it removes dimension {axis}, which has {x.shape[axis]} elements")
        x = x.squeeze(axis)
    return x


def _unsqueeze(call: Call) -> Tensor:
    x, axes = call.tensor(0), _axes(call)
    assert axes is not None
    rank = x.dim() + len(axes)
    for axis in sorted(normalized(a, rank) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _transpose(call: Call) -> Any:
    value = call.value(0)
    order = call.attr("perm") or list(reversed(range(len(value.shape))))
    order = [normalized(int(p), len(order)) for p in order]
    if isinstance(value, Dequantized) and value.constant:  # weights stay integers
        source = value.source
        axis = None if source.axis is None else order.index(source.axis)
        ints = source.ints.permute(order)
        moved = Quantized(ints, source.scale, source.zero_point, axis, source.unsigned)
        return Dequantized(moved, True)
    return call.tensor(0).permute(order)


def _concat(call: Call) -> Tensor:
    tensors = call.tensors()
    return torch.cat(tensors, normalized(int(call.attr("axis", 1)), tensors[0].dim()))


def _split(call: Call) -> Any:
    x = call.tensor(0)
    axis, count = call.axis(0, x.dim()), len(call.node.outputs)
    size = int(x.shape[axis])
    sizes = call.attr("split") if call.version < 13 else call.ints(1, "split") if call.has(1) else None
    if sizes is None:
        each = -(-size // count)
        sizes = [max(0, min(each, size - i * each)) for i in range(count)]
    if sum(sizes) != size:
        raise Unsupported(f"its parts {list(sizes)} do not add up to {size}")
    starts = np.cumsum([0, *sizes])
    return tuple(_narrow(x, axis, int(a), int(b)) for a, b in pairwise(starts))


def _narrow(x: Tensor, axis: int, start: int, end: int, step: int = 1) -> Tensor:
    if start == 0 and end == x.shape[axis] and step == 1:
        return x
    return torch.ops.aten.slice.Tensor(x, axis, start, end, step)


def _slice(call: Call) -> Tensor:
    x = call.tensor(0)
    if call.version < 10:
        starts, ends = call.required("starts"), call.required("ends")
        axes, steps = call.attr("axes"), None
    else:
        starts, ends = call.ints(1, "starts"), call.ints(2, "ends")
        axes = call.ints(3, "axes") if call.has(3) else None
        steps = call.ints(4, "steps") if call.has(4) else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        where = normalized(int(axis), x.dim())
        if step == 0:
            raise Unsupported("it has a step of 0")
        first, last, _ = slice(int(start), int(end), int(step)).indices(int(x.shape[where]))
        if step < 0:
            picked = range(first, last, int(step))
            low, high = (picked[-1], picked[0] + 1) if len(picked) else (0, 0)
            x = torch.flip(_narrow(x, where, low, high, -int(step)), [where])
        else:
            x = _narrow(x, where, first, max(first, last), int(step))
    return x


def _tile(call: Call) -> Tensor:
    return call.tensor(0).repeat(call.ints(1, "repeats"))


def _expand(call: Call) -> Tensor:
    x = call.tensor(0)
    shape = np.broadcast_shapes(tuple(x.shape), tuple(call.ints(1, "shape")))
    return x.expand(shape)


# --------------------------------------------------------------------------------------------------
# Padding


def _pad(call: Call) -> Tensor:
    x = call.tensor(0)
    rank = x.dim()
    mode = call.choice("mode", ("constant", "reflect", "edge", "wrap"), "constant")
    if call.version < 11:
        pads, fill, axes = call.required("pads"), call.attr("value", 0.0), list(range(rank))
    else:
        pads = call.ints(1, "pads")
        fill = call.number(2, "value") if call.has(2) else 0
        axes = [normalized(a, rank) for a in call.ints(3, "axes")] if call.has(3) else list(range(rank))
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis], after[axis] = int(pads[i]), int(pads[i + len(axes)])
    if mode == "constant":
        first = next((i for i in range(rank) if before[i] or after[i]), rank)
        flat = [p for i in reversed(range(first, rank)) for p in (before[i], after[i])]
        return F.pad(x, flat, value=fill) if flat else x
    if rank == 2 and mode != "wrap" and x.is_floating_point() and not before[0] and not after[0]:
        inner = x.unsqueeze(0)
        small = mode == "edge" or max(before[1], after[1]) < x.shape[1]
        if small and min(before[1], after[1]) >= 0:
            kind = "reflect" if mode == "reflect" else "replicate"
            return F.pad(inner, [before[1], after[1]], mode=kind).squeeze(0)
    spatial = rank in (3, 4, 5) and not any((*before[:2], *after[:2])) and x.is_floating_point()
    if spatial and mode != "wrap" and min((*before, *after)) >= 0:
        flat = [p for i in reversed(range(2, rank)) for p in (before[i], after[i])]
        small = all(max(before[i], after[i]) < x.shape[i] for i in range(2, rank))
        if small or mode == "edge":
            return F.pad(x, flat, mode="reflect" if mode == "reflect" else "replicate")
    for axis in range(rank):
        if before[axis] or after[axis]:
            x = x.index_select(axis, _padded_places(int(x.shape[axis]), before[axis], after[axis], mode))
    return x


def _padded_places(size: int, before: int, after: int, mode: str) -> Tensor:
    """For each element of a padded dimension, the one it is a copy of."""
    places = np.arange(-before, size + after)
    if mode == "edge":
        places = places.clip(0, size - 1)
    elif mode == "wrap":
        places = places % size
    else:
        period = max(2 * (size - 1), 1)
        places = np.abs((places + size - 1) % period - (size - 1))
    return torch.from_numpy(places.astype(np.int64))


# --------------------------------------------------------------------------------------------------
# Picking


def _from_front(places: Tensor, size: int) -> Tensor:
    return torch.where(places < 0, places + size, places)


def _gather(call: Call) -> Tensor:
    x = call.tensor(0)
    axis = call.axis(0, x.dim())
    size = int(x.shape[axis])
    if call.is_static(1):
        places = call.static(1)
        if places.size and not -size <= places.min() <= places.max() < size:
            raise Unsupported(f"it picks element {int(places.max())} of {size}")
        places = places % size if size else places
        if places.ndim == 0:
            return x.select(axis, int(places))
        flat = places.reshape(-1)
        steps = np.diff(flat)
        if len(flat) > 0 and (len(flat) == 1 or (steps == 1).all()):  # neighbours: a slice
            picked = _narrow(x, axis, int(flat[0]), int(flat[-1]) + 1)
        else:
            index = call.constant("indices", lambda: torch.from_numpy(flat.astype(np.int64)))
            picked = x.index_select(axis, index)
        shape = places.shape
    else:
        indices = _from_front(call.tensor(1).to(torch.int64), size)
        if axis == 0 and x.dim() == 2 and x.is_floating_point():
            return F.embedding(indices, x)
        picked, shape = x.index_select(axis, indices.reshape(-1)), tuple(indices.shape)
    if len(shape) == 1:
        return picked
    return picked.reshape([*x.shape[:axis], *shape, *x.shape[axis + 1 :]])


def _gather_elements(call: Call) -> Tensor:
    x, places = call.tensor(0), call.tensor(1)
    axis = call.axis(0, x.dim())
    return torch.gather(x, axis, _from_front(places.to(torch.int64), int(x.shape[axis])))


def _gather_nd(call: Call) -> Tensor:
    x, places = call.tensor(0), call.tensor(1).to(torch.int64)
    batch, depth = int(call.attr("batch_dims", 0)), int(places.shape[-1])
    parts = [_from_front(places[..., i], int(x.shape[batch + i])) for i in range(depth)]
    leading = [
        torch.arange(int(x.shape[i])).reshape([-1 if j == i else 1 for j in range(places.dim() - 1)])
        for i in range(batch)
    ]
    return x[tuple(leading + parts)]


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(call: Call) -> Tensor:
    x, places, updates = call.tensor(0), call.tensor(1), call.tensor(2)
    axis = call.axis(0, x.dim())
    places = _from_front(places.to(torch.int64), int(x.shape[axis]))
    how = call.choice("reduction", ("none", *_REDUCE), "none")
    if how == "none":
        return torch.scatter(x, axis, places, updates)
    return torch.scatter_reduce(x, axis, places, updates, _REDUCE[how])


def _scatter_nd(call: Call) -> Tensor:
    x, places, updates = call.tensor(0), call.tensor(1).to(torch.int64), call.tensor(2)
    depth = int(places.shape[-1])
    inner = [int(d) for d in x.shape[depth:]]
    block = int(np.prod(inner, dtype=np.int64))
    index = torch.zeros(places.shape[:-1], dtype=torch.int64)
    for i in range(depth):
        size = int(x.shape[i])
        index = index * size + _from_front(places[..., i], size)
    flat = (index.reshape(-1, 1) * block + torch.arange(block).reshape(1, -1)).reshape(-1)
    how = call.choice("reduction", ("none", *_REDUCE), "none")
    source, values = x.reshape(-1), updates.reshape(-1)
    if how == "none":
        return torch.scatter(source, 0, flat, values).reshape(x.shape)
    return torch.scatter_reduce(source, 0, flat, values, _REDUCE[how]).reshape(x.shape)


def _compress(call: Call) -> Tensor:
    x = call.tensor(0)
    picked = np.flatnonzero(call.static(1, "condition"))
    axis = call.attr("axis")
    if axis is None:
        return x.reshape(-1).index_select(0, torch.from_numpy(picked))
    return x.index_select(normalized(int(axis), x.dim()), torch.from_numpy(picked))


def _one_hot(call: Call) -> Tensor:
    places, depth = call.tensor(0), int(call.number(1, "depth"))
    values = call.tensor(2)
    axis = normalized(int(call.attr("axis", -1)), places.dim() + 1)
    places = torch.where(places < 0, places + depth, places)
    line = [-1 if i == axis else 1 for i in range(places.dim() + 1)]
    hot = places.unsqueeze(axis) == torch.arange(depth).reshape(line)
    return torch.where(hot, values[1], values[0])


def _reverse_sequence(call: Call) -> Tensor:
    x, lengths = call.tensor(0), call.ints(1, "sequence_lens")
    time, batch = int(call.attr("time_axis", 0)), int(call.attr("batch_axis", 1))
    rows = []
    for i, length in enumerate(lengths):
        row = x.narrow(batch, i, 1)
        turned = row.narrow(time, 0, length).flip(time)
        rows.append(torch.cat([turned, row.narrow(time, length, int(x.shape[time]) - length)], time))
    return torch.cat(rows, batch)


def _trilu(call: Call) -> Tensor:
    offset = int(call.number(1, "k")) if call.has(1) else 0
    return (torch.triu if call.attr("upper", 1) else torch.tril)(call.tensor(0), offset)


def _center_crop_pad(call: Call) -> Tensor:
    x, shape = call.tensor(0), call.ints(1, "shape")
    axes = call.attr("axes")
    where = list(range(x.dim())) if axes is None else [normalized(int(a), x.dim()) for a in axes]
    for axis, size in zip(where, shape, strict=True):
        have = int(x.shape[axis])
        if size < have:
            x = x.narrow(axis, (have - size) // 2, size)
        elif size > have:
            before = (size - have) // 2
            x = F.pad(x, [0, 0] * (x.dim() - 1 - axis) + [before, size - have - before])
    return x


# --------------------------------------------------------------------------------------------------
# Making


def _shape(call: Call) -> Tensor:
    shape = call.shape(0)
    start, end = int(call.attr("start", 0)), call.attr("end")
    return torch.tensor(shape[slice(start, None if end is None else int(end))], dtype=torch.int64)


def _size(call: Call) -> Tensor:
    return torch.tensor(int(np.prod(call.shape(0), dtype=np.int64)), dtype=torch.int64)


def _constant(call: Call) -> Tensor:
    readers = {
        "value_int": torch.int64,
        "value_ints": torch.int64,
        "value_float": torch.float32,
        "value_floats": torch.float32,
    }
    for name, dtype in readers.items():
        if name in call.node.attributes:
            return torch.tensor(call.attr(name), dtype=dtype)
    if "value" not in call.node.attributes:
        raise Unsupported("it is a sparse tensor or a string", "Numbers are read.")
    return call.attr("value")


def _constant_of_shape(call: Call) -> Tensor:
    value = call.attr("value")
    if value is None:
        return torch.zeros(call.ints(0, "shape"))
    return torch.full(call.ints(0, "shape"), as_array(value).reshape(-1)[0].item(), dtype=value.dtype)


def _range(call: Call) -> Tensor:
    start, limit, step = (call.number(i, w) for i, w in enumerate(("start", "limit", "delta")))
    dtype = torch.from_numpy(np.array(call.static(0))).dtype
    count = max(int(np.ceil((limit - start) / step)), 0) if step else 0
    return torch.tensor(start, dtype=dtype) + torch.arange(count).to(dtype) * torch.tensor(step, dtype=dtype)


def _eye_like(call: Call) -> Tensor:
    rows, columns = call.shape(0)
    dtype = (
        torch_dtype(int(call.attr("dtype", 0))) if "dtype" in call.node.attributes else call.tensor(0).dtype
    )
    offset = int(call.attr("k", 0))
    return torch.from_numpy(np.eye(rows, columns, offset)).to(dtype)


def _converted(call: Call, dtype: torch.dtype) -> Tensor:
    """A conversion; a real number becomes whole by dropping its fraction."""
    x = call.tensor(0)
    if x.dtype == dtype:
        return x
    rounding = call.choice("round_mode", ("up", "down", "nearest"), "up")
    return closed(opened(x), dtype, bool(call.attr("saturate", 1)), rounding)


def _cast(call: Call) -> Tensor:
    dtype = torch_dtype(int(call.required("to")))
    return _converted(call, wide_type(dtype) if call.store.widen else dtype)


def _cast_like(call: Call) -> Tensor:
    return _converted(call, call.tensor(1).dtype)


def _i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_X = (2, 3, 4, 5)
OPERATORS: tuple[OnnxOp, ...] = (
    OnnxOp("Reshape", 25, _reshape, oldest=5, moves=True),
    OnnxOp("Flatten", 25, _flatten, moves=True, cases=(Case("axis 2", (_X,), {"axis": 2}),)),
    OnnxOp("Squeeze", 25, _squeeze, moves=True, cases=(
        Case("opset 11", ((1, 3, 1, 5),), {"axes": [0]}, opset=11),
    )),
    OnnxOp("Unsqueeze", 25, _unsqueeze, moves=True, cases=(
        Case("opset 11", ((3, 5),), {"axes": [0, 3]}, opset=11),
    )),
    OnnxOp("Transpose", 25, _transpose, moves=True),
    OnnxOp("Concat", 13, _concat, moves=True),
    OnnxOp("Split", 18, _split, moves=True, cases=(
        Case("opset 11", (_X,), {"axis": 2, "split": [1, 3]}, outputs=2, opset=11),
    )),
    OnnxOp("Slice", 13, _slice, moves=True, cases=(
        Case("opset 9", (_X,), {"starts": [1], "ends": [3], "axes": [3]}, opset=9),
        Case("backwards", (_X, _i(-1), _i(-100), _i(3), _i(-2)), constants=(1, 2, 3, 4)),
    )),
    OnnxOp("Tile", 13, _tile, moves=True),
    OnnxOp("Expand", 13, _expand, moves=True),
    OnnxOp("Pad", 25, _pad, cases=(
        Case("opset 10", (_X,), {"pads": [0, 0, 1, 2, 0, 0, 1, 0], "mode": "reflect"}, opset=10),
        Case("edge", (_X, _i(0, 0, 1, 2, 0, 0, 3, 0)), {"mode": "edge"}, (1,)),
        Case("crop", (_X, _i(0, 0, -1, 2, 0, 0, 3, -1)), {}, (1,)),
    )),
    OnnxOp("Gather", 13, _gather, moves=True, cases=(
        Case("one", (_X, np.array(-1)), {"axis": 1}, (1,)),
        Case("some", (_X, _i(2, 0)), {"axis": 1}, (1,)),
        Case("neighbours", (_X, _i(1, 2)), {"axis": 2}, (1,)),
        Case("computed", ((7, 3), _i(1, -2)), {"axis": 0}),
    )),
    OnnxOp("GatherElements", 13, _gather_elements),
    OnnxOp("GatherND", 13, _gather_nd),
    OnnxOp("Scatter", 11, _scatter_elements),
    OnnxOp("ScatterElements", 18, _scatter_elements),
    OnnxOp("ScatterND", 18, _scatter_nd),
    OnnxOp("Compress", 11, _compress),
    OnnxOp("OneHot", 11, _one_hot),
    OnnxOp("ReverseSequence", 10, _reverse_sequence),
    OnnxOp("Trilu", 14, _trilu),
    OnnxOp("CenterCropPad", 18, _center_crop_pad),
    OnnxOp("Shape", 25, _shape, shape_only=True),
    OnnxOp("Size", 25, _size, shape_only=True),
    OnnxOp("Constant", 25, _constant),
    OnnxOp("ConstantOfShape", 25, _constant_of_shape),
    OnnxOp("Range", 11, _range),
    OnnxOp("EyeLike", 22, _eye_like, shape_only=True),
    OnnxOp("Cast", 25, _cast),
    OnnxOp("CastLike", 25, _cast_like, types=(1,)),
)  # fmt: skip
