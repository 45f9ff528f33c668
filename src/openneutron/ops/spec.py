"""The types of the operator table: what an operator is to every stage, in one value.

Nothing here imports torch: the table is data, and `openneutron ops` prints it at once. Operators are named as
`aten.relu.default`; the stages that see torch graphs turn a node into a `Call` and ask the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from openneutron.diagnostics import Reject
from openneutron.litert.ir import Activation, Builtin, Quant, Tensor
from openneutron.targets.chip import Target
from openneutron.targets.table import DEFAULT_TARGET, TARGETS

if TYPE_CHECKING:
    from openneutron.litert.build import Builder

# --------------------------------------------------------------------------------------------------
# What an operator is called with


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor as an operator sees it: an activation, or a constant if `data` gives its values.

    A quantized constant's data are its integers, not the real numbers they stand for.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    quant: Quant | None = None
    data: Callable[[], np.ndarray] | None = None

    @property
    def is_const(self) -> bool:
        return self.data is not None

    @property
    def rank(self) -> int:
        return len(self.shape)

    def array(self) -> np.ndarray:
        """The values of a constant."""
        assert self.data is not None, f"{self.name} is not a constant"
        return self.data()

    def real(self) -> np.ndarray:
        """The real numbers a constant stands for, in double precision."""
        array = self.array()
        if self.quant is None:
            return array.astype(np.float64)
        shape = [1] * array.ndim
        if not self.quant.is_per_tensor:
            shape[self.quant.axis] = -1
        scale = np.array(self.quant.scale, np.float64).reshape(shape)
        zero = np.array(self.quant.zero_point, np.int64).reshape(shape)
        return (array.astype(np.int64) - zero) * scale

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, eq=False)
class Call:
    """One use of an operator: arguments by schema name, the quantized result, a fused activation."""

    name: str
    op: str
    args: Mapping[str, Any]
    out: Value
    activation: Activation = Activation.NONE
    target: Target = TARGETS[DEFAULT_TARGET]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or the default when it is absent or None."""
        value = self.args.get(name)
        return default if value is None else value

    @property
    def tensors(self) -> list[Value]:
        """Every tensor argument, lists flattened, in schema order."""
        values: list[Value] = []
        for value in self.args.values():
            items = value if isinstance(value, tuple | list) else (value,)
            values += [v for v in items if isinstance(v, Value)]
        return values

    @property
    def input(self) -> Value:
        """The first tensor argument."""
        return self.tensors[0]


# --------------------------------------------------------------------------------------------------
# What the quantizer does


@dataclass(frozen=True)
class Observed:
    """Each tensor input and the output have parameters of their own."""

    inputs: tuple[str, ...] = ()  # the arguments that are quantized; none named: every tensor
    symmetric: bool = False  # inputs have zero point 0


class Values(Enum):
    """What an operator that shares parameters does with the values it is given."""

    MOVED = "moved"
    CHOSEN = "chosen"  # by comparing them, or by their places
    ROUNDED = "rounded"  # it makes new ones, averages for one


@dataclass(frozen=True)
class Shared:
    """Inputs and output share one set of parameters: the operator moves, chooses or averages values."""

    values: Values = Values.MOVED


@dataclass(frozen=True)
class FixedOutput:
    """The range of the output is known: its parameters are constants."""

    scale: float
    zero_point: int


@dataclass(frozen=True)
class Weighted:
    """Constant weights: symmetric int8, per tensor or output channel; int32 bias in derived units."""

    weight: str = "weight"
    bias: str = "bias"
    channel_axis: int | None = 0  # the weight's output-channel axis; None: always per tensor


Intent = Observed | Shared | FixedOutput | Weighted

# --------------------------------------------------------------------------------------------------
# What is required of a call


@dataclass(frozen=True)
class Case:
    """A use of an operator for tests: `make(torch)` gives a module or function for inputs of `shapes`."""

    label: str
    make: Callable[[Any], Any]
    shapes: tuple[tuple[int, ...], ...]
    channels_last: bool = False  # also run with channels-last inputs
    qat: bool = False  # also run through quantization-aware training
    positive: bool = False  # inputs are drawn from (0, 4] (log, rsqrt, sqrt)
    tolerance: int = 1  # largest difference from the quantized PyTorch graph, in LSB


OPEN, EIQ = "open", "eiq"
BOTH = (OPEN, EIQ)


@dataclass(frozen=True)
class Constraint:
    """A limit: its sentence is the documentation, the reason given to users and what the test expects."""

    sentence: str
    holds: Callable[[Call], bool]
    got: Callable[[Call], Any] | None = None
    converters: tuple[str, ...] = BOTH
    hint: str = ""
    violated_by: Case | None = None
    source: str = ""  # of a limit that is not OpenNeutron's own: who says so

    def check(self, call: Call) -> Reject | None:
        """None if the call meets the constraint, else the reason with the offending value."""
        if self.holds(call):
            return None
        got = f" (got {_plain(self.got(call))})" if self.got else ""
        return Reject("ON203", f"{self.sentence}{got}", self.hint)


def _plain(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --------------------------------------------------------------------------------------------------
# How it is lowered


class Lowering:
    """What a lowering function works with: the LiteRT builder, and the tensor of each value."""

    def __init__(self, build: Builder, lookup: Callable[[Value], Tensor]):
        self.build = build
        self._lookup = lookup
        self._constants: dict[str, Tensor] = {}

    def on(self, build: Builder) -> Lowering:
        """The same on another builder."""
        return Lowering(build, self._lookup)

    def __call__(self, value: Value) -> Tensor:
        """The LiteRT tensor of an activation, or of a quantized constant as it is."""
        if not value.is_const:
            return self._lookup(value)
        if value.name not in self._constants:
            self._constants[value.name] = self.build.const(value.array(), value.quant, name=value.name)
        return self._constants[value.name]


Lower = Callable[[Lowering, Call], Tensor]


class FloatLowering:
    """What an operator is lowered with inside an island: every value is a float tensor of LiteRT."""

    def __init__(self, at: Lowering, inside: Mapping[str, Tensor] | None = None):
        self.build = at.build
        self._at = at
        self._inside = {} if inside is None else inside
        self._known: dict[str, Tensor] = {}

    def __call__(self, value: Value | float) -> Tensor | float:
        """The float tensor of a value: computed in the island, dequantized, or constant; numbers stay so."""
        if not isinstance(value, Value):
            return value
        if value.name in self._inside:
            return self._inside[value.name]
        if value.name not in self._known:
            self._known[value.name] = self._make(value)
        return self._known[value.name]

    def _make(self, value: Value) -> Tensor:
        if not value.is_const:  # a state arrives in float, a mask as truth values
            given = self._at(value)
            return given if value.dtype in ("float32", "bool") else self.build.dequantize(given)
        real = value.array() if value.dtype == "bool" else value.real().astype(np.float32)
        return self.build.const(real, name=value.name)

    def number(self, value: Value | float) -> Tensor | float:
        """The same with truth values as 1 and 0."""
        number = self(value)
        if not isinstance(number, Tensor) or number.dtype != "bool":
            return number
        one, zero = (self.build.number(n, number.rank) for n in (1, 0))
        return self.build.op(Builtin.SELECT_V2, [number, one, zero], number.shape, dtype="float32")

    def tensor(self, value: Value) -> Tensor:
        """The float tensor of a value that is no number."""
        tensor = self.number(value)
        assert isinstance(tensor, Tensor)
        return tensor


FloatBody = Callable[[FloatLowering, Call], Tensor]


class Reach(Enum):
    """What is known of a float result inside an island."""

    NARROW = "narrow"  # about as wide as what int8 holds: rounding it costs little
    AS_OPERANDS = "as operands"  # as wide as the widest of its operands
    WIDE = "wide"  # a range no 8 bits hold: squares, exponentials, reciprocals


@dataclass(frozen=True)
class Real:
    """How an operator is computed in float, as a part of an island of several operators."""

    body: FloatBody
    reach: Reach = Reach.AS_OPERANDS
    function: bool = False  # not defined by IEEE 754: of one int8 tensor, or the last of its island
    monotone: bool = True  # a function that is not cannot be the last of an island
    unbounded: bool = False  # may be infinite: its island's results are clamped before they are quantized
    reduces: bool = False


@dataclass(frozen=True)
class OpSpec:
    """One operator: its names at the ATen and the Edge level, and what every stage needs to know of it."""

    names: tuple[str, ...]
    quantize: Intent | None
    lower: Lower
    requires: tuple[Constraint, ...] = ()
    cases: tuple[Case, ...] = ()
    fuses_activation: bool = False  # a ReLU-like activation after it may be computed in it
    no_op: bool = False  # changes neither values nor their order in memory
    note: str = ""
    integer_result: bool = False  # the result is integers, which nothing quantizes
    integers: tuple[str, ...] = ()  # arguments that are integers, known or not before the run
    open_only: bool = False  # not covered by NXP's converter: open only
    # How it is quantized for NXP's converter, by the arguments it is called with, where that is another way.
    quantize_eiq: Callable[[Mapping[str, Any]], Intent | None] | None = None
    float_constants: tuple[str, ...] = ()  # arguments that may be constants in float
    may_be_infinite: tuple[str, ...] = ()  # numbers among the arguments that need not be finite
    real: Real | None = None  # how it is computed inside a float island; None: it cannot stand in one
    real_by: Callable[[Any], Real] | None = None  # the same, where its arguments decide

    @property
    def unquantized(self) -> tuple[str, ...]:
        """Arguments that need no quantization when constant: a bias is quantized with its layer."""
        bias = (self.quantize.bias,) if isinstance(self.quantize, Weighted) else ()
        return self.float_constants + bias

    @property
    def name(self) -> str:
        """The operator's principal name."""
        return self.names[0]

    @property
    def keeps_values(self) -> bool:
        """Whether nothing is rounded: every value of its result is one of its inputs'."""
        return isinstance(self.quantize, Shared) and self.quantize.values is not Values.ROUNDED

    @property
    def moves_values(self) -> bool:
        """Whether it only puts its inputs' values elsewhere."""
        return isinstance(self.quantize, Shared) and self.quantize.values is Values.MOVED

    def real_of(self, args: Any) -> Real | None:
        """How a call is computed inside a float island, by its arguments or as a `Call`."""
        return self.real if self.real_by is None else self.real_by(args)

    def intent(self, converter: str, args: Mapping[str, Any]) -> Intent | None:
        """How a call is quantized for a converter."""
        other = self.quantize_eiq(args) if self.quantize_eiq and converter == EIQ else None
        return self.quantize if other is None else other

    def check(self, call: Call, converter: str = OPEN) -> Reject | None:
        """Why this call cannot be delegated with this converter, or None."""
        if self.open_only and converter == EIQ:
            return Reject(
                "ON203",
                f"{self.name} is not supported by NXP's converter",
                "Use the open converter, or leave it on the CPU.",
            )
        for constraint in self.requires:
            if converter in constraint.converters and (reject := constraint.check(call)):
                return reject
        return None
