"""Operators that move values and compute nothing: reshapes, permutations, slices, concatenation, padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Tensor
from openneutron.ops.common import as_layer, normalize, nxp_limit, quant_of
from openneutron.ops.spec import OPEN, Call, Case, Constraint, Lower, Lowering, OpSpec, Shared, Value


def moving(body: Any) -> Lower:
    """A lowering that moves values, then brings them to the result's parameters should these differ."""

    def lower(at: Lowering, call: Call) -> Tensor:
        return at.build.requantize(body(at.build, at(call.input), call), quant_of(call))

    return lower


def _case(label: str, function: Any, *shapes: tuple[int, ...], **flags: Any) -> Case:
    return Case(
        label, lambda torch: function, shapes, channels_last=len(shapes[0]) == 4, tolerance=0, **flags
    )


def _reshape(b: Builder, x: Tensor, call: Call) -> Tensor:
    return b.reshape(x, call.out.shape)


RESHAPE = OpSpec(
    (
        "aten.view_copy.default",
        "aten.view.default",
        "aten.reshape.default",
        "aten._unsafe_view.default",
        "aten.flatten.using_ints",
        "aten.unflatten.int",
    ),
    Shared(),
    moving(_reshape),
    no_op=True,
    cases=(
        _case("flatten", lambda x: x.flatten(1), (2, 3, 4, 5)),
        _case("4d to 3d", lambda x: x.reshape(2, 3, 20), (2, 3, 4, 5)),
        _case("2d to 4d", lambda x: x.view(2, 2, 2, 3), (4, 6)),
        _case("mixed", lambda x: x.reshape(6, 20), (2, 3, 4, 5)),
        _case("5d", lambda x: x.reshape(2, 2, 3, 2, 5), (4, 3, 10)),
    ),
)
SQUEEZE = OpSpec(
    (
        "aten.squeeze_copy.dims",
        "aten.squeeze_copy.dim",
        "aten.squeeze_copy.default",
        "aten.squeeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.squeeze_.dim",
    ),
    Shared(),
    moving(_reshape),
    no_op=True,
    cases=(
        _case("all", lambda x: x.squeeze(), (1, 3, 1, 4)),
        _case("dim", lambda x: x.squeeze(2), (2, 3, 1, 4)),
        _case("dims", lambda x: x.squeeze((1, 2)), (2, 1, 1, 4)),
    ),
)
UNSQUEEZE = OpSpec(
    ("aten.unsqueeze_copy.default", "aten.unsqueeze.default", "aten.unsqueeze_.default"),
    Shared(),
    moving(_reshape),
    no_op=True,
    cases=tuple(_case(f"dim {d}", lambda x, d=d: x.unsqueeze(d), (2, 3, 4)) for d in (0, 1, 3)),
)


# --------------------------------------------------------------------------------------------------
# Permutations


def permutation(call: Call) -> list[int]:
    """The permutation of permute, transpose and t, dimensions counted from the front."""
    rank = call.input.rank
    if "permute" in call.op:
        return [normalize(d, rank) for d in call["dims"]]
    perm = list(range(rank))
    if "numpy_T" in call.op:
        return perm[::-1]
    if rank > 1:
        i, j = (0, 1) if ".t" in call.op and "dim0" not in call.args else (call["dim0"], call["dim1"])
        i, j = normalize(i, rank), normalize(j, rank)
        perm[i], perm[j] = perm[j], perm[i]
    return perm


PERMUTE = OpSpec(
    (
        "aten.permute_copy.default",
        "aten.permute.default",
        "aten.transpose_copy.int",
        "aten.transpose.int",
        "aten.t_copy.default",
        "aten.t.default",
        "aten.numpy_T.default",
    ),
    Shared(),
    moving(lambda b, x, call: b.transpose(x, permutation(call))),
    cases=tuple(
        _case(f"{p}", lambda x, p=p: x.permute(p), (2, 3, 4, 5)[: len(p)] if len(p) < 5 else (2, 3, 2, 4, 3))
        for p in (
            (1, 0),
            (0, 2, 1),
            (2, 0, 1),
            (0, 2, 3, 1),
            (0, 3, 1, 2),
            (3, 1, 0, 2),
            (0, 1, 3, 2),
            (4, 2, 0, 3, 1),
        )
    )
    + (
        _case("transpose", lambda x: x.transpose(1, 3), (2, 3, 4, 5)),
        _case("t", lambda x: x.t(), (3, 4)),
        _case("T", lambda x: x.T, (3, 4)),
    ),
)


# --------------------------------------------------------------------------------------------------
# Slices


def _strided_slice(b: Builder, x: Tensor, dim: int, start: int, stop: int, step: int) -> Tensor:
    begin, end, strides = [0] * x.rank, list(x.shape), [1] * x.rank
    begin[dim], end[dim], strides[dim] = start, stop, step
    shape = tuple(-(-(e - s) // t) for s, e, t in zip(begin, end, strides, strict=True))
    if shape == x.shape:
        return x
    if step == 1:
        return b.op(
            Builtin.SLICE,
            [x, b.const(np.array(begin, np.int32)), b.const(np.array(shape, np.int32))],
            shape,
            x.quant,
        )
    operands = [x, *(b.const(np.array(v, np.int32)) for v in (begin, end, strides))]
    return b.op(Builtin.STRIDED_SLICE, operands, shape, x.quant)


def _slice(b: Builder, x: Tensor, call: Call) -> Tensor:
    dim = normalize(call.get("dim", 0), x.rank)
    start, stop, step = slice(call.get("start"), call.get("end"), call.get("step", 1)).indices(x.shape[dim])
    return _strided_slice(b, x, dim, start, max(stop, start), step)


def _select(b: Builder, x: Tensor, call: Call) -> Tensor:
    dim = normalize(call["dim"], x.rank)
    index = normalize(call["index"], x.shape[dim])
    return b.reshape(_strided_slice(b, x, dim, index, index + 1, 1), call.out.shape)


SLICE = OpSpec(
    ("aten.slice_copy.Tensor", "aten.slice.Tensor", "aten.narrow.int", "aten.narrow_copy.default"),
    Shared(),
    moving(lambda b, x, call: _narrow(b, x, call) if "narrow" in call.op else _slice(b, x, call)),
    requires=(
        Constraint(
            "The slice must not be empty", lambda c: 0 not in c.out.shape, lambda c: list(c.out.shape)
        ),
        nxp_limit(
            "Step must be 1",
            lambda c: c.get("step", 1) == 1,
            lambda c: c["step"],
            _case("step 2", lambda x: x[:, ::2], (2, 6, 4, 4)),
        ),
    ),
    cases=(
        _case("rows", lambda x: x[:, :, 1:3], (2, 3, 4, 5)),
        _case("channels", lambda x: x[:, 1:], (2, 3, 4, 5)),
        _case("negative", lambda x: x[..., -3:-1], (2, 3, 5)),
        _case("step 2", lambda x: x[:, ::2], (2, 6, 4, 4)),
        _case("step 3 2d", lambda x: x[:, 1::3], (2, 8)),
        _case("batch", lambda x: x[1:], (3, 4)),
    ),
)


def _narrow(b: Builder, x: Tensor, call: Call) -> Tensor:
    dim = normalize(call["dim"], x.rank)
    return _strided_slice(b, x, dim, call["start"], call["start"] + call["length"], 1)


SELECT = OpSpec(
    ("aten.select_copy.int", "aten.select.int"),
    Shared(),
    moving(_select),
    cases=(
        _case("step", lambda x: x[:, 1], (2, 3, 4)),
        _case("last", lambda x: x[:, -1], (2, 3, 4, 5)),
        _case("column", lambda x: x[..., 0], (3, 4)),
    ),
)


# --------------------------------------------------------------------------------------------------
# Concatenation and repetition


def _lower_cat(at: Lowering, call: Call) -> Tensor:
    q = quant_of(call)
    # torch lets a concatenation hold empty 1-D tensors; LiteRT does not.
    parts = [at.build.requantize(at(v), q) for v in call["tensors"] if v.shape != (0,)]
    options = {"axis": normalize(call.get("dim", 0), call.out.rank), "fusedActivationFunction": 0}
    return at.build.op(Builtin.CONCATENATION, list(parts), call.out.shape, q, options=options)


CAT = OpSpec(
    ("aten.cat.default", "aten.concat.default"),
    Shared(),
    _lower_cat,
    (
        nxp_limit(
            "All inputs must share quantization parameters",
            lambda c: len({v.quant for v in c["tensors"]} | {c.out.quant}) == 1,
            lambda c: [str(v.quant) for v in c["tensors"]],
            hint="Quantize with NeutronQuantizer.",
        ),
    ),
    (
        Case(
            "channels",
            lambda torch: lambda x, y: torch.cat([x, y], 1),
            ((2, 3, 4, 4), (2, 2, 4, 4)),
            True,
            tolerance=0,
        ),
        Case("batch", lambda torch: lambda x, y: torch.cat([x, y], 0), ((2, 3), (1, 3)), tolerance=0),
        Case("last", lambda torch: lambda x, y: torch.cat([x, y], -1), ((2, 3, 4), (2, 3, 5)), tolerance=0),
        Case(
            "three",
            lambda torch: lambda x, y, z: torch.cat([x, y, z], 2),
            ((1, 2, 3, 4),) * 3,
            True,
            tolerance=0,
        ),
    ),
)


def _expand(b: Builder, x: Tensor, call: Call) -> Tensor:
    x = b.reshape(x, (1,) * (call.out.rank - x.rank) + x.shape)
    return _tile(b, x, call.out.shape)


def _tile(b: Builder, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if shape == x.shape:
        return x
    times = np.array([o // i for o, i in zip(shape, x.shape, strict=True)], np.int32)
    return b.op(Builtin.TILE, [x, b.const(times)], shape, x.quant)


EXPAND = OpSpec(
    ("aten.expand_copy.default", "aten.expand.default", "aten.repeat.default"),
    Shared(),
    moving(_expand),
    open_only=True,
    cases=(
        _case("expand", lambda x: x.expand(2, 3, 4), (1, 3, 1)),
        _case("repeat", lambda x: x.repeat(2, 1, 3), (1, 3, 2)),
        _case("more dims", lambda x: x.expand(2, 3, 4), (3, 1)),
    ),
)


# --------------------------------------------------------------------------------------------------
# Padding


def _pad_rows(call: Call, rank: int) -> np.ndarray:
    """torch lists pads from the last dimension backwards; LiteRT has a row per dimension."""
    pad = list(call.get("pad", call.get("padding", ())))
    rows = np.zeros((rank, 2), np.int32)
    for i in range(len(pad) // 2):
        rows[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return rows


def _constant_pad(b: Builder, x: Tensor, call: Call) -> Tensor:
    rows = _pad_rows(call, x.rank)
    for dim, (lo, hi) in enumerate(rows):  # negative padding crops
        if lo < 0 or hi < 0:
            x = _strided_slice(b, x, dim, int(max(-lo, 0)), int(x.shape[dim] - max(-hi, 0)), 1)
    rows = np.maximum(rows, 0)
    if not rows.any():
        return x
    shape = tuple(int(d + r.sum()) for d, r in zip(x.shape, rows, strict=True))
    value = float(call.get("value", 0) or 0)
    if value == 0.0:
        return b.op(Builtin.PAD, [x, b.const(rows)], shape, x.quant)
    assert x.quant is not None
    level = np.clip(np.rint(value / x.quant.scale[0]) + x.quant.zero_point[0], -128, 127)
    return b.op(
        Builtin.PADV2, [x, b.const(rows), b.const(np.array([level], np.int8), x.quant)], shape, x.quant
    )


def _reflect_pad(b: Builder, x: Tensor, call: Call) -> Tensor:
    rows = _pad_rows(call, x.rank)
    shape = tuple(int(d + r.sum()) for d, r in zip(x.shape, rows, strict=True))
    return b.op(Builtin.MIRROR_PAD, [x, b.const(rows)], shape, x.quant, options={"mode": 0})


def _lower_any_pad(b: Builder, x: Tensor, call: Call) -> Tensor:
    return (_reflect_pad if _mode(call) == "reflect" else _constant_pad)(b, x, call)


def _mode(call: Call) -> str:
    return "reflect" if "reflection" in call.op else str(call.get("mode", "constant"))


def _padding_case(
    label: str, pad: tuple[int, ...], shape: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> Case:
    def make(torch: Any) -> Any:
        kwargs = {"value": value} if mode == "constant" else {}
        return lambda x: torch.nn.functional.pad(x, pad, mode, **kwargs)

    return Case(label, make, (shape,), channels_last=len(shape) == 4, tolerance=0)


PAD = OpSpec(
    ("aten.constant_pad_nd.default", "aten.pad.default"),
    Shared(),
    moving(_lower_any_pad),
    (
        Constraint(
            "Padding mode must be constant or reflect",
            lambda c: _mode(c) in ("constant", "reflect"),
            _mode,
            hint="Pad with zeros, or reflect.",
        ),
    ),
    (
        _padding_case("sides", (1, 2), (2, 3, 4)),
        _padding_case("spatial", (1, 2, 0, 3), (2, 3, 4, 5)),
        _padding_case("channels", (0, 0, 0, 0, 1, 1), (1, 2, 4, 4)),
        _padding_case("value", (1, 1), (2, 4), value=0.5),
        _padding_case("negative", (-1, 1, 2, 0), (1, 2, 4, 5)),
        _padding_case("reflect", (1, 2, 1, 1), (1, 2, 4, 5), "reflect"),
    ),
)


def _reflection_case(label: str, pad: tuple[int, ...], shape: tuple[int, ...]) -> Case:
    """The ATen operator itself: the functions of torch.nn call `aten.pad`."""

    def make(torch: Any) -> Any:
        return lambda x: getattr(torch.ops.aten, f"reflection_pad{label}")(x, pad)

    return Case(label, make, (shape,), channels_last=len(shape) == 4, tolerance=0)


REFLECTION_PAD = OpSpec(
    ("aten.reflection_pad2d.default", "aten.reflection_pad1d.default"),
    Shared(),
    moving(_reflect_pad),
    cases=(
        _reflection_case("1d", (2, 1), (2, 3, 5)),
        _reflection_case("2d", (1, 1, 2, 0), (1, 2, 4, 5)),
    ),
)


# --------------------------------------------------------------------------------------------------
# No-ops and channel shuffles

IDENTITY = OpSpec(
    (
        "aten.clone.default",
        "aten.alias_copy.default",
        "aten.alias.default",
        "aten.dropout.default",
        "aten.dropout_.default",
        "aten.contiguous.default",
        "aten.detach.default",
        "aten.detach_copy.default",
        "aten.lift_fresh_copy.default",
        "aten.feature_dropout.default",
        "aten.to.dtype",
        "aten.to.dtype_layout",
        "aten._to_copy.default",
        "dim_order_ops._clone_dim_order.default",
        "dim_order_ops._to_dim_order_copy.default",
    ),
    Shared(),
    moving(lambda b, x, call: x),
    no_op=True,
    requires=(
        Constraint(
            "The type must not change",
            lambda c: c.input.dtype == c.out.dtype,
            lambda c: [c.input.dtype, c.out.dtype],
        ),
    ),
    note="a change of memory format costs a transpose at most",
    cases=(
        # A neighbour that computes, or nothing would be left of them; the largest makes no new values.
        Case("clone", lambda torch: lambda x: torch.maximum(x.clone(), x.mT), ((2, 3, 4, 4),)),
        Case(
            "channels last",
            lambda torch: lambda x: torch.maximum(x.to(memory_format=torch.channels_last), x.mT),
            ((2, 3, 4, 4),),
            True,
        ),
    ),
)


def _pixel_shuffle(b: Builder, x: Tensor, call: Call) -> Tensor:
    """[n, c*r*r, h, w] -> [n, c, h*r, w*r], in torch's order of channels (not DEPTH_TO_SPACE's)."""
    r = int(call["upscale_factor"])
    n, c, h, w = (1,) * (4 - x.rank) + x.shape
    y = b.transpose(b.reshape(x, (n, c // (r * r), r, r, h, w)), [0, 1, 4, 2, 5, 3])
    return b.reshape(y, call.out.shape)


def _pixel_unshuffle(b: Builder, x: Tensor, call: Call) -> Tensor:
    r = int(call["downscale_factor"])
    n, c, h, w = (1,) * (4 - x.rank) + x.shape
    y = b.transpose(b.reshape(x, (n, c, h // r, r, w // r, r)), [0, 1, 3, 5, 2, 4])
    return b.reshape(y, call.out.shape)


PIXEL_SHUFFLE = OpSpec(
    ("aten.pixel_shuffle.default",),
    Shared(),
    moving(_pixel_shuffle),
    open_only=True,
    cases=tuple(
        Case(f"x{r}", as_layer("PixelShuffle", r), ((2, 2 * r * r, 3, 4),), True, tolerance=0) for r in (2, 3)
    ),
)
PIXEL_UNSHUFFLE = OpSpec(
    ("aten.pixel_unshuffle.default",),
    Shared(),
    moving(_pixel_unshuffle),
    open_only=True,
    cases=(Case("x2", lambda torch: torch.nn.PixelUnshuffle(2), ((2, 3, 4, 6),), True, tolerance=0),),
)

# --------------------------------------------------------------------------------------------------
# Chosen by constant indices


def _gather(b: Builder, x: Tensor, dim: int, indices: np.ndarray) -> Tensor:
    size = x.shape[dim]
    places = np.where(indices < 0, indices + size, indices).astype(np.int32)
    shape = [len(places) if a == dim else d for a, d in enumerate(x.shape)]
    options = {"axis": dim, "batchDims": 0}
    return b.op(Builtin.GATHER, [x, b.const(places)], shape, x.quant, options=options)


def _looked_up(at: Lowering, call: Call, source: Value, dim: int, index: Value) -> Tensor:
    """What indices name, if they are known before the run or come with the input."""
    b, x = at.build, at(source)
    if index.is_const:
        y = _gather(b, x, dim, index.array().reshape(-1))
    else:
        shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
        options = {"axis": dim, "batchDims": 0}
        y = b.op(Builtin.GATHER, [x, at(index)], shape, x.quant, options=options, dtype=x.dtype)
    y = b.reshape(y, call.out.shape)
    return y if call.out.dtype in ("int32", "int64") else b.requantize(y, quant_of(call))


def _lower_index_select(at: Lowering, call: Call) -> Tensor:
    source = call["self"]
    return _looked_up(at, call, source, normalize(call["dim"], source.rank), call["index"])


def _lower_index(at: Lowering, call: Call) -> Tensor:
    ((dim, index),) = ((d, index) for d, index in enumerate(call["indices"]) if index is not None)
    return _looked_up(at, call, call["self"], dim, index)


def _lower_index_put(at: Lowering, call: Call) -> Tensor:
    """Each row is an update of LiteRT's, which begins at the row's index and at 0 along every other axis."""
    b, target, quant = at.build, call["self"], quant_of(call)
    ((dim, index),) = ((d, index) for d, index in enumerate(call["indices"]) if index is not None)
    y, places = b.requantize(at(target), quant), at(index)
    (count,) = (math.prod(index.shape),)
    shape = (*target.shape[:dim], count, *target.shape[dim + 1 :])
    rows = b.reshape(b.requantize(at(call["values"]), quant), shape)
    places = b.reshape(places, (count,))
    before, after = (b.const(np.zeros(n, places.dtype)) for n in (dim, target.rank - dim - 1))
    for i in range(count):
        place, row = places, rows
        if count > 1:
            size = [1 if a == dim else d for a, d in enumerate(shape)]
            first = [i if a == dim else 0 for a in range(len(shape))]
            place = b.op(Builtin.SLICE, [places, b.ints([i]), b.ints([1])], (1,), dtype=places.dtype)
            row = b.op(Builtin.SLICE, [rows, b.ints(first), b.ints(size)], size, quant)
        parts = [t for t in (before, place, after) if t.elements]
        start = place
        if len(parts) > 1:
            options = {"axis": 0, "fusedActivationFunction": 0}
            start = b.op(Builtin.CONCATENATION, parts, (target.rank,), dtype=places.dtype, options=options)
        y = b.op(Builtin.DYNAMIC_UPDATE_SLICE, [y, row, start], target.shape, quant)
    return y


def _indices(call: Call) -> list[Value]:
    return [index for index in call["indices"] if index is not None]


def _selecting(dim: int, index: list[int]) -> Any:
    return lambda torch: lambda x: torch.index_select(x, dim, torch.tensor(index))


def _whole_indices(name: str) -> Constraint:
    return Constraint(
        "Indices must be int32 or int64",
        lambda c: c[name].dtype in ("int32", "int64"),
        lambda c: c[name].dtype,
        converters=(OPEN,),
    )


INDEX_SELECT = OpSpec(
    ("aten.index_select.default",),
    Shared(),
    _lower_index_select,
    (_whole_indices("index"),),
    tuple(
        Case(
            f"{len(shape)}d along {dim}",
            _selecting(dim, index),
            (shape,),
            channels_last=len(shape) == 4,
            tolerance=0,
        )
        for shape, dim, index in (
            ((2, 5, 3), 1, [4, 0, 0, 2]),
            ((2, 5, 3, 4), 1, [3, 1]),
            ((2, 3, 4), -1, [0, 3]),
            ((6,), 0, [5, 5, 1]),
        )
    ),
    open_only=True,
    integers=("index",),
    note="the indices may be an input",
)


def _embedding(torch: Any) -> Any:
    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rows = [[0.5 * (row >> bit & 1) for bit in range(4)] for row in range(10)]  # all different
            self.table = torch.nn.Embedding.from_pretrained(torch.tensor(rows))

        def forward(self, x: Any) -> Any:
            return self.table(x.argmax(-1))

    return Embedding()


EMBEDDING = OpSpec(
    ("aten.embedding.default",),
    Shared(),
    lambda at, call: _looked_up(at, call, call["weight"], 0, call["indices"]),
    (
        Constraint("The table must be constant", lambda c: c["weight"].is_const),
        _whole_indices("indices"),
    ),
    (Case("of argmax", _embedding, ((2, 5, 10),)),),
    open_only=True,
    integers=("indices",),
    note="the indices may be an input",
)
_ONE_DIMENSION = Constraint(
    "One dimension must be indexed, by a list of numbers if it is constant",
    lambda c: (
        len(_indices(c)) == 1
        and _indices(c)[0].dtype in ("int32", "int64")
        and (_indices(c)[0].rank == 1 or not _indices(c)[0].is_const)
    ),
    lambda c: [str(i) for i in _indices(c)],
    (OPEN,),
)
INDEX = OpSpec(
    ("aten.index.Tensor",),
    Shared(),
    _lower_index,
    (_ONE_DIMENSION,),
    (
        Case("second", lambda torch: lambda x: x[:, [2, 0, -1]], ((2, 5, 3),), tolerance=0),
        Case("first", lambda torch: lambda x: x[[1, 1]], ((2, 5, 3),), tolerance=0),
    ),
    open_only=True,
    integers=("indices",),
    note="the indices may be an input, and are counted from the front then",
)


def _put_at(shape: tuple[int, ...], dim: int) -> Any:
    """A write at the places that are the largest of each row of an input."""

    def make(torch: Any) -> Any:
        def write(x: Any, scores: Any) -> Any:
            index, count = scores.argmax(-1), scores.shape[0]
            rows = x.narrow(dim, shape[dim] - count, count)
            return torch.index_copy(x, dim, index, rows)

        return write

    return make


INDEX_PUT = OpSpec(
    ("aten.index_put.default",),
    Shared(),
    _lower_index_put,
    (
        _ONE_DIMENSION,
        Constraint("Values must be put, not added", lambda c: not c.get("accumulate", False)),
        Constraint(
            "At most 64 rows can be put",
            lambda c: math.prod(_indices(c)[0].shape) <= 64,
            lambda c: math.prod(_indices(c)[0].shape),
        ),
    ),
    tuple(
        Case(f"{count} along {dim}", _put_at(shape, dim), (shape, (count, shape[dim])), tolerance=1)
        for shape, dim, count in (((1, 2, 6, 4), 2, 1), ((5, 3), 0, 2), ((2, 7), 1, 1))
    ),
    open_only=True,
    integers=("indices",),
    note="index_copy, scatter and slices written at an index become it; indices are counted from the front",
)
