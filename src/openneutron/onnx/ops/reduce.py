"""Reductions, and operators that pick or sort values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from openneutron.onnx.ops.window import global_average
from openneutron.onnx.spec import Call, Case, OnnxOp, Run, Unsupported, normalized
from openneutron.onnx.values import Tensor

Reduction = Callable[[Tensor, list[int], bool], Tensor]


def reduced_axes(call: Call, rank: int, input_since: int) -> list[int] | None:
    """The axes of a reduction, an attribute or an input; None: it does nothing."""
    if call.version < input_since:
        axes = call.attr("axes")
    else:
        axes = call.ints(1, "axes") if call.has(1) else None
    if not axes:
        return None if call.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({normalized(int(a), rank) for a in axes})


def _reduce(
    function: Reduction, input_since: int = 18, each: Callable[[Tensor], Tensor] | None = None
) -> Run:
    """A reduction; with no axes and noop_with_empty_axes, what it does to each element remains."""

    def run(call: Call) -> Tensor:
        x = call.tensor(0)
        axes = reduced_axes(call, x.dim(), input_since)
        if axes is None:
            return x if each is None else each(x)
        if not axes:  # a scalar
            return function(x.reshape(1), [0], False).to(x.dtype)
        return function(x, axes, bool(call.attr("keepdims", 1))).to(x.dtype)

    return run


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not x.is_floating_point():
        return torch.div(torch.sum(x, axes, keep), _count(x, axes), rounding_mode="trunc")
    if x.dim() == 4 and axes == [2, 3] and keep:  # what exporters make of a pooling over the whole image
        return global_average(x)
    return torch.mean(x, axes, keep)


def _count(x: Tensor, axes: list[int]) -> int:
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    return count


def _extreme(function: Callable[..., Tensor], of_bool: Callable[..., Tensor], low: bool) -> Reduction:
    def run(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if x.dtype == torch.bool:
            for axis in reversed(axes):
                x = of_bool(x, axis, keep)
            return x
        if not _count(x, axes):  # of nothing: the neutral element
            shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
            info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
            edge = (
                (float("-inf") if low else float("inf"))
                if x.is_floating_point()
                else (info.min if low else info.max)
            )
            return torch.full(shape, edge, dtype=x.dtype)
        return function(x, axes, keep)

    return run


def _prod(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keep)
    return x


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    real = x if x.is_floating_point() else x.double()
    return torch.logsumexp(real, axes, keep)


def _real(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.double()


def _arg(function: Callable[..., Tensor]) -> Run:
    def run(call: Call) -> Tensor:
        x = call.tensor(0)
        axis, keep = call.axis(0, x.dim()), bool(call.attr("keepdims", 1))
        if call.attr("select_last_index", 0):
            return x.shape[axis] - 1 - function(x.flip(axis), axis, keep)
        return function(x, axis, keep)

    return run


_FEW = 256


def _ranked(x: Tensor, axis: int, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """By counting what comes before each: ExecuTorch has kernels for that, and none for a stable sort."""
    moved = x.movedim(axis, -1)
    size = int(moved.shape[-1])
    column, row = moved.unsqueeze(-1), moved.unsqueeze(-2)
    earlier = torch.ones(size, size, dtype=torch.bool).tril(-1)
    before = (row > column if largest else row < column) | ((row == column) & earlier)
    rank = before.to(torch.int64).sum(-1)
    chosen = rank.unsqueeze(-2) == torch.arange(count).unsqueeze(-1)
    indices = (chosen.to(torch.int64) * torch.arange(size)).sum(-1).movedim(-1, axis)
    return torch.gather(x, axis, indices), indices


def _top_k(call: Call) -> tuple[Tensor, Tensor]:
    x = call.tensor(0)
    axis = call.axis(-1, x.dim())
    count = int(call.required("k")) if call.version < 10 else int(call.number(1, "k"))
    if not 0 <= count <= x.shape[axis]:
        raise Unsupported(f"k is {count}, the dimension has {x.shape[axis]} elements")
    if x.dtype == torch.uint64:
        x = x.to(torch.int64)
    # torch.topk leaves the order of equal values open; ONNX gives the lower index first.
    if x.is_floating_point() and count and x.shape[axis] <= _FEW:
        return _ranked(x, axis, count, bool(call.attr("largest", 1)))
    values, indices = torch.sort(x, dim=axis, descending=bool(call.attr("largest", 1)), stable=True)
    return values.narrow(axis, 0, count).to(call.tensor(0).dtype), indices.narrow(axis, 0, count)


def _non_zero(call: Call) -> Tensor:
    return torch.from_numpy(call.static(0)).nonzero().t().contiguous()


def _case(label: str, **attributes: object) -> Case:
    return Case(label, ((2, 3, 4, 5),), attributes, opset=11)


OPERATORS: tuple[OnnxOp, ...] = (
    OnnxOp("ReduceSum", 13, _reduce(_sum, 13), cases=(_case("axes attribute", axes=[1, -1], keepdims=0),)),
    OnnxOp("ReduceMean", 18, _reduce(_mean), cases=(_case("spatial", axes=[2, 3]),)),
    OnnxOp("ReduceMax", 20, _reduce(_extreme(torch.amax, torch.any, True)), cases=(_case("axes", axes=[2]),)),
    OnnxOp(
        "ReduceMin", 20, _reduce(_extreme(torch.amin, torch.all, False)), cases=(_case("axes", axes=[0]),)
    ),
    OnnxOp("ReduceProd", 18, _reduce(_prod), cases=(_case("axes", axes=[1, 2]),)),
    OnnxOp("ReduceL1", 18, _reduce(lambda x, a, k: _sum(x.abs(), a, k), each=torch.abs)),
    OnnxOp("ReduceL2", 18, _reduce(lambda x, a, k: torch.sqrt(_sum(_real(x) ** 2, a, k)), each=torch.abs)),
    OnnxOp("ReduceLogSum", 18, _reduce(lambda x, a, k: torch.log(_real(_sum(x, a, k))), each=torch.log)),
    OnnxOp("ReduceLogSumExp", 18, _reduce(_log_sum_exp)),
    OnnxOp("ReduceSumSquare", 18, _reduce(lambda x, a, k: _sum(x * x, a, k), each=torch.square)),
    OnnxOp("ArgMax", 13, _arg(torch.argmax), cases=(Case("keep", ((2, 3, 4),), {"axis": 1}),)),
    OnnxOp("ArgMin", 13, _arg(torch.argmin)),
    OnnxOp("TopK", 24, _top_k),
    OnnxOp("NonZero", 13, _non_zero, note="of constants"),
)
