"""What shape operators mean: slices as begin and size, axes as non-negative numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from openneutron.litert.ir import Builtin, Op, Tensor


@dataclass(frozen=True)
class Box:
    """A dense box of a tensor: where it begins and how large it is, along every axis."""

    begin: tuple[int, ...]
    size: tuple[int, ...]

    def is_contiguous(self, shape: tuple[int, ...]) -> bool:
        """Whether the box is one run of bytes: inside the first axis longer than 1, everything is taken."""
        outer = next((axis for axis, length in enumerate(self.size) if length != 1), len(self.size))
        return self.size[outer + 1 :] == shape[outer + 1 :]

    def flat_begin(self, shape: tuple[int, ...]) -> int:
        """The index of its first element in row-major order."""
        return int(np.ravel_multi_index(self.begin, shape)) if math.prod(self.size) and shape else 0


def slice_of(op: Op) -> Box | None:
    """The box a SLICE or STRIDED_SLICE takes; None for other ops and for strides other than 1."""
    if op.kind is Builtin.SLICE and op.operand(1).is_const:
        begin = tuple(int(b) for b in op.operand(1).array)
        return Box(begin, op.output.shape)
    if op.kind is Builtin.STRIDED_SLICE and all(op.operand(i).is_const for i in (1, 2, 3)):
        return _strided(op)
    return None


def _strided(op: Op) -> Box | None:
    source = op.operand(0)
    begins, ends, strides = (op.operand(i).array.tolist() for i in (1, 2, 3))
    if any(op.options.get(key) for key in ("ellipsisMask", "newAxisMask", "shrinkAxisMask", "offset")):
        return None  # legalization rewrites the masks; what it leaves is for the kernel to judge
    if any(s != 1 for s in strides) or len(begins) != source.rank:
        return None
    begin, size = [], []
    for axis, length in enumerate(source.shape):
        first = 0 if op.options.get("beginMask", 0) >> axis & 1 else _clip(begins[axis], length)
        last = length if op.options.get("endMask", 0) >> axis & 1 else _clip(ends[axis], length)
        begin.append(first)
        size.append(max(0, last - first))
    return Box(tuple(begin), tuple(size)) if tuple(size) == op.output.shape else None


def resolve_strided_slice(op: Op) -> tuple[list[int], list[int], list[int], list[int]]:
    """Begin, end, stride and size along every axis of the source, masks applied."""
    shape = op.operand(0).shape
    begins, ends, strides = (op.operand(i).array.tolist() for i in (1, 2, 3))

    def bit(mask: str, index: int) -> bool:
        return bool(int(op.options.get(mask, 0)) >> index & 1)

    specs: list[slice | int] = []
    given = sum(not bit("newAxisMask", i) and not bit("ellipsisMask", i) for i in range(len(begins)))
    for i, (b, e, s) in enumerate(zip(begins, ends, strides, strict=True)):
        if bit("ellipsisMask", i):
            specs += [slice(None)] * (len(shape) - given)
        elif bit("newAxisMask", i):
            continue  # a new axis of length 1 is in the output's shape only
        elif bit("shrinkAxisMask", i):
            specs.append(b)
        else:
            e = b + e if op.options.get("offset") else e
            specs.append(slice(None if bit("beginMask", i) else b, None if bit("endMask", i) else e, s))
    specs += [slice(None)] * (len(shape) - len(specs))
    result: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
    for spec, length in zip(specs, shape, strict=True):
        if isinstance(spec, int):
            first = spec + length if spec < 0 else spec
            values = (first, first + 1, 1, 1)
        else:
            first, last, step = spec.indices(length)
            values = (first, last, step, len(range(first, last, step)))
        for target, value in zip(result, values, strict=True):
            target.append(value)
    return result


def _clip(index: int, length: int) -> int:
    return min(max(index + length if index < 0 else index, 0), length)


def concat_axis(op: Op) -> int:
    """The axis of a CONCATENATION, counted from the front."""
    axis = int(op.options.get("axis", 0))
    return axis + op.output.rank if axis < 0 else axis


def axes_of(tensor: Tensor, rank: int) -> tuple[int, ...]:
    """The values of a constant axis tensor, counted from the front, sorted, each once."""
    return tuple(sorted({int(a) % rank if rank else 0 for a in np.atleast_1d(tensor.array)}))
