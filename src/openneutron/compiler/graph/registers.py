"""An expression as instructions on a few registers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from openneutron.compiler.microcode.expression import (
    ISLAND_CODE,
    ISLAND_OPERANDS,
    ISLAND_REGISTERS,
    Instruction,
    IslandOp,
)
from openneutron.litert.ir import Op, Tensor


@dataclass(frozen=True, eq=False)
class Source:
    """An operand of an expression: which tensor in memory, in which shape, through which table if any."""

    tensor: int  # among those of the expression
    shape: tuple[int, ...]
    table: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Value:
    """One value of an expression; `tensor` is the one of the graph that it is, if it is one."""

    op: IslandOp
    args: tuple[Value, ...] = ()  # of SELECT, the condition last
    operand: int = 0
    number: float = 0.0
    tensor: Tensor | None = None


class TooLarge(Exception):
    """The expression does not fit a program; it will if this tensor of it is computed apart."""

    def __init__(self, tensor: Tensor):
        super().__init__(tensor.name)
        self.tensor = tensor


@dataclass
class Expression:
    """An expression while it is built: its operands, and the values of the graph's tensors."""

    tensors: list[Tensor] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    known: dict[Tensor, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def number(self, value: float) -> Value:
        """A constant."""
        return Value(IslandOp.CONSTANT, number=value)

    def load(self, tensor: Tensor, shape: tuple[int, ...], table: np.ndarray | None = None) -> Value:
        """A tensor in memory, through a table if there is one."""
        if tensor not in self.tensors:
            self.tensors.append(tensor)
        self.sources.append(Source(self.tensors.index(tensor), shape, table))
        return Value(IslandOp.LOAD, operand=len(self.sources) - 1)

    def add(
        self, op: IslandOp, *args: Value, condition: Value | None = None, tensor: Tensor | None = None
    ) -> Value:
        """An operation on values."""
        return Value(op, (*args, *(() if condition is None else (condition,))), tensor=tensor)


def assemble(expression: Expression, result: Value) -> tuple[Instruction, ...]:
    """The instructions that compute a value; `TooLarge` names what to compute apart if it does not fit."""
    order: list[Value] = []
    _visit(result, order, set())
    uses: dict[Value, int] = {}
    for value in order:
        for arg in value.args:
            uses[arg] = uses.get(arg, 0) + 1
    place: dict[Value, int] = {}
    free = list(range(ISLAND_REGISTERS))[::-1]
    code: list[Instruction] = []

    def take() -> int:
        if not free:
            raise TooLarge(_part(result))
        return free.pop()

    def release(value: Value) -> None:
        uses[value] -= 1
        if uses[value] == 0 and value in place:
            free.append(place.pop(value))

    def put(value: Value) -> int:
        """The register of a value; constants and operands get there only now."""
        if value not in place:
            place[value] = take()
            code.append(_leaf(value, place[value]))
        return place[value]

    for value in order:
        if value.op in (IslandOp.LOAD, IslandOp.CONSTANT):
            continue
        args = [put(arg) for arg in value.args]
        a, b = args[0], args[1] if len(args) > 1 else args[0]
        if value.op is IslandOp.SELECT:  # it overwrites its condition, which others may still need: a copy
            to = take()
            code.append(Instruction(IslandOp.OR, to, args[2], args[2]))
            for arg in value.args:
                release(arg)
        else:
            for arg in value.args:
                release(arg)
            to = take()
        code.append(Instruction(value.op, to, a, b))
        place[value] = to
    if not code or result.op in (IslandOp.LOAD, IslandOp.CONSTANT):
        code.append(_leaf(result, 0))
    if len(code) > ISLAND_CODE or len(expression.sources) > ISLAND_OPERANDS:
        raise TooLarge(_part(result))
    return tuple(code)


def _leaf(value: Value, to: int) -> Instruction:
    if value.op is IslandOp.LOAD:
        return Instruction(IslandOp.LOAD, to, value.operand)
    assert value.op is IslandOp.CONSTANT
    return Instruction(IslandOp.CONSTANT, to, value=value.number)


def _visit(value: Value, order: list[Value], seen: set[Value]) -> None:
    if value in seen:
        return
    seen.add(value)
    # The operand that needs most registers first, so that the others do not wait in theirs.
    for arg in sorted(value.args, key=lambda a: -_depth(a)):
        _visit(arg, order, seen)
    order.append(value)


def _depth(value: Value) -> int:
    return 1 + max((_depth(a) for a in value.args), default=0)


def _part(result: Value) -> Tensor:
    """A tensor of the graph inside a value, half of it or so: the largest below it."""
    best: tuple[int, Tensor] | None = None
    total = _size(result)
    for value in _all(result):
        if value is result or value.tensor is None or value.tensor.dtype != "float32":
            continue
        if value.tensor is result.tensor:
            continue
        size = _size(value)
        if best is None or abs(2 * size - total) < abs(2 * best[0] - total):
            best = size, value.tensor
    assert best is not None, "a single operation fits"
    return best[1]


def _all(value: Value) -> list[Value]:
    order: list[Value] = []
    _visit(value, order, set())
    return order


def _size(value: Value) -> int:
    return len(_all(value))
