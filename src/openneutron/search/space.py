"""The space of a search: a TOML file, every key of it checked when it is read.

model = "net.py:mobilenet"          # any MODEL of `openneutron compile`
trials = 30                         # at most; the whole grid if it has no more points

[parameters]                        # of the function: a list or a range varies, a value is fixed
width = [0.25, 0.5]
[options]                           # of `openneutron compile`, likewise
per_channel = [false, true]
calibration_samples = { from = 8, to = 128, log = true }
[data]
test = "test.npz"
[objectives]
accuracy = "max"
sram_bytes = "min"
[limits]
sram_bytes = "<= 512K"
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from openneutron.diagnostics import fail, nearest
from openneutron.files import read_toml

Point = dict[str, Any]  # a value for every dimension, by its name
MOST_POINTS = 10_000  # of a space whose points are all tried
_MOST_BATCH = 1000
_MOST_NUMBER = 2**53  # in a range: beyond, floats skip whole numbers
CODE = "ON130"
_KEYS = (
    "model",
    "trials",
    "seed",
    "batch",
    "parameters",
    "options",
    "data",
    "objectives",
    "limits",
    "workers",
)
_DATA = ("calibration", "test", "samples", "metric", "boards", "baud", "timeout")
_NO_FILES = ("samples", "boards", "baud", "timeout")
_WORKERS = ("ship",)
_RANGE = ("from", "to", "step", "log")
_AIMS = {"max": "maximize", "min": "minimize"}
_LIMIT = re.compile(r"\s*(<=|>=)\s*([-\d._eE]+)\s*([KM]?)i?B?\s*")
_DOCS = "docs/sweep.md has an example."


@dataclass(frozen=True)
class Choice:
    """A dimension with a list of values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A dimension of numbers, from one to another, both included."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def is_int(self) -> bool:
        """Whether only whole numbers are tried."""
        return all(isinstance(v, int) for v in (self.low, self.high, self.step or 1))

    @property
    def count(self) -> int | None:
        """How many numbers it has, which are not listed for that; None without a step."""
        if self.log or (self.step is None and not self.is_int):
            return None
        step = self.step or 1
        if self.is_int:
            return int((self.high - self.low) // step) + 1
        return math.floor((self.high - self.low) / step + 1e-9) + 1

    def value(self, index: int) -> float:
        """One of its numbers, from zero on."""
        return self.low + index * (self.step or 1)


Dimension = Choice | Range


@dataclass(frozen=True)
class Bound:
    """A hard limit on a figure."""

    figure: str
    sign: str
    value: float

    def broken_by(self, value: float) -> bool:
        """Whether a figure leaves the limit."""
        return value > self.value if self.sign == "<=" else value < self.value

    def __str__(self) -> str:
        return f"{self.figure} {self.sign} {self.value:,.10g}"


@dataclass(frozen=True)
class Space:
    """What is searched, for what, within which limits. Dimensions are `parameters.x` or `options.x`."""

    model: str
    dimensions: dict[str, Dimension]
    fixed: Point
    objectives: dict[str, str]  # figure -> maximize or minimize
    limits: tuple[Bound, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    trials: int = 30
    seed: int = 0
    batch: int = 8
    ship: bool = False

    def __post_init__(self) -> None:
        size = self.grid_size
        if size is not None and MOST_POINTS < size <= self.trials:
            fail(
                CODE,
                "space: trials",
                f"the space has {_large(size)} points; at most {MOST_POINTS:,} are all tried",
                "Ask for fewer trials than it has points: they are chosen; or widen the steps.",
            )

    @property
    def grid_size(self) -> int | None:
        """How many points there are; None with a range that has no step."""
        sizes = [_size(dimension) for dimension in self.dimensions.values()]
        return None if None in sizes else math.prod(s for s in sizes if s is not None)

    @property
    def is_grid(self) -> bool:
        """Whether every point is tried, in order."""
        size = self.grid_size
        if size is None or size > MOST_POINTS:
            return False
        return len(self.dimensions) <= 1 or size <= self.trials

    def grid(self) -> Iterator[Point]:
        """Every point, the last dimension fastest; models vary slowest, so that each is built once."""
        names = sorted(self.dimensions, key=lambda name: not name.startswith("parameters."))
        for values in itertools.product(*(_values(self.dimensions[name]) for name in names)):
            yield dict(zip(names, values, strict=True))

    @property
    def needs_evaluation(self) -> bool:
        """Whether an objective or a limit asks for more than the compile tells."""
        return bool(EVALUATED & {*self.asked})

    @property
    def asked(self) -> tuple[str, ...]:
        """The figures that objectives and limits name."""
        return tuple(dict.fromkeys((*self.objectives, *(bound.figure for bound in self.limits))))

    @property
    def digest(self) -> str:
        """What makes two searches the same; more trials only extend one."""
        content: list[Any] = [self.model, {k: repr(v) for k, v in self.dimensions.items()}, self.fixed]
        content += [self.objectives, [str(b) for b in self.limits], self.data, self.seed, self.batch]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


# Figures of an evaluation; the others are those of the compile's summary, and these from it.
EVALUATED = frozenset({"accuracy", "accuracy_float", "drop", "agreement", "sqnr_db", "metric", "measured"})
LABELLED = frozenset({"accuracy", "accuracy_float", "drop"})  # those of them that need labels
COMPUTED = frozenset({"sram_bytes", "flash_bytes", "time_ms", "cycles", "cpu_nodes"})
_SUMMARY = frozenset(
    {
        "partitions", "npu_nodes", "macs_npu", "macs_cpu", "scratch_bytes", "sram_prefetch_bytes",
        "weights_bytes", "planned_bytes", "io_bytes", "reserve_bytes", "program_bytes",
        "cycles_estimated", "cycles_npu", "cycles_cpu",
        "cycles_borders", "time_us_estimated", "quantize_steps", "dequantize_steps", "border_transposes",
    }
)  # fmt: skip
FIGURES = EVALUATED | COMPUTED | _SUMMARY


def read_space(path: Path) -> Space:
    """The space of a TOML file; paths in it are relative to the file."""
    return make_space(read_toml(path, CODE, "docs/sweep.md has examples."), str(path), path.parent)


def make_space(table: Mapping[str, Any], where: str = "space", folder: Path | None = None) -> Space:
    """The space of a table as TOML has it; whatever is wrong with it is a diagnostic."""
    _known(table, _KEYS, where)
    model = table.get("model")
    if not isinstance(model, str) or not model:
        fail(CODE, where, "names no model", 'Write model = "...": a zoo name or a file.')
    dimensions, fixed = _dimensions(table, where)
    if _table(table, "parameters", where) and ".py:" not in model:
        fail(CODE, f"{where}: parameters", "only FILE.py:FUNCTION takes parameters", f"model is {model!r}.")
    data = _table(table, "data", where)
    _known(data, _DATA, f"{where}: data")
    workers = _table(table, "workers", where)
    _known(workers, _WORKERS, f"{where}: workers")
    objectives = _objectives(_table(table, "objectives", where), where)
    limits = tuple(_bound(name, text, where) for name, text in _table(table, "limits", where).items())
    asked = {*objectives, *(bound.figure for bound in limits)}
    if "metric" in asked and "metric" not in data:
        fail(CODE, f"{where}: objectives", "there is no metric", 'Write [data] metric = "file.py:function".')
    _check_data(data, where)
    if not isinstance(workers.get("ship", False), bool):
        _wrong(f"{where}: workers.ship", "true or false", workers["ship"])
    return Space(
        model=_located(model, folder),
        dimensions=dimensions,
        fixed=fixed,
        objectives=objectives,
        limits=limits,
        data={k: _located(v, folder) if k not in _NO_FILES else v for k, v in data.items()},
        trials=_count(table, "trials", 30, where),
        seed=_count(table, "seed", 0, where, least=0),
        batch=_count(table, "batch", 8, where, most=_MOST_BATCH),
        ship=bool(workers.get("ship", False)),
    )


def _dimensions(table: Mapping[str, Any], where: str) -> tuple[dict[str, Dimension], Point]:
    """What varies, and what has one value."""
    dimensions: dict[str, Dimension] = {}
    fixed: Point = {}
    for part in ("parameters", "options"):
        for name, value in _table(table, part, where).items():
            key, place = f"{part}.{name}", f"{where}: {part}.{name}"
            if isinstance(value, list) and name not in _LISTS:
                dimensions[key] = _choice(value, place)
            elif isinstance(value, list) and value and all(isinstance(item, list) for item in value):
                dimensions[key] = Choice(tuple(tuple(item) for item in value))
            elif isinstance(value, Mapping):
                dimensions[key] = _range(value, place)
            else:
                fixed[key] = value
    if not dimensions:
        hint = "Write a list: [options] per_channel = [false, true], or [parameters] width = [0.5, 1.0]."
        fail(CODE, where, "nothing varies in it", hint)
    return dimensions, fixed


def _check_data(data: Mapping[str, Any], where: str) -> None:
    for name in ("calibration", "test", "metric"):
        if not isinstance(data.get(name, "x"), str) or not data.get(name, "x"):
            fail(CODE, f"{where}: data.{name}", "must be the name of a file", _DOCS)
    _count(data, "samples", 1, f"{where}: data")
    boards = data.get("boards", [])
    if not isinstance(boards, list) or not all(isinstance(name, str) and name for name in boards):
        fail(CODE, f"{where}: data.boards", "must be a list of ports", 'Write boards = ["/dev/ttyACM0"].')
    for name in ("baud", "timeout"):
        if isinstance(data.get(name, 1), bool) or not isinstance(data.get(name, 1), int | float):
            fail(CODE, f"{where}: data.{name}", "must be a number", "As of `run --board`.")


# Options whose value is a list itself.
_LISTS = ("keep_float", "operators_not_to_delegate", "shape", "fix", "state", "mean", "std")


def _choice(values: list[Any], where: str) -> Choice:
    if not values:
        fail(CODE, where, "is an empty list", "Give the values to try.")
    if any(isinstance(v, list | dict) for v in values):
        fail(CODE, where, "has a value that is no number, string or truth value", _DOCS)
    return Choice(tuple(dict.fromkeys(values)))


def _range(value: Mapping[str, Any], where: str) -> Range:
    _known(value, _RANGE, where)
    low, high, step = value.get("from"), value.get("to"), value.get("step")
    numbers = [v for v in (low, high, step) if v is not None]
    if (
        low is None
        or high is None
        or any(isinstance(v, bool) or not isinstance(v, int | float) for v in numbers)
    ):
        fail(
            CODE,
            where,
            "is no range of numbers",
            "Write { from = 1, to = 10 }, with step or log if you like.",
        )
    if any(not -_MOST_NUMBER <= v <= _MOST_NUMBER for v in numbers):
        fail(CODE, where, "has a number that is not finite, or too large", f"At most {_MOST_NUMBER:,}.")
    log = value.get("log", False)
    if not low < high or (step is not None and step <= 0) or (log and (low <= 0 or step is not None)):
        fail(
            CODE, where, f"is no range: {dict(value)}", "from < to, step > 0; log wants from > 0 and no step."
        )
    if step is not None and step * _MOST_NUMBER < high - low:
        fail(CODE, where, "has a step that is too small", "Leave it out: then every number may be tried.")
    return Range(low, high, step, bool(log))


def _objectives(table: Mapping[str, Any], where: str) -> dict[str, str]:
    if not table:
        hint = 'Write [objectives] accuracy = "max", sram_bytes = "min", or others.'
        fail(CODE, where, "has no objective", hint)
    for name, aim in table.items():
        _figure(name, f"{where}: objectives")
        if not isinstance(aim, str) or aim not in _AIMS:
            fail(CODE, f"{where}: objectives.{name}", f"must be max or min (got {aim!r})")
    return {name: _AIMS[aim] for name, aim in table.items()}


def _bound(name: str, text: Any, where: str) -> Bound:
    _figure(name, f"{where}: limits")
    match = _LIMIT.fullmatch(text) if isinstance(text, str) else None
    try:
        assert match is not None
        value = float(match[2]) * {"": 1, "K": 1024, "M": 1024 * 1024}[match[3].upper()]
    except (AssertionError, ValueError):
        fail(CODE, f"{where}: limits.{name}", f"is no limit: {text!r}", 'Write "<= 512K" or ">= 0.95".')
    return Bound(name, match[1], value)


def _figure(name: str, where: str) -> None:
    if name not in FIGURES:
        fail(CODE, f"{where}.{name}", "there is no such figure", nearest(name, FIGURES))


def _table(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        _wrong(f"{where}: {key}", "a table", value)
    return value


def _count(
    table: Mapping[str, Any], key: str, default: int, where: str, least: int = 1, most: int = _MOST_NUMBER
) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        _wrong(f"{where}: {key}", f"a whole number from {least} to {most:,}", value)
    return value


def _large(number: int) -> str:
    return f"{number:,}" if number < 10**18 else f"about 10^{round(math.log10(number))}"


def _known(table: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in names:
            fail(CODE, f"{where}: {key}", "there is no such key", nearest(str(key), names))


def _located(text: Any, folder: Path | None) -> Any:
    """Paths are relative to the space's file; a name without an ending is the zoo's."""
    if folder is None or not isinstance(text, str) or ("." not in text and "/" not in text):
        return text
    return str(folder / text)


def _wrong(where: str, expected: str, value: Any) -> NoReturn:
    fail(CODE, where, f"must be {expected} (got {value!r})", _DOCS)


def _size(dimension: Dimension) -> int | None:
    if isinstance(dimension, Choice):
        return len(dimension.values)
    return dimension.count


def _values(dimension: Dimension) -> Iterable[Any]:
    if isinstance(dimension, Choice):
        return dimension.values
    return map(dimension.value, range(dimension.count or 0))
