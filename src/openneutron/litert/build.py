"""Building LiteRT graphs op by op: fresh names, provenance, and the layout conversions lowerings need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from openneutron.litert.ir import Builtin, Graph, Op, Quant, State, Tensor, constant
from openneutron.litert.perm import (
    identity,
    permute,
    reshaped_constant,
    reshaped_quant,
    to_first,
    to_last,
    transposed_constant,
)

Spec = tuple[Sequence[int], Quant | None]
"""Shape and quantization of one result."""


class Names:
    """A source of tensor names that are unique within one graph."""

    def __init__(self, taken: Iterable[str] = ()):
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """The hint itself if it is free, otherwise the hint with the first free number."""
        name = hint
        while name in self._taken:
            self._next[hint] = self._next.get(hint, 0) + 1
            name = f"{hint}_{self._next[hint]}"
        self._taken.add(name)
        return name


def ints(values: Iterable[int], name: str) -> Tensor:
    """A one-dimensional int32 constant: how LiteRT passes permutations, axes and shapes."""
    return constant(name, np.array(list(values), np.int32))


class Builder:
    """Appends ops to a growing graph. Tensors get unique names; ops get the current origin as provenance."""

    quantized = True  # whether it builds in int8; lowerings in float have a builder of their own

    def __init__(self, name: str = "main"):
        self.name = name
        self.names = Names()
        self.inputs: list[Tensor] = []
        self.ops: list[Op] = []
        self._states: list[tuple[State, Tensor, Tensor | None]] = []
        self._origin: tuple[str, ...] = ()

    @contextmanager
    def origin(self, *nodes: str) -> Iterator[None]:
        """Ops appended inside come from these source nodes."""
        outer, self._origin = self._origin, nodes
        try:
            yield
        finally:
            self._origin = outer

    def input(
        self, name: str, shape: Sequence[int], dtype: str = "int8", quant: Quant | None = None
    ) -> Tensor:
        """A new graph input."""
        tensor = Tensor(self.names.fresh(name), _dims(shape), dtype, quant)
        self.inputs.append(tensor)
        return tensor

    def state(self, name: str, initial: np.ndarray, quant: Quant | None = None) -> Tensor:
        """A new state, as it is at the start of a run; `remember` says what it is at the end."""
        names = {state.name for state, _, _ in self._states}
        assert name not in names, f"there is a state {name} already"
        tensor = Tensor(self.names.fresh(name), _dims(initial.shape), str(initial.dtype), quant)
        self._states.append((State(name, initial), tensor, None))
        return tensor

    def remember(self, state: Tensor, value: Tensor) -> None:
        """Let a state be this value in the next run."""
        self._states = [(s, t, value if t is state else new) for s, t, new in self._states]

    def const(self, array: np.ndarray, quant: Quant | None = None, name: str | None = None) -> Tensor:
        """A constant; equal constants are merged later, by the optimizer."""
        return constant(self.names.fresh(name or f"{self._hint('graph')}_const"), np.asarray(array), quant)

    def number(self, value: float, rank: int, quant: Quant | None = None) -> Tensor:
        """A constant beside operands of this rank: one element, without dimensions where they have none.

        An int8 one with parameters, otherwise float.
        """
        dtype = np.float32 if quant is None else np.int8
        return self.const(np.full((1,) * min(rank, 1), value, dtype), quant)

    def ints(self, values: Iterable[int], name: str | None = None) -> Tensor:
        """A one-dimensional int32 constant."""
        return ints(values, self.names.fresh(name or f"{self._hint('graph')}_ints"))

    def op(
        self,
        kind: Builtin,
        inputs: Sequence[Tensor | None],
        shape: Sequence[int],
        quant: Quant | None = None,
        *,
        dtype: str = "int8",
        options: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Append an op with one result."""
        return self.multi_op(kind, inputs, [(shape, quant)], dtype=dtype, options=options, name=name)[0]

    def multi_op(
        self,
        kind: Builtin,
        inputs: Sequence[Tensor | None],
        results: Sequence[Spec],
        *,
        dtype: str = "int8",
        options: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """Append an op with several results of one type."""
        hint = name or self._hint(kind.name.lower())
        outputs = [Tensor(self.names.fresh(hint), _dims(shape), dtype, quant) for shape, quant in results]
        self.ops.append(Op(kind, list(inputs), outputs, dict(options or {}), self._origin))
        return outputs

    def reshape(self, tensor: Tensor, shape: Sequence[int], name: str | None = None) -> Tensor:
        """RESHAPE; nothing if the shape is the same, at once if the tensor is a constant."""
        shape = _dims(shape)
        if shape == tensor.shape:
            return tensor
        if tensor.is_const:
            return reshaped_constant(tensor, shape, self.names.fresh(name or tensor.name))
        quant = reshaped_quant(tensor.quant, tensor.shape, shape)
        target = self.ints(shape, f"{tensor.name}_shape")
        return self.op(Builtin.RESHAPE, [tensor, target], shape, quant, dtype=tensor.dtype,
                       options={"newShape": shape}, name=name or f"{tensor.name}_reshaped")  # fmt: skip

    def transpose(self, tensor: Tensor, perm: Sequence[int], name: str | None = None) -> Tensor:
        """TRANSPOSE; nothing if the permutation is the identity, at once if the tensor is a constant."""
        perm = _dims(perm)
        if perm == identity(tensor.rank):
            return tensor
        if tensor.is_const:
            return transposed_constant(tensor, perm, self.names.fresh(name or tensor.name))
        order = self.ints(perm, f"{tensor.name}_perm")
        shape = permute(tensor.shape, perm)
        return self.op(Builtin.TRANSPOSE, [tensor, order], shape, tensor.quant, dtype=tensor.dtype,
                       name=name or f"{tensor.name}_transposed")  # fmt: skip

    def to_channels_last(self, tensor: Tensor) -> Tensor:
        """From (N, C, ...) to (N, ..., C)."""
        return self.transpose(tensor, to_last(tensor.rank))

    def to_channels_first(self, tensor: Tensor) -> Tensor:
        """From (N, ..., C) to (N, C, ...)."""
        return self.transpose(tensor, to_first(tensor.rank))

    def requantize(self, tensor: Tensor, quant: Quant, name: str | None = None) -> Tensor:
        """QUANTIZE of an int8 tensor to other parameters; nothing if they are the same."""
        if tensor.quant == quant:
            return tensor
        return self.op(Builtin.QUANTIZE, [tensor], tensor.shape, quant, name=name)

    def quantize(self, tensor: Tensor, quant: Quant, name: str | None = None) -> Tensor:
        """QUANTIZE of a float tensor to int8."""
        assert tensor.dtype == "float32", f"{tensor!r} is not float; requantize() is for int8"
        return self.op(Builtin.QUANTIZE, [tensor], tensor.shape, quant, name=name)

    def dequantize(self, tensor: Tensor, name: str | None = None) -> Tensor:
        """DEQUANTIZE of an int8 tensor to float."""
        return self.op(Builtin.DEQUANTIZE, [tensor], tensor.shape, None, dtype="float32", name=name)

    def graph(self, outputs: Sequence[Tensor]) -> Graph:
        """The finished graph, verified."""
        states = [(s, t, t if new is None else new) for s, t, new in self._states]
        inputs, results = (
            [*self.inputs, *(t for _, t, _ in states)],
            [*outputs, *(new for _, _, new in states)],
        )
        return Graph(inputs, results, list(self.ops), self.name, tuple(s for s, _, _ in states)).verify()

    def _hint(self, default: str) -> str:
        return self._origin[-1] if self._origin else default


def _dims(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)
