"""Operators that move values: copies between layouts, padding, resizing."""

from __future__ import annotations

import itertools

import numpy as np

from openneutron.compiler.graph.arithmetic import zero_of
from openneutron.compiler.graph.shapes import concat_axis
from openneutron.compiler.graph.shifts import APPEND, SHIFT
from openneutron.compiler.graph.stores import STORE
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.format import MAX_RANK, KernelCall, Ref
from openneutron.compiler.select.context import (
    Context,
    Gaps,
    KernelRule,
    const_problem,
    copies,
    dense_strides,
    element_bytes,
    int8_io_problem,
    ints,
    plain_copy,
    product,
    walk,
)
from openneutron.litert.ir import Builtin, Op, Tensor


def _no_problem(op: Op) -> str:
    del op
    return ""


def _reshape(op: Op, ctx: Context) -> list[KernelCall]:
    return plain_copy(ctx.place(op.operand(0)), ctx.ref(op.output), op.output.nbytes)


def _strides(tensor: Tensor) -> list[int]:
    return dense_strides(tensor.shape, element_bytes(tensor))


def _transpose(op: Op, ctx: Context) -> list[KernelCall]:
    source, perm = op.operand(0), ints(op.operand(1))
    strides = ctx.strides(source)
    moved = [strides[p] for p in perm]
    return copies(
        ctx.place(source),
        ctx.ref(op.output),
        op.output.shape,
        moved,
        _strides(op.output),
        element_bytes(source),
    )


def _slice(op: Op, ctx: Context) -> list[KernelCall]:
    source, begin = op.operand(0), ints(op.operand(1))
    strides = ctx.strides(source)
    start = ctx.place(source).plus(sum(b * s for b, s in zip(begin, strides, strict=True)))
    return copies(
        start, ctx.ref(op.output), op.output.shape, strides, ctx.strides(op.output), element_bytes(source)
    )


def _strided_slice_problem(op: Op) -> str:
    for index, what in ((1, "begin"), (2, "end"), (3, "strides")):
        if problem := const_problem(what, op.operand(index)):
            return problem
    masks = ("ellipsisMask", "newAxisMask", "shrinkAxisMask", "offset")
    if any(op.options.get(m) for m in masks) or len(ints(op.operand(1))) != op.operand(0).rank:
        return "masks other than begin and end are not supported"
    return ""


def _strided_slice(op: Op, ctx: Context) -> list[KernelCall]:
    source = op.operand(0)
    begins, _, steps = (ints(op.operand(i)) for i in (1, 2, 3))
    offset, moved = 0, []
    for axis, (stride, length) in enumerate(zip(_strides(source), source.shape, strict=True)):
        step = steps[axis]
        if op.options.get("beginMask", 0) >> axis & 1:
            first = 0 if step > 0 else length - 1
        else:
            first = begins[axis] + length if begins[axis] < 0 else begins[axis]
            first = min(max(first, 0), length - 1)
        offset += first * stride
        moved.append(step * stride)
    start = ctx.place(source).plus(offset)
    return copies(
        start, ctx.ref(op.output), op.output.shape, moved, _strides(op.output), element_bytes(source)
    )


def _concat_problem(op: Op) -> str:
    for t in op.inputs:
        assert t is not None
        if t.dtype != op.output.dtype or t.quant != op.output.quant:
            return f"{t.name} has another type or quantization than the output"
    return "" if not op.options.get("fusedActivationFunction", 0) else "it has a fused activation"


def _concat(op: Op, ctx: Context) -> list[KernelCall]:
    axis, strides = concat_axis(op), ctx.strides(op.output)
    calls: list[KernelCall] = []
    at = 0
    for index in range(len(op.inputs)):
        t = op.operand(index)
        target = ctx.ref(op.output).plus(at * strides[axis])
        calls += copies(ctx.place(t), target, t.shape, ctx.strides(t), strides, element_bytes(t))
        at += t.shape[axis]
    return calls


def _tile(op: Op, ctx: Context) -> list[KernelCall]:
    """Every axis becomes two, repetition and original; the input does not move along the first."""
    source, repeats = op.operand(0), ints(op.operand(1))
    strides, out_strides = _strides(source), _strides(op.output)
    dims: list[int] = []
    ins: list[int] = []
    outs: list[int] = []
    for axis, times in enumerate(repeats):
        dims += [times, source.shape[axis]]
        ins += [0, strides[axis]]
        outs += [source.shape[axis] * out_strides[axis], out_strides[axis]]
    return copies(ctx.place(source), ctx.ref(op.output), dims, ins, outs, element_bytes(source))


def _broadcast_to(op: Op, ctx: Context) -> list[KernelCall]:
    source, out = op.operand(0), op.output
    shape = (1,) * (out.rank - source.rank) + source.shape
    strides = dense_strides(shape, element_bytes(source))
    ins = [0 if d == 1 else s for d, s in zip(shape, strides, strict=True)]
    return copies(ctx.place(source), ctx.ref(out), out.shape, ins, _strides(out), element_bytes(source))


def _depth_space(op: Op, ctx: Context) -> list[KernelCall]:
    """Blocks of pixels to or from channels: both are the walk [n][h][block][w][block][c] of two layouts."""
    block = int(op.options["blockSize"])
    deep = op.operand(0).shape if op.kind is Builtin.DEPTH_TO_SPACE else op.output.shape
    batch, h, w, c = deep[0], deep[1], deep[2], deep[3] // (block * block)
    size = element_bytes(op.operand(0))
    dims = (batch, h, block, w, block, c)
    in_deep = dense_strides((batch, h, w, block, block, c), size)
    by_depth = [in_deep[i] for i in (0, 1, 3, 2, 4, 5)]
    by_space = dense_strides(dims, size)
    ins, outs = (by_depth, by_space) if op.kind is Builtin.DEPTH_TO_SPACE else (by_space, by_depth)
    return copies(ctx.place(op.operand(0)), ctx.ref(op.output), dims, ins, outs, size)


def _space_batch_problem(op: Op) -> str:
    return const_problem("block shape", op.operand(1)) or const_problem("padding or crops", op.operand(2))


def _space_batch(op: Op, ctx: Context) -> list[KernelCall]:
    """Every phase of the blocks is one strided copy; padding is what the copies leave of a filled output."""
    to_batch = op.kind is Builtin.SPACE_TO_BATCH_ND
    space, batched = (op.operand(0), op.output) if to_batch else (op.output, op.operand(0))
    block, before = ints(op.operand(1)), [int(p[0]) for p in op.operand(2).array]
    size, images, axes = element_bytes(space), space.shape[0], range(1, 1 + len(block))
    space_strides, batch_strides = _strides(space), _strides(batched)
    source, target = ctx.place(op.operand(0)), ctx.ref(op.output)
    calls: list[KernelCall] = []
    if to_batch and op.operand(2).array.any():
        calls.append(_fill(target, op.output.shape, _strides(op.output), size, _zero_bits(op.output)))
    for number, phase in enumerate(itertools.product(*map(range, block))):
        at_space, at_batch, dims, strides = (
            0,
            number * images * batch_strides[0],
            [images],
            [space_strides[0]],
        )
        for axis, b, p, pad in zip(axes, block, phase, before, strict=True):
            first = max(-((p - pad) // b), 0)  # the first and one past the last step that falls on a pixel
            last = min(-((p - pad - space.shape[axis]) // b), batched.shape[axis])
            at_space += (first * b + p - pad) * space_strides[axis]
            at_batch += first * batch_strides[axis]
            dims.append(last - first)
            strides.append(b * space_strides[axis])
        if min(dims) < 1:
            continue
        dims += space.shape[1 + len(block) :]
        strides += space_strides[1 + len(block) :]
        if to_batch:
            calls += copies(source.plus(at_space), target.plus(at_batch), dims, strides, batch_strides, size)
        else:
            calls += copies(source.plus(at_batch), target.plus(at_space), dims, batch_strides, strides, size)
    return calls


def _pad_problem(op: Op) -> str:
    if problem := const_problem("padding", op.operand(1)):
        return problem
    if len(op.inputs) > 2 and (problem := const_problem("padding value", op.operand(2))):
        return problem
    if element_bytes(op.output) > 4:
        return f"{op.output.dtype} is not supported"
    return "" if op.output.rank <= MAX_RANK else f"rank {op.output.rank} is more than {MAX_RANK}"


def _pad_value(op: Op) -> int:
    out = op.output
    if len(op.inputs) > 2:
        raw = op.operand(2).array.astype(out.dtype).tobytes()
    else:
        return _zero_bits(out)
    return int.from_bytes(raw[: element_bytes(out)], "little")


def _zero_bits(tensor: Tensor) -> int:
    """The bits of the number 0."""
    return int.from_bytes(
        np.array([zero_of(tensor) if tensor.quant else 0], tensor.dtype).tobytes(), "little"
    )


def _pad(op: Op, ctx: Context) -> list[KernelCall]:
    """The input copied into place, and around it one slab before and one behind along each axis."""
    source, out = op.operand(0), op.output
    size, strides, target = element_bytes(out), _strides(out), ctx.ref(out)
    before = [int(p[0]) for p in op.operand(1).array]
    start = sum(b * s for b, s in zip(before, strides, strict=True))
    calls = copies(ctx.place(source), target.plus(start), source.shape, _strides(source), strides, size)
    value = _pad_value(op)
    for axis in range(out.rank):
        after = out.shape[axis] - before[axis] - source.shape[axis]
        # Axes before this one are inside the input's range (they have slabs of their own), the rest whole.
        inside = sum(before[a] * strides[a] for a in range(axis))
        for length, at in ((before[axis], 0), (after, before[axis] + source.shape[axis])):
            if length:
                dims = (*source.shape[:axis], length, *out.shape[axis + 1 :])
                calls.append(_fill(target.plus(inside + at * strides[axis]), dims, strides, size, value))
    return calls


def _fill(target: Ref, dims: tuple[int, ...], strides: list[int], size: int, value: int) -> KernelCall:
    w = walk(dims, strides)
    return mc.Fill(target, size, value, w.dims, w.strides[0])


def _gathered(op: Op, ctx: Context, source: Tensor, tables: list[list[int]], run: int) -> list[KernelCall]:
    """A gather from one table of byte offsets for each outer axis of the output."""
    padded = [[0]] * (MAX_RANK - len(tables)) + tables
    flat = np.concatenate([np.array(t, np.int32) for t in padded])
    dims = tuple(len(t) for t in padded)
    return [mc.Gather(ctx.place(source), ctx.ref(op.output), ctx.pool.add(flat), dims, run, source.nbytes)]


def _mirror_pad(op: Op, ctx: Context) -> list[KernelCall]:
    source = op.operand(0)
    skip = (
        1 if int(op.options.get("mode", 0)) == 0 else 0
    )  # REFLECT does not repeat the border, SYMMETRIC does
    pads = op.operand(1).array.tolist()
    strides = _strides(source)
    last = max((a for a in range(source.rank) if any(pads[a])), default=-1)
    run = strides[last] if last >= 0 else source.nbytes
    tables = []
    for axis in range(last + 1):
        n, (before, after) = source.shape[axis], pads[axis]
        index = [
            *range(before - 1 + skip, skip - 1, -1),
            *range(n),
            *range(n - 1 - skip, n - 1 - skip - after, -1),
        ]
        tables.append([i * strides[axis] for i in index])
    return _gathered(op, ctx, source, tables, run)


def _gather_problem(op: Op) -> str:
    if int(op.options.get("batchDims", 0)):
        return "batch dims are not supported"
    indices = op.operand(1)
    if not indices.is_const:
        return "" if indices.dtype in ("int32", "int64") else f"its indices are {indices.dtype}"
    axis = int(op.options.get("axis", 0)) % op.operand(0).rank
    if axis > MAX_RANK - 1:
        return f"axis {axis} is more than {MAX_RANK - 1}"
    length = op.operand(0).shape[axis]
    bad = [i for i in ints(op.operand(1)) if not 0 <= i < length]
    return f"index {bad[0]} is outside 0..{length - 1}" if bad else ""


def _gather(op: Op, ctx: Context) -> list[KernelCall]:
    source = op.operand(0)
    axis = int(op.options.get("axis", 0)) % source.rank
    if not (indices := op.operand(1)).is_const:
        return [
            mc.Lookup(
                input=ctx.place(source), indices=ctx.place(indices), output=ctx.ref(op.output),
                outer=product(source.shape[:axis]), axis=source.shape[axis], count=indices.elements,
                run=product(source.shape[axis + 1 :]) * element_bytes(source),
                index_bytes=element_bytes(indices),
            )
        ]  # fmt: skip
    strides = _strides(source)
    tables = [[i * strides[a] for i in range(source.shape[a])] for a in range(axis)]
    tables.append([i * strides[axis] for i in ints(op.operand(1))])
    return _gathered(op, ctx, source, tables, strides[axis])


def _stored(op: Op, ctx: Context, axis: int, indices: Ref, count: int, index: Tensor) -> list[KernelCall]:
    """The first operand, unless it is there already, with the second written over a part of it."""
    target, part, out = op.operand(0), op.operand(1), op.output
    calls = (
        [] if ctx.place(target) == ctx.ref(out) else plain_copy(ctx.place(target), ctx.ref(out), out.nbytes)
    )
    store = mc.Store(
        input=ctx.place(part), indices=indices, output=ctx.ref(out),
        outer=product(out.shape[:axis]), axis=out.shape[axis], count=count,
        length=part.shape[axis] // count, run=product(out.shape[axis + 1 :]) * element_bytes(out),
        index_bytes=element_bytes(index),
    )  # fmt: skip
    return [*calls, store]


def _update_problem(op: Op) -> str:
    target, part, begin = (op.operand(i) for i in range(3))
    if begin.dtype not in ("int32", "int64"):
        return f"its start is {begin.dtype}"
    if (target.dtype, target.quant) != (part.dtype, part.quant):
        return f"{part.name} has another type or quantization than {target.name}"
    partial = [a for a, (p, d) in enumerate(zip(part.shape, target.shape, strict=True)) if p != d]
    return "" if len(partial) < 2 else f"it updates a part along {len(partial)} axes"


def _update(op: Op, ctx: Context) -> list[KernelCall]:
    """Along an axis that is updated as a whole nothing but 0 can be the start, whatever it says."""
    target, part, begin = (op.operand(i) for i in range(3))
    partial = [a for a, (p, d) in enumerate(zip(part.shape, target.shape, strict=True)) if p != d]
    if not partial:
        return plain_copy(ctx.place(part), ctx.ref(op.output), op.output.nbytes)
    (axis,) = partial
    start = ctx.place(begin).plus(axis * element_bytes(begin))
    return _stored(op, ctx, axis, start, 1, begin)


def _store(op: Op, ctx: Context) -> list[KernelCall]:
    index = op.operand(2)
    return _stored(op, ctx, int(op.options["axis"]), ctx.place(index), index.elements, index)


def _shift(op: Op, ctx: Context) -> list[KernelCall]:
    """A part of the operand to its place in the output; a run may be moved over itself."""
    axis, source, out, size = op.options["axis"], op.operand(0), op.output, element_bytes(op.output)
    ins, outs = _strides(source), _strides(out)
    dims = (*out.shape[:axis], op.options["length"], *out.shape[axis + 1 :])
    begin, at = op.options["begin"] * ins[axis], op.options["at"] * outs[axis]
    return copies(ctx.place(source).plus(begin), ctx.ref(out).plus(at), dims, ins, outs, size)


def _append(op: Op, ctx: Context) -> list[KernelCall]:
    """The first operand, unless it is there already, with the second written over a part of it."""
    target, part, out = op.operand(0), op.operand(1), op.output
    calls = (
        [] if ctx.place(target) == ctx.ref(out) else plain_copy(ctx.place(target), ctx.ref(out), out.nbytes)
    )
    strides = _strides(out)
    place = ctx.ref(out).plus(op.options["at"] * strides[op.options["axis"]])
    return calls + copies(ctx.place(part), place, part.shape, ctx.strides(part), strides, element_bytes(out))


def _resize_problem(op: Op) -> str:
    problem = int8_io_problem(op) or const_problem("size", op.operand(1))
    if not problem and op.options.get("alignCorners") and op.options.get("halfPixelCenters"):
        problem = "align_corners and half_pixel_centers exclude each other"
    return problem


def _nearest_indices(op: Op, size: int, out: int) -> list[int]:
    align, half = bool(op.options.get("alignCorners")), bool(op.options.get("halfPixelCenters"))
    scale = (
        np.float32(size - 1) / np.float32(out - 1)
        if align and out > 1
        else np.float32(size) / np.float32(out)
    )
    position = (np.arange(out, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * scale
    # Positions are not negative, so that floor(x + 0.5) rounds halves away from zero; in double it is exact.
    index = np.floor(position.astype(np.float64) + 0.5) if align else np.floor(position)
    return [int(i) for i in np.clip(index, 0, size - 1)]


def _resize_nearest(op: Op, ctx: Context) -> list[KernelCall]:
    source, out = op.operand(0), op.output
    rows, columns = (_nearest_indices(op, source.shape[a], out.shape[a]) for a in (1, 2))
    strides = ctx.strides(source)
    (batch, h, w, c), up = source.shape, [out.shape[a] // source.shape[a] for a in (1, 2)]
    if rows == [y // up[0] for y in range(h * up[0])] and columns == [x // up[1] for x in range(w * up[1])]:
        outs = ctx.strides(out)
        ins = (strides[0], strides[1], 0, strides[2], 0, 1)
        steps = (outs[0], up[0] * outs[1], outs[1], up[1] * outs[2], outs[2], 1)
        return copies(ctx.place(source), ctx.ref(out), (batch, h, up[0], w, up[1], c), ins, steps, 1)
    tables = [
        [i * strides[0] for i in range(batch)],
        [i * strides[1] for i in rows],
        [i * strides[2] for i in columns],
    ]
    return _gathered(op, ctx, source, tables, strides[2])


def _bilinear_places(op: Op, size: int, out: int) -> np.ndarray:
    """(lower neighbour, upper neighbour, position between them in 1/1024) for every output index."""
    align, half = bool(op.options.get("alignCorners")), bool(op.options.get("halfPixelCenters"))
    scale = (1024 * size + out // 2) // out
    if align and out > 1:
        scale = (1024 * (size - 1) + (out - 1) // 2) // (out - 1)
    rows = []
    for i in range(out):
        at = i * scale + (scale // 2 - 512 if half else 0)
        low = max(int(at / 1024), 0)  # towards zero, as C divides
        high = min(int((at + 1023) / 1024), size - 1)
        rows.append((low, high, at - 1024 * low))
    return np.array(rows, np.int32)


def _resize_bilinear(op: Op, ctx: Context) -> list[KernelCall]:
    (batch, in_h, in_w, channels), (_, out_h, out_w, _) = op.operand(0).shape, op.output.shape
    tables = np.concatenate([_bilinear_places(op, in_h, out_h), _bilinear_places(op, in_w, out_w)])
    return [
        mc.ResizeBilinear(
            input=ctx.place(op.operand(0)), output=ctx.ref(op.output), tables=ctx.pool.add(tables),
            batch=batch, in_h=in_h, in_w=in_w, out_h=out_h, out_w=out_w, channels=channels, y0=0, y1=out_h,
        )
    ]  # fmt: skip


def _permutation_problem(op: Op) -> str:
    return const_problem("permutation", op.operand(1))


RULES: dict[Builtin | str, KernelRule] = {
    Builtin.RESHAPE: KernelRule(_reshape, _no_problem),
    Builtin.SQUEEZE: KernelRule(_reshape, _no_problem),
    Builtin.EXPAND_DIMS: KernelRule(_reshape, _no_problem),
    Builtin.TRANSPOSE: KernelRule(_transpose, _permutation_problem, Gaps.READ),
    Builtin.SLICE: KernelRule(_slice, lambda op: const_problem("begin", op.operand(1)), Gaps.BOTH),
    Builtin.STRIDED_SLICE: KernelRule(_strided_slice, _strided_slice_problem),
    Builtin.CONCATENATION: KernelRule(_concat, _concat_problem, Gaps.BOTH),
    Builtin.TILE: KernelRule(_tile, lambda op: const_problem("repetitions", op.operand(1))),
    Builtin.BROADCAST_TO: KernelRule(_broadcast_to, _no_problem),
    Builtin.DEPTH_TO_SPACE: KernelRule(_depth_space, _no_problem),
    Builtin.SPACE_TO_DEPTH: KernelRule(_depth_space, _no_problem),
    Builtin.SPACE_TO_BATCH_ND: KernelRule(_space_batch, _space_batch_problem),
    Builtin.BATCH_TO_SPACE_ND: KernelRule(_space_batch, _space_batch_problem),
    Builtin.PAD: KernelRule(_pad, _pad_problem),
    Builtin.PADV2: KernelRule(_pad, _pad_problem),
    Builtin.MIRROR_PAD: KernelRule(_mirror_pad, lambda op: const_problem("padding", op.operand(1))),
    Builtin.GATHER: KernelRule(_gather, _gather_problem),
    Builtin.DYNAMIC_UPDATE_SLICE: KernelRule(_update, _update_problem, updates=True),
    STORE: KernelRule(_store, _no_problem, updates=True),
    SHIFT: KernelRule(_shift, _no_problem, updates=True),
    APPEND: KernelRule(_append, _no_problem, updates=True),
    Builtin.RESIZE_NEAREST_NEIGHBOR: KernelRule(_resize_nearest, _resize_problem),
    Builtin.RESIZE_BILINEAR: KernelRule(_resize_bilinear, _resize_problem),
}
