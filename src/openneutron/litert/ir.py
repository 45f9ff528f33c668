"""The LiteRT intermediate representation: Graph, Op, Tensor, Quant, and what makes a graph legal.

A graph is a list of ops in execution order over shared tensor objects. Tensors compare by identity; a tensor
with `data` is a constant. Parameters that LiteRT keeps in tensors (permutations, paddings, axes, shapes) are
constant inputs here too, so that what is in memory is what is in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from openneutron.diagnostics import fail


class Builtin(IntEnum):
    """LiteRT builtin operators this project reads or writes (values of the LiteRT schema)."""

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    FULLY_CONNECTED = 9
    L2_NORMALIZATION = 11
    LOGISTIC = 14
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU_N1_TO_1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    TANH = 28
    CUSTOM = 32
    PAD = 34
    GATHER = 36
    BATCH_TO_SPACE_ND = 37
    SPACE_TO_BATCH_ND = 38
    TRANSPOSE = 39
    MEAN = 40
    SUB = 41
    DIV = 42
    SQUEEZE = 43
    STRIDED_SLICE = 45
    EXP = 47
    SPLIT = 49
    LOG_SOFTMAX = 50
    CAST = 53
    PRELU = 54
    MAXIMUM = 55
    ARG_MAX = 56
    MINIMUM = 57
    NEG = 59
    PADV2 = 60
    SLICE = 65
    SIN = 66
    TRANSPOSE_CONV = 67
    TILE = 69
    EXPAND_DIMS = 70
    LOG = 73
    SUM = 74
    SQRT = 75
    RSQRT = 76
    SHAPE = 77
    POW = 78
    REDUCE_MAX = 82
    PACK = 83
    UNPACK = 88
    REDUCE_MIN = 89
    SQUARE = 92
    RESIZE_NEAREST_NEIGHBOR = 97
    LEAKY_RELU = 98
    SQUARED_DIFFERENCE = 99
    MIRROR_PAD = 100
    ABS = 101
    SPLIT_V = 102
    COS = 108
    ELU = 111
    QUANTIZE = 114
    HARD_SWISH = 117
    BATCH_MATMUL = 126
    BROADCAST_TO = 130
    GELU = 150
    RELU_0_TO_1 = 152
    SIGN = 158


class Padding(IntEnum):
    """How a window operator pads (values of the LiteRT schema)."""

    SAME = 0
    VALID = 1


class Activation(IntEnum):
    """Fused activations (values of the LiteRT schema)."""

    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3


@dataclass(frozen=True)
class Quant:
    """Affine quantization: real = scale * (q - zero_point), per tensor or along one axis."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0

    @staticmethod
    def per_tensor(scale: float, zero_point: int = 0) -> Quant:
        """One scale and zero point for the whole tensor; the scale is rounded to float32, as in the file."""
        return Quant((float(np.float32(scale)),), (int(zero_point),))

    @staticmethod
    def per_axis(scales: np.ndarray, zero_points: np.ndarray | None = None, axis: int = 0) -> Quant:
        """One scale (and zero point, 0 by default) for each index along `axis`."""
        zeros = np.zeros(len(scales), np.int64) if zero_points is None else zero_points
        return Quant(tuple(float(np.float32(s)) for s in scales), tuple(int(z) for z in zeros), axis)

    @property
    def is_per_tensor(self) -> bool:
        return len(self.scale) == 1

    def __str__(self) -> str:
        if self.is_per_tensor:
            return f"{self.scale[0]:.6g}@{self.zero_point[0]}"
        return f"per-axis[{len(self.scale)}]@{self.axis}"


DTYPES = {"float32": 4, "int32": 4, "int8": 1, "int64": 8, "int16": 2, "uint8": 1, "bool": 1}


@dataclass(eq=False)
class Tensor:
    """A value of the graph: static shape, element type, quantization; a constant if it has data."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "int8"
    quant: Quant | None = None
    data: np.ndarray | None = None

    @property
    def is_const(self) -> bool:
        return self.data is not None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPES[self.dtype]

    @property
    def array(self) -> np.ndarray:
        """The data of a constant."""
        assert self.data is not None, f"{self.name} is not a constant"
        return self.data

    def __repr__(self) -> str:
        quant = f" {self.quant}" if self.quant else ""
        return f"{'const ' if self.is_const else ''}{self.name}: {self.dtype}{list(self.shape)}{quant}"


def constant(name: str, data: np.ndarray, quant: Quant | None = None) -> Tensor:
    """A constant tensor; its shape and type are those of the data."""
    array = np.ascontiguousarray(data).reshape(data.shape)
    return Tensor(name, tuple(int(d) for d in data.shape), str(data.dtype), quant, array)


@dataclass(eq=False)
class Op:
    """One operator call. `options` has the schema's field names; `origin` names the source nodes."""

    kind: Builtin
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    origin: tuple[str, ...] = ()
    custom_name: str = ""

    @property
    def output(self) -> Tensor:
        """The only output."""
        assert len(self.outputs) == 1, f"{self.kind.name} has {len(self.outputs)} outputs"
        return self.outputs[0]

    def operand(self, index: int) -> Tensor:
        """The input at `index`, which must be present."""
        tensor = self.inputs[index]
        assert tensor is not None, f"{self.kind.name} has no input {index}"
        return tensor

    def __repr__(self) -> str:
        ins = ", ".join(t.name if t is not None else "-" for t in self.inputs)
        options = "".join(f" {k}={v}" for k, v in self.options.items())
        return f"{', '.join(t.name for t in self.outputs)} = {self.kind.name}({ins}){options}"


@dataclass(eq=False)
class Graph:
    """A static dataflow graph: inputs, outputs, and ops in execution order."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    ops: list[Op]
    name: str = "main"

    def tensors(self) -> list[Tensor]:
        """Every tensor once: inputs first, then in order of appearance."""
        seen: dict[int, Tensor] = {id(t): t for t in self.inputs}
        for op in self.ops:
            for t in (*op.inputs, *op.outputs):
                if t is not None:
                    seen.setdefault(id(t), t)
        for t in self.outputs:
            seen.setdefault(id(t), t)
        return list(seen.values())

    def producers(self) -> dict[Tensor, Op]:
        """The op that makes each non-constant, non-input tensor."""
        return {t: op for op in self.ops for t in op.outputs}

    def consumers(self) -> dict[Tensor, list[Op]]:
        """The ops that read each tensor, in order; an op that reads it twice is listed once."""
        result: dict[Tensor, list[Op]] = {}
        for op in self.ops:
            for t in dict.fromkeys(t for t in op.inputs if t is not None):
                result.setdefault(t, []).append(op)
        return result

    def __str__(self) -> str:
        lines = [f"graph {self.name}({', '.join(map(repr, self.inputs))})"]
        lines += [
            f"  {op!r} : {', '.join(f'{t.dtype}{list(t.shape)} {t.quant or str()}' for t in op.outputs)}"
            for op in self.ops
        ]
        lines.append(f"  return {', '.join(t.name for t in self.outputs)}")
        return "\n".join(lines)

    def verify(self) -> Graph:
        """Check every rule of a legal graph; returns the graph so that stages can end in `.verify()`."""
        problems = list(_problems(self))
        if problems:
            fail(
                "ON301", self.name, "; ".join(problems[:5]), "This is a bug in OpenNeutron; please report it."
            )
        return self


def _problems(graph: Graph) -> Iterator[str]:
    """Every breach of the IR's rules, as a sentence."""
    defined = set(map(id, graph.inputs))
    if len(defined) != len(graph.inputs):
        yield "an input is listed twice"
    for t in graph.inputs:
        if t.is_const:
            yield f"input {t.name} is a constant"
    for op in graph.ops:
        for source in op.inputs:
            if source is not None and not source.is_const and id(source) not in defined:
                yield f"{op!r} reads {source.name} before it is made"
        for t in op.outputs:
            if id(t) in defined or t.is_const:
                yield f"{op!r} writes {t.name}, which is already defined"
            defined.add(id(t))
        yield from _op_problems(op)
    for t in graph.outputs:
        if id(t) not in defined and not t.is_const:
            yield f"output {t.name} is never made"
    names: set[str] = set()
    for t in graph.tensors():
        if t.name in names:
            yield f"two tensors are named {t.name}"
        names.add(t.name)
        yield from _tensor_problems(t)


def _tensor_problems(t: Tensor) -> Iterator[str]:
    if t.dtype not in DTYPES:
        yield f"{t.name} has unknown type {t.dtype}"
    if any(d < 0 for d in t.shape):
        yield f"{t.name} has a negative dimension {t.shape}"
    if t.dtype == "int8" and t.quant is None:
        yield f"{t.name} is int8 without quantization"
    if t.data is not None and (t.data.shape != t.shape or str(t.data.dtype) != t.dtype):
        yield f"{t.name} is {t.dtype}{list(t.shape)}, its data {t.data.dtype}{list(t.data.shape)}"
    q = t.quant
    if q is None:
        return
    if any(not (s > 0 and math.isfinite(s)) for s in q.scale):
        yield f"{t.name} has a scale that is not a positive number"
    if len(q.scale) != len(q.zero_point):
        yield f"{t.name} has {len(q.scale)} scales and {len(q.zero_point)} zero points"
    if not q.is_per_tensor and (q.axis >= t.rank or t.shape[q.axis] != len(q.scale)):
        yield f"{t.name} has {len(q.scale)} scales for axis {q.axis} of {t.shape}"


# Ops whose output must have exactly the quantization of their (first) activation input: they move values.
MOVES_DATA = frozenset({
    Builtin.RESHAPE, Builtin.SQUEEZE, Builtin.EXPAND_DIMS, Builtin.TRANSPOSE, Builtin.SLICE,
    Builtin.STRIDED_SLICE,
    Builtin.PAD, Builtin.MIRROR_PAD, Builtin.MAX_POOL_2D, Builtin.DEPTH_TO_SPACE, Builtin.SPACE_TO_DEPTH,
    Builtin.RESIZE_NEAREST_NEIGHBOR, Builtin.TILE, Builtin.BROADCAST_TO, Builtin.GATHER, Builtin.PACK,
    Builtin.UNPACK, Builtin.SPLIT, Builtin.SPLIT_V,
})  # fmt: skip


def _op_problems(op: Op) -> Iterator[str]:
    if op.kind in MOVES_DATA and op.inputs and op.kind is not Builtin.SPLIT:
        source = op.operand(0)
        for t in op.outputs:
            if t.dtype != source.dtype or t.quant != source.quant:
                yield f"{op!r} changes type or quantization ({source!r} -> {t!r})"
    if op.kind in (Builtin.RESHAPE, Builtin.TRANSPOSE) and op.operand(0).elements != op.output.elements:
        yield f"{op!r} changes the number of elements"
    if op.kind is Builtin.TRANSPOSE:
        source, perm = op.operand(0), op.operand(1)
        if perm.is_const and tuple(source.shape[int(p)] for p in perm.array) != op.output.shape:
            yield f"{op!r}: permutation {perm.array.tolist()} of {source.shape} is not {op.output.shape}"
