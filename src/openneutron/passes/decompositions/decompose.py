"""Operators the table does not know, in terms of those it does.

A decomposition is a function with the operator's argument names, traced in the place of the call. Operators
that PyTorch itself composes of others need no entry: they are opened if everything inside is known here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from openneutron import ops
from openneutron.fx import bind_args, is_float, op_name, overload, tensor_of
from openneutron.passes.canonical.canonicalize import ARITHMETIC, IDENTITIES
from openneutron.passes.decompositions import attention, normalization, pools, recurrent, sorting
from openneutron.passes.decompositions import computed_kernels as kernels
from openneutron.passes.graph import inline, trace

Decomposition = Callable[..., Any]


def _slices(self: torch.Tensor, sizes: list[int], dim: int) -> tuple[torch.Tensor, ...]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        torch.ops.aten.slice.Tensor(self, dim, start, start + size)
        for start, size in zip(starts, sizes, strict=True)
    )


def _split(self: torch.Tensor, split_size: int, dim: int) -> tuple[torch.Tensor, ...]:
    total = self.shape[dim]
    sizes = [min(split_size, total - start) for start in range(0, total, split_size)]
    return _slices(self, sizes or [0], dim)


def _split_with_sizes(self: torch.Tensor, split_sizes: list[int], dim: int) -> tuple[torch.Tensor, ...]:
    return _slices(self, split_sizes, dim)


def _chunk(self: torch.Tensor, chunks: int, dim: int) -> tuple[torch.Tensor, ...]:
    return _split(self, -(-self.shape[dim] // chunks), dim)


def _unbind(self: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
    return tuple(part.squeeze(dim) for part in _split(self, 1, dim))


def _stack(tensors: list[torch.Tensor], dim: int) -> torch.Tensor:
    return torch.cat([t.unsqueeze(dim) for t in tensors], dim if dim >= 0 else dim + tensors[0].dim() + 1)


def _matmul(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """As mm or bmm; the leading dimensions become one, since only equal ones need no broadcasting."""
    if self.dim() == 1 or other.dim() == 1:
        left = self.unsqueeze(0) if self.dim() == 1 else self
        right = other.unsqueeze(1) if other.dim() == 1 else other
        product = _matmul(left, right)
        product = product.squeeze(-1) if other.dim() == 1 else product
        return product.squeeze(-1 if other.dim() == 1 else -2) if self.dim() == 1 else product
    if self.dim() == 2 and other.dim() == 2:
        return torch.mm(self, other)
    if other.dim() == 2:
        return torch.mm(self.reshape(-1, self.shape[-1]), other).reshape(*self.shape[:-1], other.shape[-1])
    lead = torch.broadcast_shapes(self.shape[:-2], other.shape[:-2])
    left, right = (
        t.expand(*lead, *t.shape[-2:]).reshape(-1, *t.shape[-2:])
        if t.dim() != 3 or t.shape[:-2] != lead
        else t
        for t in (self, other)
    )
    product = torch.bmm(left, right)
    return product if len(lead) == 1 else product.reshape(*lead, *product.shape[-2:])


def _var(self: torch.Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> torch.Tensor:
    return _var_correction(self, dim, 1 if unbiased else 0, keepdim)


def _var_correction(
    self: torch.Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False
) -> torch.Tensor:
    dims = list(range(self.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    count = 1
    for d in dims:
        count *= self.shape[d]
    centered = self - self.mean(dims, True)
    variance = (centered * centered).mean(dims, keepdim)
    correction = 1 if correction is None else correction
    return variance if correction == 0 else variance * (count / (count - correction))


def _roll(self: torch.Tensor, shifts: Any, dims: Any) -> torch.Tensor:
    if not dims:  # all elements in their order
        return _roll(self.reshape(-1), shifts, [0]).reshape(self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        shift %= self.shape[dim]
        if shift:
            tail, head = _slices(self, [self.shape[dim] - shift, shift], dim)
            self = torch.cat([head, tail], dim)
    return self


def _glu(self: torch.Tensor, dim: int) -> torch.Tensor:
    value, gate = _chunk(self, 2, dim)
    return value * gate.sigmoid()


def _pad(self: torch.Tensor, pad: list[int], mode: str, value: Any = None) -> torch.Tensor:
    """Padding with what is there already: the other end (circular), or the outermost (replicate)."""
    for index in range(0, len(pad), 2):  # the last dimension comes first
        dim, before, after = self.dim() - 1 - index // 2, pad[index], pad[index + 1]
        size = self.shape[dim]
        if mode == "circular":
            ends = [(size - before, size)][: before > 0], [(0, after)][: after > 0]
        else:
            ends = [(0, 1)] * before, [(size - 1, size)] * after
        first, last = ([torch.ops.aten.slice.Tensor(self, dim, *end) for end in side] for side in ends)
        self = torch.cat([*first, self, *last], dim) if first or last else self
    return self


def _var_mean(**kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    mean = _mean_of(**kwargs)
    return _var_correction(**kwargs), mean


def _std_mean(**kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    mean = _mean_of(**kwargs)
    return _var_correction(**kwargs).sqrt(), mean


def _mean_of(self: torch.Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> torch.Tensor:
    dims = list(range(self.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return self.mean(dims, keepdim)


def _flip(self: torch.Tensor, dims: list[int]) -> torch.Tensor:
    for dim in dims:
        places = torch.arange(self.shape[dim] - 1, -1, -1)
        self = torch.index_select(self, dim, places)
    return self


def _one_number(like: torch.Tensor, value: float) -> torch.Tensor:
    """A number as a tensor that broadcasts, and is folded into a constant."""
    return torch.full((1,) * min(like.dim(), 1), float(value), dtype=torch.float32)


def _masked_fill(self: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    filled = value if isinstance(value, torch.Tensor) else _one_number(self, value)
    return torch.where(mask, filled, self)


def _clamp_by_tensors(self: torch.Tensor, min: Any = None, max: Any = None) -> torch.Tensor:
    self = self if min is None else torch.maximum(self, min)
    return self if max is None else torch.minimum(self, max)


def _channel_shuffle(self: torch.Tensor, groups: int) -> torch.Tensor:
    batch, channels, *rest = self.shape
    split = self.reshape(batch, groups, channels // groups, *rest)
    return split.transpose(1, 2).reshape(self.shape)


def _cosine_similarity(x1: torch.Tensor, x2: torch.Tensor, dim: int, eps: float) -> torch.Tensor:
    parts = (x / torch.linalg.vector_norm(x, 2, dim, True).clamp_min(eps) for x in (x1, x2))
    return torch.mul(*parts).sum(dim)


def _bilinear(
    input1: torch.Tensor, input2: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """x1 W x2 for every W: a linear layer of x1 for all of them, then products with x2."""
    count, first, second = weight.shape
    rows = weight.permute(0, 2, 1).reshape(count * second, first)
    left = torch.nn.functional.linear(input1, rows).reshape(*input1.shape[:-1], count, second)
    product = (left * input2.unsqueeze(-2)).sum(-1)
    return product if bias is None else product + bias


def _unfold(
    self: torch.Tensor, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> torch.Tensor:
    """A slice for each place in the window, side by side as channels."""
    padded = torch.nn.functional.pad(self, (padding[1], padding[1], padding[0], padding[0]))
    counts = [
        (d - step * (k - 1) - 1) // s + 1
        for d, k, step, s in zip(padded.shape[-2:], kernel_size, dilation, stride, strict=True)
    ]
    places = [
        torch.ops.aten.slice.Tensor(
            torch.ops.aten.slice.Tensor(
                padded, -2, y * dilation[0], y * dilation[0] + (counts[0] - 1) * stride[0] + 1, stride[0]
            ),
            -1,
            x * dilation[1],
            x * dilation[1] + (counts[1] - 1) * stride[1] + 1,
            stride[1],
        )
        for y in range(kernel_size[0])
        for x in range(kernel_size[1])
    ]
    channels = self.shape[-3] * len(places)
    return torch.stack(places, -3).reshape(*self.shape[:-3], channels, counts[0] * counts[1])


def _triangle(lower: bool) -> Decomposition:
    def decompose(self: torch.Tensor, diagonal: int) -> torch.Tensor:
        # In integers: they are folded, and not taken for a triangle to be decomposed again.
        rows, columns = (torch.arange(size) for size in self.shape[-2:])
        above = columns - rows.unsqueeze(1) - diagonal
        kept = (1 - above if lower else 1 + above).clamp(0, 1)
        return self * kept.to(torch.float32)

    return decompose


def _remainder(mode: str) -> Decomposition:
    """What is left after a whole number of times; the sign is the divisor's (floor) or the dividend's."""
    return lambda self, other: self - torch.div(self, other, rounding_mode=mode) * other


def _fold(
    self: torch.Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> torch.Tensor:
    """Windows added where they overlap: a transposed convolution in which each channel has one place."""
    taps = kernel_size[0] * kernel_size[1]
    channels = self.shape[-2] // taps
    counts = [
        (size + 2 * pad - step * (k - 1) - 1) // s + 1
        for size, pad, step, k, s in zip(output_size, padding, dilation, kernel_size, stride, strict=True)
    ]
    extra = [
        size - ((n - 1) * s - 2 * pad + step * (k - 1) + 1)
        for size, n, s, pad, step, k in zip(
            output_size, counts, stride, padding, dilation, kernel_size, strict=True
        )
    ]
    windows = self.reshape(-1, channels * taps, *counts)
    weight = torch.eye(taps).reshape(taps, 1, *kernel_size).repeat(channels, 1, 1, 1)
    summed = torch.nn.functional.conv_transpose2d(
        windows, weight, None, stride, padding, extra, channels, dilation
    )
    return summed.reshape(*self.shape[:-2], channels, *output_size)


def _copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    """What is written over a whole tensor, in its type and shape."""
    return src.to(self.dtype).expand(self.shape)


DECOMPOSITIONS: dict[str, Decomposition] = {
    "aten.split.Tensor": _split,
    "aten.split_with_sizes.default": _split_with_sizes,
    "aten.split.sizes": lambda self, split_size, dim: _slices(self, split_size, dim),
    "aten.chunk.default": _chunk,
    "aten.unbind.int": _unbind,
    "aten.stack.default": _stack,
    "aten.matmul.default": _matmul,
    "aten.max.default": lambda self: self.amax(list(range(self.dim()))),
    "aten.min.default": lambda self: self.amin(list(range(self.dim()))),
    "aten.var.correction": _var_correction,
    "aten.var.dim": _var,
    "aten.var.default": _var,
    "aten.std.correction": lambda **kwargs: _var_correction(**kwargs).sqrt(),
    "aten.std.dim": lambda **kwargs: _var(**kwargs).sqrt(),
    "aten.var_mean.correction": _var_mean,
    "aten.std_mean.correction": _std_mean,
    "aten.roll.default": _roll,
    "aten.flip.default": _flip,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.where.ScalarOther": lambda condition, self, other: torch.where(
        condition, self, _one_number(self, other)
    ),
    "aten.where.ScalarSelf": lambda condition, self, other: torch.where(
        condition, _one_number(other, self), other
    ),
    "aten.clamp.Tensor": _clamp_by_tensors,
    "aten.exp2.default": lambda self: torch.exp(self * math.log(2.0)),
    "aten.softshrink.default": lambda self, lambd: self - torch.clamp(self, -lambd, lambd),
    "aten.hardshrink.default": lambda self, lambd: torch.where(
        self.abs() > lambd, self, _one_number(self, 0)
    ),
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.cosine_similarity.default": _cosine_similarity,
    "aten.bilinear.default": _bilinear,
    "aten.im2col.default": _unfold,
    "aten.tril.default": _triangle(True),
    "aten.triu.default": _triangle(False),
    "aten.dot.default": lambda self, tensor: (self * tensor).sum(),
    "aten.lerp.Scalar": lambda self, end, weight: self + (end - self) * weight,
    "aten.lerp.Tensor": lambda self, end, weight: self + (end - self) * weight,
    "aten.remainder.Scalar": _remainder("floor"),
    "aten.remainder.Tensor": _remainder("floor"),
    "aten.fmod.Scalar": _remainder("trunc"),
    "aten.fmod.Tensor": _remainder("trunc"),
    "aten.frac.default": lambda self: self - self.trunc(),
    "aten.hypot.default": lambda self, other: (self * self + other * other).sqrt(),
    "aten.copysign.Tensor": lambda self, other: torch.where(other < 0, -self.abs(), self.abs()),
    "aten.copysign.Scalar": lambda self, other: self.abs() * math.copysign(1, other),
    "aten.heaviside.default": lambda self, values: torch.where(
        self == 0, values, torch.where(self > 0, 1.0, torch.zeros_like(self))
    ),
    "aten.sgn.default": lambda self: torch.sign(self),
    "aten.fmax.default": lambda self, other: torch.maximum(self, other),
    "aten.fmin.default": lambda self, other: torch.minimum(self, other),
    "aten.erfc.default": lambda self: 1 - torch.erf(self),
    "aten.logaddexp.default": lambda self, other: (
        torch.maximum(self, other) + (-(self - other).abs()).exp().log1p()
    ),
    "aten.xlogy.Tensor": lambda self, other: self * other.log(),
    "aten.rad2deg.default": lambda self: self * (180 / math.pi),
    "aten.deg2rad.default": lambda self: self * (math.pi / 180),
    "aten.rrelu.default": lambda self, lower, upper, **_: torch.nn.functional.leaky_relu(
        self, (lower + upper) / 2
    ),
    "aten.unsafe_split.Tensor": _split,
    "aten.unsafe_split_with_sizes.default": _split_with_sizes,
    "aten.unsafe_chunk.default": _chunk,
    "aten.col2im.default": _fold,
    "aten.copy.default": _copy,
    "aten.fill.Scalar": lambda self, value: torch.full_like(self, value),
    "aten.fill.Tensor": lambda self, value: value.to(self.dtype).expand(self.shape),
    "aten.zero.default": lambda self: torch.zeros_like(self),
    "aten.square.default": lambda self: self * self,
    "aten.round.decimals": lambda self, decimals: torch.round(self * 10.0**decimals) * 10.0**-decimals,
    "aten.glu.default": _glu,
    "aten.addcmul.default": lambda self, tensor1, tensor2, value: self + tensor1 * tensor2 * value,
    "aten.addcdiv.default": lambda self, tensor1, tensor2, value: self + tensor1 / tensor2 * value,
    "aten.baddbmm.default": lambda self, batch1, batch2, beta, alpha: (
        self * beta + torch.bmm(batch1, batch2) * alpha
    ),
    **attention.DECOMPOSITIONS,
    **normalization.DECOMPOSITIONS,
    **pools.DECOMPOSITIONS,
    **recurrent.DECOMPOSITIONS,
    **sorting.DECOMPOSITIONS,
}

_DECOMPOSED = frozenset((*DECOMPOSITIONS, *recurrent.LAYERS))
# Not in the table, but brought into its form by another pass.
_REWRITTEN = frozenset(ARITHMETIC) | {"aten.rsub.Scalar", "aten.dropout.default"}


def decompose_unsupported(model: GraphModule) -> bool:
    """Replace every operator the table does not have by its decomposition, and the parts of that in turn."""
    pending = [node for node in model.graph.nodes if node.op == "call_function"]
    changed = False
    while pending:
        node = pending.pop()
        if (replacement := _expansion(node)) is not None:
            pending += inline(node, replacement)
            changed = True
    return changed


def _expansion(node: Node) -> GraphModule | None:
    name = op_name(node)
    if name in _CASTS and _is_cast_of_truth(node):
        return trace(node, lambda self, **_: torch.where(self, _one_number(self, 1), _one_number(self, 0)))
    if name in _OF_TRUTHS and _is_truth(node) and all(map(_is_truth, node.all_input_nodes)):
        return trace(node, _OF_TRUTHS[name])
    if name == "aten.fft_rfft.default" and _transforms_inner(node):
        return trace(node, _spectrum_along_last)
    if name == "aten.abs.default" and _is_complex(node.all_input_nodes[0]):
        return trace(node, _magnitude)
    if name == "aten.max_pool2d_with_indices.default" and _reads(node, 0) and _reads(node, 1):
        return trace(node, pools.values_and_places)
    if name == "aten.topk.default" and not _reads(node, 1) and is_float(node.all_input_nodes[0]):
        return trace(node, sorting.top_values) if sorting.pays(node) else None
    if name in sorting.WITH_INDICES and is_float(node.all_input_nodes[0]):
        return trace(node, sorting.WITH_INDICES[name])
    if not name or name in _REWRITTEN or not _is_float_call(node):
        return None
    if name in _ROUNDING and not isinstance(bind_args(node)["other"], Node):
        return trace(node, _divide_by_number)
    if name == "aten.pad.default":  # the table has it, but not these modes
        args = bind_args(node)
        if args["mode"] in ("circular", "replicate") and min(args["pad"]) >= 0:
            return trace(node, _pad)
    if name in ("aten.avg_pool1d.default", "aten.avg_pool2d.default") and pools.counts_beyond(
        bind_args(node)
    ):
        return trace(node, pools.average)
    if kernels.has_computed_kernel(node):
        return trace(node, kernels.convolve)
    if kernels.has_computed_weights(node):
        return trace(node, kernels.multiply)
    if name in recurrent.LAYERS:
        return recurrent.unroll(node)
    if (function := DECOMPOSITIONS.get(name)) is not None:
        return trace(node, function)
    return _open_composite(node) if ops.find(name) is None else None


_ROUNDING = ("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.default",
             "aten.floor_divide.Scalar")  # fmt: skip


def _divide_by_number(self: torch.Tensor, other: float, rounding_mode: str | None = "floor") -> torch.Tensor:
    return torch.div(self, _one_number(self, other), rounding_mode=rounding_mode)


# `a & b` of two conditions.
_OF_TRUTHS: dict[str, Decomposition] = {
    "aten.__and__.Tensor": lambda self, other: torch.logical_and(self, other),
    "aten.__or__.Tensor": lambda self, other: torch.logical_or(self, other),
    "aten.__xor__.Tensor": lambda self, other: torch.ne(self, other),
    "aten.bitwise_and.Tensor": lambda self, other: torch.logical_and(self, other),
    "aten.bitwise_or.Tensor": lambda self, other: torch.logical_or(self, other),
    "aten.bitwise_not.default": lambda self: torch.logical_not(self),
    "aten.bitwise_xor.Tensor": lambda self, other: torch.ne(self, other),
    "aten.logical_xor.default": lambda self, other: torch.ne(self, other),
}
_CASTS = ("aten.to.dtype", "aten._to_copy.default", "aten.to.dtype_layout")


def _is_complex(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.is_complex()


def _transforms_inner(node: Node) -> bool:
    """Whether a spectrum is taken along another dimension than the last, which ExecuTorch's kernel wants."""
    tensor = tensor_of(node)
    return tensor is not None and bind_args(node)["dim"] % tensor.dim() != tensor.dim() - 1


def _spectrum_along_last(self: torch.Tensor, n: int | None, dim: int, norm: str | None) -> torch.Tensor:
    return torch.fft.rfft(self.transpose(dim, -1).contiguous(), n, -1, norm).transpose(dim, -1)


def _magnitude(self: torch.Tensor) -> torch.Tensor:
    """Of a spectrum: Edge has no operator from complex numbers to float but the view of their parts."""
    parts = torch.view_as_real(self)
    return (parts.select(-1, 0).square() + parts.select(-1, 1).square()).sqrt()


def _is_truth(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dtype == torch.bool


def _is_cast_of_truth(node: Node) -> bool:
    result = tensor_of(node)
    from_truth = bool(node.all_input_nodes) and _is_truth(node.all_input_nodes[0])
    return from_truth and result is not None and result.dtype == torch.float32


def _reads(node: Node, result: int) -> bool:
    """Whether somebody reads one of several results."""
    picks = [u for u in node.users if u.target is operator.getitem and u.args[1] == result]
    return any(_is_read(user, 4) for pick in picks for user in pick.users)


def _is_read(node: Node, depth: int) -> bool:
    """Whether what a node computes reaches anything; a decomposition may compute what nobody wants."""
    return node.op == "output" or depth == 0 or any(_is_read(user, depth - 1) for user in node.users)


def _is_float_call(node: Node) -> bool:
    """Whether a node has a float input and float results, of those that are read, as quantized ones do."""
    results = [u for u in node.users if u.target is operator.getitem and u.users] or [node]
    return any(is_float(n) for n in node.all_input_nodes) and all(is_float(n) for n in results)


def _open_composite(node: Node) -> GraphModule | None:
    """What PyTorch computes inside an operator that it composes of others, if all of that is known here."""
    op = overload(node)
    if op is None or op.namespace != "aten" or not op._can_decompose():
        return None
    try:
        opened = trace(node, op, pre_dispatch=False)
    except (RuntimeError, TypeError):
        return None  # it needs values, or tensors that only exist at run time; it stays as it is
    return opened if all(_is_known(n) for n in opened.graph.nodes) else None


def _is_known(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op != "get_attr"
    name = op_name(node)
    return ops.find(name) is not None or name in _REWRITTEN or name in _DECOMPOSED or name in IDENTITIES
