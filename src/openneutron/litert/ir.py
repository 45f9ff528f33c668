"""The LiteRT intermediate representation: Graph, Op, Tensor, Quant, and what makes a graph legal.

A graph is a list of ops in execution order over shared tensor objects. Tensors compare by identity; a tensor
with `data` is a constant. Parameters that LiteRT keeps in tensors (permutations, paddings, axes, shapes) are
constant inputs here too, so that what is in memory is what is in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Flag, IntEnum, auto
from functools import cache, cached_property
from typing import Any

import numpy as np

from openneutron.diagnostics import fail


class Trait(Flag):
    """What an operator is, whoever asks: every list of operators in this project is made from these."""

    UNARY = auto()  # a function of each element of its operand alone
    BINARY = auto()  # a function of the elements of two operands, which broadcast
    TERNARY = auto()  # the same of three
    ROWWISE = auto()  # a function of each run of the last axis; the shape stays
    REDUCES = auto()  # takes elements together, along the axes that its second operand names
    KEEPS_QUANT = auto()  # every value that comes out went in: the (first) operand's quantization stays
    RENAMES = auto()  # the same elements in the same order, under another shape
    PADS = auto()  # puts elements around its operand
    PER_DIMENSION = auto()  # its parameters are one number, or one row, per dimension
    SPATIAL = auto()  # LiteRT defines it on channels-last maps only
    CLAMPS = auto()  # a fused activation may be its last step


_NONE = Trait(0)


class Builtin(IntEnum):
    """LiteRT operators this project reads or writes: their numbers in LiteRT's schema, and their traits."""

    traits: Trait

    def __new__(cls, value: int, traits: Trait = _NONE) -> Builtin:
        member = int.__new__(cls, value)
        member._value_ = value
        member.traits = traits
        return member

    def has(self, trait: Trait) -> bool:
        """Whether the operator has (one of) these traits."""
        return self.traits._value_ & trait._value_ != 0  # as `self.traits & trait`, in a tenth of the time

    ADD = 0, Trait.BINARY | Trait.CLAMPS
    AVERAGE_POOL_2D = 1, Trait.SPATIAL | Trait.CLAMPS
    CONCATENATION = 2
    CONV_2D = 3, Trait.SPATIAL | Trait.CLAMPS
    DEPTHWISE_CONV_2D = 4, Trait.SPATIAL | Trait.CLAMPS
    DEPTH_TO_SPACE = 5, Trait.SPATIAL | Trait.KEEPS_QUANT
    DEQUANTIZE = 6, Trait.UNARY
    FLOOR = 8, Trait.UNARY
    FULLY_CONNECTED = 9, Trait.CLAMPS
    L2_NORMALIZATION = 11, Trait.ROWWISE
    LOGISTIC = 14, Trait.UNARY
    MAX_POOL_2D = 17, Trait.SPATIAL | Trait.KEEPS_QUANT | Trait.CLAMPS
    MUL = 18, Trait.BINARY | Trait.CLAMPS
    RELU = 19, Trait.UNARY
    RELU_N1_TO_1 = 20, Trait.UNARY
    RELU6 = 21, Trait.UNARY
    RESHAPE = 22, Trait.RENAMES | Trait.KEEPS_QUANT
    RESIZE_BILINEAR = 23, Trait.SPATIAL
    SOFTMAX = 25, Trait.ROWWISE
    SPACE_TO_DEPTH = 26, Trait.SPATIAL | Trait.KEEPS_QUANT
    TANH = 28, Trait.UNARY
    CUSTOM = 32
    PAD = 34, Trait.PADS | Trait.PER_DIMENSION | Trait.KEEPS_QUANT
    GATHER = 36, Trait.KEEPS_QUANT
    BATCH_TO_SPACE_ND = 37, Trait.SPATIAL
    SPACE_TO_BATCH_ND = 38, Trait.SPATIAL
    TRANSPOSE = 39, Trait.KEEPS_QUANT
    MEAN = 40, Trait.REDUCES
    SUB = 41, Trait.BINARY | Trait.CLAMPS
    DIV = 42, Trait.BINARY
    SQUEEZE = 43, Trait.RENAMES | Trait.KEEPS_QUANT
    STRIDED_SLICE = 45, Trait.PER_DIMENSION | Trait.KEEPS_QUANT
    EXP = 47, Trait.UNARY
    SPLIT = 49, Trait.KEEPS_QUANT
    LOG_SOFTMAX = 50, Trait.ROWWISE
    CAST = 53, Trait.UNARY
    PRELU = 54, Trait.BINARY
    MAXIMUM = 55, Trait.BINARY
    ARG_MAX = 56
    MINIMUM = 57, Trait.BINARY
    LESS = 58, Trait.BINARY
    NEG = 59, Trait.UNARY
    PADV2 = 60, Trait.PADS | Trait.PER_DIMENSION
    GREATER = 61, Trait.BINARY
    GREATER_EQUAL = 62, Trait.BINARY
    LESS_EQUAL = 63, Trait.BINARY
    SLICE = 65, Trait.PER_DIMENSION | Trait.KEEPS_QUANT
    SIN = 66, Trait.UNARY
    TRANSPOSE_CONV = 67, Trait.SPATIAL
    TILE = 69, Trait.PER_DIMENSION | Trait.KEEPS_QUANT
    EXPAND_DIMS = 70, Trait.RENAMES | Trait.KEEPS_QUANT
    EQUAL = 71, Trait.BINARY
    NOT_EQUAL = 72, Trait.BINARY
    LOG = 73, Trait.UNARY
    SUM = 74, Trait.REDUCES
    SQRT = 75, Trait.UNARY
    RSQRT = 76, Trait.UNARY
    SHAPE = 77
    POW = 78, Trait.BINARY
    ARG_MIN = 79
    REDUCE_MAX = 82, Trait.REDUCES
    PACK = 83, Trait.KEEPS_QUANT
    LOGICAL_OR = 84, Trait.BINARY
    LOGICAL_AND = 86, Trait.BINARY
    LOGICAL_NOT = 87, Trait.UNARY
    UNPACK = 88, Trait.KEEPS_QUANT
    REDUCE_MIN = 89, Trait.REDUCES
    SQUARE = 92, Trait.UNARY
    RESIZE_NEAREST_NEIGHBOR = 97, Trait.SPATIAL | Trait.KEEPS_QUANT
    LEAKY_RELU = 98, Trait.UNARY
    SQUARED_DIFFERENCE = 99, Trait.BINARY
    MIRROR_PAD = 100, Trait.PADS | Trait.PER_DIMENSION | Trait.KEEPS_QUANT
    ABS = 101, Trait.UNARY
    SPLIT_V = 102, Trait.KEEPS_QUANT
    COS = 108, Trait.UNARY
    ELU = 111, Trait.UNARY
    QUANTIZE = 114, Trait.UNARY
    HARD_SWISH = 117, Trait.UNARY
    SELECT_V2 = 123, Trait.TERNARY
    BATCH_MATMUL = 126
    CALL_ONCE = 129  # this one and those of variables are in files only: see `variables`
    BROADCAST_TO = 130, Trait.PER_DIMENSION | Trait.KEEPS_QUANT
    VAR_HANDLE = 142
    READ_VARIABLE = 143
    ASSIGN_VARIABLE = 144
    GELU = 150, Trait.UNARY
    DYNAMIC_UPDATE_SLICE = 151, Trait.KEEPS_QUANT
    RELU_0_TO_1 = 152, Trait.UNARY
    SIGN = 158, Trait.UNARY


@cache
def kinds(trait: Trait) -> frozenset[Builtin]:
    """Every operator with one of these traits."""
    return frozenset(kind for kind in Builtin if kind.has(trait))


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

    @cached_property
    def is_positive(self) -> bool:
        """Whether every scale is a positive number."""
        return all(s > 0 and math.isfinite(s) for s in self.scale)

    def __str__(self) -> str:
        if self.is_per_tensor:
            return f"{np.float32(self.scale[0])!s}@{self.zero_point[0]}"
        return f"per-axis[{len(self.scale)}]@{self.axis}"


DTYPES = {"float32": 4, "int32": 4, "int8": 1, "int64": 8, "int16": 2, "uint8": 1, "bool": 1}
RESOURCE = "resource"  # the type of a variable's handle, in files only


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

    def is_like(self, other: Tensor) -> bool:
        """Whether both have the same shape, type and quantization."""
        return (self.shape, self.dtype, self.quant) == (other.shape, other.dtype, other.quant)

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
    def key(self) -> Builtin | str:
        """What is computed: the kind, or the name of a custom operator."""
        return self.custom_name if self.kind is Builtin.CUSTOM else self.kind

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

    def copy(self) -> Op:
        """The same call with lists of its own."""
        return Op(
            self.kind,
            list(self.inputs),
            list(self.outputs),
            dict(self.options),
            self.origin,
            self.custom_name,
        )

    def __repr__(self) -> str:
        ins = ", ".join(t.name if t is not None else "-" for t in self.inputs)
        options = "".join(f" {k}={v}" for k, v in self.options.items())
        return f"{', '.join(t.name for t in self.outputs)} = {self.kind.name}({ins}){options}"


@dataclass(frozen=True, eq=False)
class State:
    """What a graph remembers from run to run: a name, and the values it starts from."""

    name: str
    initial: np.ndarray


@dataclass(eq=False)
class Graph:
    """A static dataflow graph: inputs, outputs, and ops in execution order.

    A graph that remembers has one more input and one more output for each of its `states`, the last of both
    and in the same order: what the input reads in one run is what the output was in the run before.
    """

    inputs: list[Tensor]
    outputs: list[Tensor]
    ops: list[Op]
    name: str = "main"
    states: tuple[State, ...] = ()

    @property
    def given(self) -> list[Tensor]:
        """The inputs that the caller gives."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def returned(self) -> list[Tensor]:
        """The outputs that the caller gets."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    def state_tensors(self) -> list[tuple[State, Tensor, Tensor]]:
        """Each state with the tensor that reads it and the one that is written to it."""
        count = len(self.states)
        ends = self.inputs[len(self.inputs) - count :], self.outputs[len(self.outputs) - count :]
        return list(zip(self.states, *ends, strict=True))

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
        from openneutron.litert.text import graph_text

        return graph_text(self)

    @staticmethod
    def parse(text: str) -> Graph:
        """The graph that `str` printed so, verified; a ValueError names the line that says something else."""
        from openneutron.litert.text import parse_graph

        return parse_graph(text)

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
    yield from _state_problems(graph)
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


def _state_problems(graph: Graph) -> Iterator[str]:
    if len(graph.states) > min(len(graph.inputs), len(graph.outputs)):
        yield f"there are {len(graph.states)} states, but fewer inputs or outputs"
        return
    if len({s.name for s in graph.states}) != len(graph.states):
        yield "two states have one name"
    for state, old, new in graph.state_tensors():
        if (old.shape, old.dtype, old.quant) != (new.shape, new.dtype, new.quant):
            yield f"state {state.name} is read as {old!r} and written as {new!r}"
        if state.initial.shape != old.shape or str(state.initial.dtype) != old.dtype:
            initial = f"{state.initial.dtype}{list(state.initial.shape)}"
            yield f"state {state.name} is {old.dtype}{list(old.shape)}, and starts from {initial}"


def _tensor_problems(t: Tensor) -> Iterator[str]:
    if t.dtype not in DTYPES and t.dtype != RESOURCE:
        yield f"{t.name} has unknown type {t.dtype}"
    if t.shape and min(t.shape) < 0:
        yield f"{t.name} has a negative dimension {t.shape}"
    if t.dtype == "int8" and t.quant is None:
        yield f"{t.name} is int8 without quantization"
    if t.data is not None and (t.data.shape != t.shape or str(t.data.dtype) != t.dtype):
        yield f"{t.name} is {t.dtype}{list(t.shape)}, its data {t.data.dtype}{list(t.data.shape)}"
    q = t.quant
    if q is None:
        return
    if not q.is_positive:
        yield f"{t.name} has a scale that is not a positive number"
    if len(q.scale) != len(q.zero_point):
        yield f"{t.name} has {len(q.scale)} scales and {len(q.zero_point)} zero points"
    if not q.is_per_tensor and (q.axis >= t.rank or t.shape[q.axis] != len(q.scale)):
        yield f"{t.name} has {len(q.scale)} scales for axis {q.axis} of {t.shape}"


def _op_problems(op: Op) -> Iterator[str]:
    if op.kind.has(Trait.KEEPS_QUANT) and op.inputs and op.kind is not Builtin.SPLIT:
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
