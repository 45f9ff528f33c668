"""What the selection rules share: the context, checks on operands, strided walks of up to six dims."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from openneutron.compiler.microcode.format import MAX_RANK, Copy, KernelCall, Ref, View
from openneutron.compiler.select.constants import ConstPool
from openneutron.litert.ir import DTYPES, Op, Tensor

RefOf = Callable[[Tensor], Ref]


@dataclass(frozen=True)
class Context:
    """What a rule is given besides the op."""

    ref: RefOf
    pool: ConstPool
    pitch: Callable[[Tensor], int] = lambda tensor: 0  # see `storage.Place`

    def place(self, tensor: Tensor) -> Ref:
        """Where a tensor is: a constant goes into the pool."""
        return self.pool.add(tensor.array) if tensor.is_const else self.ref(tensor)

    def strides(self, tensor: Tensor) -> list[int]:
        """Bytes between neighbours along every axis."""
        strides = dense_strides(tensor.shape, element_bytes(tensor))
        pitch = 0 if tensor.is_const else self.pitch(tensor)
        return [s // tensor.shape[-1] * pitch for s in strides[:-1]] + strides[-1:] if pitch else strides

    def view(self, tensor: Tensor) -> View:
        """An NHWC feature map."""
        strides = self.strides(tensor)
        return View(self.place(tensor), strides[2], strides[1])


class Gaps(Enum):
    """Where a rule's calls take tensors with gaps between the runs of the last axis, pixels for one."""

    NONE = "none"
    READ = "operands"
    BOTH = "operands and result"


@dataclass(frozen=True)
class KernelRule:
    """How one operator is computed, and what keeps it from being computed: a sentence or an empty string."""

    calls: Callable[[Op, Context], list[KernelCall]]
    problem: Callable[[Op], str]
    gaps: Gaps = Gaps.NONE
    in_place: bool = False  # its kernel reads each element before it writes it
    updates: bool = False  # it changes a part of its first operand, whose memory the result may take


def int8_problem(*tensors: Tensor) -> str:
    """The problem of tensors that should be int8 with one scale."""
    for t in tensors:
        if t.dtype != "int8" or t.quant is None or not t.quant.is_per_tensor:
            quant = "" if t.quant is None or t.quant.is_per_tensor else " quantized per axis"
            return f"{t.name} is {t.dtype}{quant}, not int8 with one scale"
        if not -128 <= t.quant.zero_point[0] <= 127:
            return f"{t.name} has the zero point {t.quant.zero_point[0]}, which is not an int8"
    return ""


def const_problem(what: str, tensor: Tensor | None) -> str:
    """The problem of a parameter that should be a constant."""
    return "" if tensor is not None and tensor.is_const else f"its {what} must be a constant"


def int8_io_problem(op: Op) -> str:
    """The problem of an op whose first input or output is not int8."""
    return int8_problem(op.operand(0), *op.outputs)


def dense_strides(shape: Sequence[int], element: int = 1) -> list[int]:
    """Byte strides of a dense row-major tensor."""
    strides = [element] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides


def broadcast_strides(
    shape: Sequence[int], out: Sequence[int], strides: Sequence[int] | None = None
) -> list[int]:
    """Byte strides of an int8 tensor walked over a broadcast shape: 0 where it is repeated."""
    more = len(out) - len(shape)
    padded = [1] * more + list(shape)
    own = dense_strides(padded) if strides is None else [0] * more + list(strides)
    return [0 if d == 1 else s for d, s in zip(padded, own, strict=True)]


@dataclass(frozen=True)
class Walk:
    """Dims and the byte strides of each operand, merged where all operands allow it, padded to six dims."""

    dims: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def merged(dims: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """The same walk in as few dims as possible: axes of length 1 dropped, neighbours joined."""
    kept = [a for a, d in enumerate(dims) if d != 1]
    out_dims: list[int] = []
    out_strides: list[list[int]] = [[] for _ in strides]
    for axis in reversed(kept):
        joins = bool(out_dims) and all(
            s[axis] == out[0] * out_dims[0] for s, out in zip(strides, out_strides, strict=True)
        )
        if joins:
            out_dims[0] *= dims[axis]
        else:
            out_dims.insert(0, dims[axis])
            for s, out in zip(strides, out_strides, strict=True):
                out.insert(0, s[axis])
    return out_dims, out_strides


def walk(dims: Sequence[int], *strides: Sequence[int]) -> Walk:
    """A walk that fits the microcode."""
    short, short_strides = merged(dims, strides)
    assert len(short) <= MAX_RANK, f"{list(dims)} does not fit {MAX_RANK} dims"
    pad = MAX_RANK - len(short)
    return Walk((1,) * pad + tuple(short), tuple((0,) * pad + tuple(s) for s in short_strides))


def copies(
    source: Ref, target: Ref, dims: Sequence[int], source_strides: Sequence[int],
    target_strides: Sequence[int], element: int,
) -> list[KernelCall]:  # fmt: skip
    """Copy calls for a strided walk of any rank: what exceeds six dims is unrolled from the outside."""
    short, (ins, outs) = merged(dims, (source_strides, target_strides))
    if len(short) > MAX_RANK:
        calls: list[KernelCall] = []
        for i in range(short[0]):
            calls += copies(
                source.plus(i * ins[0]), target.plus(i * outs[0]), short[1:], ins[1:], outs[1:], element
            )
        return calls
    fitted = walk(short, ins, outs)
    return [Copy(source, target, element, fitted.dims, fitted.strides[0], fitted.strides[1])]


def plain_copy(source: Ref, target: Ref, nbytes: int) -> list[KernelCall]:
    """A copy of bytes as they are."""
    return copies(source, target, (nbytes,), (1,), (1,), 1)


def element_bytes(tensor: Tensor) -> int:
    """Bytes of one element."""
    return DTYPES[tensor.dtype]


def ints(tensor: Tensor) -> list[int]:
    """The values of a constant parameter tensor."""
    return [int(v) for v in np.atleast_1d(tensor.array).reshape(-1)]


def product(values: Sequence[int]) -> int:
    """The product, 1 for none."""
    return math.prod(values)
