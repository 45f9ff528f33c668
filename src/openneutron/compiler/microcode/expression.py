"""The language of islands: what the instructions of an ISLAND do, how its operands and result are stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from openneutron.compiler.microcode.forms import Ref, Region
from openneutron.compiler.microcode.records import F32, MAX_RANK, U8, U32, Int8, Range, Strides


class IslandOp(IntEnum):
    """What an instruction of an island does to its registers; a comparison gives 1 or 0.

    Only operations that IEEE 754 defines to the last bit. ADD, SUB, MUL and DIV keep their result finite, as
    LiteRT's do: what overflows becomes the largest number.
    """

    LOAD = 0  # to = operand a
    CONSTANT = 1  # to = value
    ADD = 2
    SUB = 3
    MUL = 4
    DIV = 5
    MAXIMUM = 6  # a > b ? a : b
    MINIMUM = 7  # a < b ? a : b
    SQUARED_DIFFERENCE = 8
    SQUARE = 9
    SQRT = 10
    RSQRT = 11  # 1 / sqrt(a)
    ABS = 12
    NEG = 13
    FLOOR = 14
    SIGN = 15
    LESS = 16
    LESS_EQUAL = 17
    EQUAL = 18
    NOT_EQUAL = 19
    AND = 20
    OR = 21
    NOT = 22
    SELECT = 23  # to = to != 0 ? a : b


class Reduction(IntEnum):
    """What an island does over its reduced dims."""

    NONE = 0
    SUM = 1
    MAXIMUM = 2
    MINIMUM = 3
    MAXIMUM_OF_ALL = 4  # from the first value on, which matters if that is no number
    MINIMUM_OF_ALL = 5


ISLAND_OPERANDS = 6
ISLAND_REGISTERS = 8
ISLAND_CODE = 64  # instructions, at most
ISLAND_ELEMENTS = 1 << 24  # walked, at most


class OperandForm(IntEnum):
    """How an operand of an island is read."""

    FLOAT = 0
    INT8 = 1  # scale * (x - zero)
    TABLE = 2  # table[256] of float32, indexed by the bits of the int8


class ResultForm(IntEnum):
    """How the result of an island is written."""

    FLOAT = 0
    INT8 = 1  # round(x / scale) + zero, saturated
    STEPS = 2  # -128 + how many of the float32 `steps[255]`, which rise, are at most x; `zero` for NaN


_NOWHERE = Ref(Region.INPUT)


@dataclass(frozen=True)
class Operand:
    """A tensor an island reads, element by element, broadcast where a stride is 0; strides in bytes."""

    ref: Ref = _NOWHERE
    table: Ref = _NOWHERE
    form: Annotated[U32, Range(0, max(OperandForm))] = 0
    scale: F32 = 0.0
    zero: Int8 = 0
    strides: Strides = (0,) * MAX_RANK

    def __str__(self) -> str:
        return str(self.ref)


@dataclass(frozen=True)
class Instruction:
    """registers[to] = op(registers[a], registers[b])."""

    op: U8
    to: U8
    a: U8 = 0
    b: U8 = 0
    value: F32 = 0.0

    def __str__(self) -> str:
        name = IslandOp(self.op).name if self.op in IslandOp._value2member_map_ else f"op{self.op}"
        rest = f" {self.value:g}" if self.op == IslandOp.CONSTANT else f" {self.a},{self.b}"
        return f"{self.to}={name}{rest}"
