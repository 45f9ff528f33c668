"""The types of the table of ONNX operators: what one is, and what its function is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from openneutron.onnx.values import Dequantized, Quantized, Tensor, Value, as_tensor

ONNX, MICROSOFT = "", "com.microsoft"
OLDEST_OPSET = 7


class Unsupported(Exception):
    """This use of an operator is not read: a sentence, and what to do."""

    def __init__(self, problem: str, hint: str = "", code: str = "ON904"):
        super().__init__(problem)
        self.problem, self.hint, self.code = problem, hint, code


@dataclass(frozen=True, eq=False)
class Node:
    """One node of a graph, its attributes as Python values."""

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"node '{self.name}' ({self.domain + '.' if self.domain else ''}{self.op})"


class Store:
    """The constants that nodes derive from those of the file: made while importing, read when running."""

    def __init__(
        self,
        find: Callable[[str], Tensor | None],
        keep: Callable[[str, Tensor], Tensor] | None,
        widen: bool = False,
    ):
        self.find = find
        self._keep = keep
        self.widen = widen  # whether half precision is float32

    def derive(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """The constant of this name, made if this is the import."""
        value = self.find(name)
        if value is None:
            assert self._keep is not None, f"constant {name} was not made by the import"
            value = self._keep(name, make())
        return value


class Call:
    """One use of an operator, as its function sees it."""

    def __init__(
        self,
        node: Node,
        version: int,
        values: Sequence[Value | None],
        statics: Sequence[np.ndarray | None],
        store: Store,
    ):
        self.node, self.version = node, version
        self.values, self.statics, self.store = values, statics, store
        self.read: set[int] = set()  # the inputs that were asked for as tensors

    # -- inputs

    def __len__(self) -> int:
        return len(self.values)

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.values) and self.values[index] is not None

    def value(self, index: int) -> Value:
        """An input as it is, quantized or not."""
        value = self.values[index] if index < len(self.values) else None
        if value is None:
            raise Unsupported(f"its input {index} is missing")
        self.read.add(index)
        return value

    def tensor(self, index: int = 0) -> Tensor:
        """An input as a tensor."""
        return as_tensor(self.value(index))

    def optional(self, index: int) -> Tensor | None:
        """An input as a tensor, None if it is not given."""
        return self.tensor(index) if self.has(index) else None

    def tensors(self) -> list[Tensor]:
        """Every input that is given."""
        return [self.tensor(i) for i in range(len(self.values)) if self.has(i)]

    def shape(self, index: int = 0) -> list[int]:
        """The shape of an input."""
        value = self.values[index]
        assert value is not None
        return [int(d) for d in value.shape]

    def is_static(self, index: int) -> bool:
        """Whether the values of an input are known now."""
        return index < len(self.statics) and self.statics[index] is not None

    def static(self, index: int, what: str = "") -> np.ndarray:
        """The values of an input that must be known now."""
        value = self.statics[index] if index < len(self.statics) else None
        if value is None:
            name = self.node.inputs[index] if index < len(self.node.inputs) else str(index)
            raise Unsupported(
                f"its input '{name}'{f' ({what})' if what else ''} is computed from the model's inputs",
                "Programs are static: shapes, axes and indices of this kind must be constants. If they "
                "depend on a dynamic dimension, fix it with --shape.",
                "ON905",
            )
        return value

    def ints(self, index: int, what: str = "") -> list[int]:
        """A static input as whole numbers."""
        return [int(v) for v in self.static(index, what).reshape(-1).tolist()]

    def number(self, index: int, what: str = "") -> Any:
        """A static input of one element as a Python number."""
        array = self.static(index, what)
        if array.size != 1:
            raise Unsupported(f"its input {index} has {array.size} elements, not one")
        return array.reshape(-1)[0].item()

    def constant(self, label: str, make: Callable[[], Tensor]) -> Tensor:
        """A constant derived from static inputs, computed once."""
        return self.store.derive(f"{self.node.name}_{label}", make)

    def real_constant(self, index: int) -> Tensor:
        """A static input as a tensor outside of the graph, to derive constants from."""
        return torch.from_numpy(np.array(self.static(index)))

    # -- attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default."""
        return self.node.attributes.get(name, default)

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.node.attributes:
            raise Unsupported(f"it lacks the attribute '{name}'", "The file breaks ONNX's rules.")
        return self.node.attributes[name]

    def choice(self, name: str, choices: Sequence[Any], default: Any) -> Any:
        """An attribute that must be one of these."""
        value = self.attr(name, default)
        if value not in choices:
            raise Unsupported(
                f"its attribute {name} is {value!r}, which is not read",
                f"Read: {', '.join(map(repr, choices))}.",
            )
        return value

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """An attribute that is a dimension, counted from the front."""
        return normalized(int(self.attr(name, default)), rank)


def normalized(axis: int, rank: int) -> int:
    """A dimension counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} is out of range for {rank} dimensions")
    return axis + rank if axis < 0 else axis


Run = Callable[[Call], Any]


@dataclass(frozen=True)
class Case:
    """A use of an operator for tests, beyond ONNX's own: attributes, inputs by shape or as arrays."""

    label: str
    inputs: tuple[Any, ...]  # a shape (tuple) to draw from, an array, or None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()  # which inputs are initializers
    outputs: int = 1
    opset: int | None = None


@dataclass(frozen=True)
class OnnxOp:
    """One ONNX operator: the newest version of it that is read, and how it is written in torch."""

    name: str
    newest: int
    run: Run
    domain: str = ONNX
    oldest: int = 1
    moves: bool = False  # moves or selects values: quantized integers go through as they are
    fold: bool = True  # computed now if all its inputs are constants
    shape_only: bool = False  # reads the shapes of its inputs, not their values: computed now in any case
    types: tuple[int, ...] = ()  # inputs of which only the type is read: they keep nothing from being folded
    statistics: tuple[int, ...] = ()  # inputs that training does not change
    note: str = ""
    cases: tuple[Case, ...] = ()

    @property
    def title(self) -> str:
        """The name with its domain."""
        return f"{self.domain}.{self.name}" if self.domain else self.name


def execute(op: OnnxOp, call: Call) -> tuple[Value, ...]:
    """Run an operator; one that only moves values leaves quantized ones quantized."""
    result = _moved(op, call) if op.moves else op.run(call)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _moved(op: OnnxOp, call: Call) -> Any:
    """Move integers as real numbers between a dequantize and a quantize step: what the NPU takes as one."""
    first = call.values[0] if call.values else None
    if not isinstance(first, Quantized | Dequantized) or getattr(first, "constant", False):
        return op.run(call)
    source = first if isinstance(first, Quantized) else first.source
    for value in call.values:
        if value is not None and not call.is_static(list(call.values).index(value)):
            other = value.source if isinstance(value, Dequantized) else value
            if type(value) is not type(first) or not isinstance(other, Quantized) or not other.means(source):
                return op.run(call)  # of different meaning: as plain numbers
    values = [Dequantized(v) if isinstance(v, Quantized) else v for v in call.values]
    inner = Call(call.node, call.version, values, call.statics, call.store)
    result = op.run(inner)
    call.read |= inner.read
    results = result if isinstance(result, tuple | list) else (result,)
    moved = [source.like(r) if r.is_floating_point() else r for r in results]
    if isinstance(first, Quantized):
        return tuple(moved)
    return tuple(Dequantized(m) if isinstance(m, Quantized) else m for m in moved)
