"""Budgets: a TOML file says what a model may cost and must reach; every key is checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from openneutron.diagnostics import fail, nearest
from openneutron.files import read_toml
from openneutron.report.difference import reserve, sram_needed
from openneutron.report.load import Loaded, figure_of

_SIZE = re.compile(r"\s*([\d._]+)\s*([KM])?i?B?\s*", re.I)


@dataclass(frozen=True)
class Limit:
    """One kind of budget: its key, what is measured, and whether the budget is the most or the least."""

    key: str
    label: str
    unit: str
    measure: Callable[[Loaded], float | None]  # None: unknown
    needs_accuracy: bool = False

    @property
    def is_most(self) -> bool:
        """Whether the budget is an upper bound."""
        return self.key.startswith("max_")


def _share(report: Loaded, npu: str, cpu: str) -> float | None:
    values: list[Any] = [figure_of(report.summary, npu), figure_of(report.summary, cpu)]
    inside, outside = (len(value) if isinstance(value, list) else value for value in values)
    if inside is None or outside is None:
        return None
    return 100 * inside / (inside + outside) if inside + outside else 100.0


def _time(report: Loaded) -> float | None:
    value = report.summary.get("time_us_estimated")
    return None if value is None else value / 1000


def _measured(report: Loaded) -> float | None:
    value = report.summary.get("time_us_measured")
    return None if value is None else value / 1000


def _loss(report: Loaded) -> float | None:
    accuracy = report.accuracy
    return accuracy["float"] - accuracy["simulator"] if {"float", "simulator"} <= accuracy.keys() else None


def _estimated(key: str) -> Callable[[Loaded], float | None]:
    # The eiq converter tells nothing of its calls: no estimate is no pass.
    return lambda report: report.summary.get(key) or None


LIMITS = (
    Limit("max_cycles", "cycles (estimated)", "cycles", _estimated("cycles_estimated")),
    Limit("max_time_ms", "time (estimated)", "ms", lambda r: _time(r) or None),
    Limit("max_measured_ms", "time (measured)", "ms", lambda r: _measured(r)),
    Limit("max_sram", "SRAM", "bytes", lambda r: sram_needed(r.summary)),
    Limit("max_reserve", "activations, inputs and outputs", "bytes", lambda r: reserve(r.summary)),
    Limit("max_scratch", "scratch", "bytes", lambda r: r.summary["scratch_bytes"]),
    Limit("max_flash", "flash (program file)", "bytes", lambda r: r.summary["program_bytes"]),
    Limit("max_partitions", "partitions", "", lambda r: r.summary["partitions"]),
    Limit("max_cpu_nodes", "nodes on the CPU", "", lambda r: len(r.summary["cpu_nodes"])),
    Limit("min_npu_macs", "MACs on the NPU", "%", lambda r: _share(r, "macs_npu", "macs_cpu")),
    Limit("min_npu_nodes", "nodes on the NPU", "%", lambda r: _share(r, "npu_nodes", "cpu_nodes")),
    Limit("min_accuracy", "accuracy", "", lambda r: r.accuracy.get("simulator"), needs_accuracy=True),
    Limit("max_accuracy_loss", "accuracy lost to int8", "", _loss, needs_accuracy=True),
)
_BY_KEY = {limit.key: limit for limit in LIMITS}
_BYTES = ("max_sram", "max_reserve", "max_scratch", "max_flash")
SETTINGS = ("model", "name", "options", "data", "samples")


@dataclass(frozen=True)
class Budget:
    """What one model may cost."""

    name: str
    model: str  # as the command line takes it, or a .json report; paths are made absolute
    limits: dict[str, float]
    options: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    samples: int | None = None

    @property
    def needs_accuracy(self) -> bool:
        """Whether the model has to be evaluated."""
        return any(_BY_KEY[key].needs_accuracy for key in self.limits)


@dataclass(frozen=True)
class Check:
    """A budget and what was found; `actual` None: it is not known, which is no pass."""

    key: str
    label: str
    unit: str
    budget: float
    actual: float | None
    is_most: bool

    @property
    def margin(self) -> float | None:
        """What is left of the budget; negative if it is exceeded."""
        if self.actual is None:
            return None
        return self.budget - self.actual if self.is_most else self.actual - self.budget

    @property
    def ok(self) -> bool:
        """Whether the budget is kept."""
        return self.margin is not None and self.margin >= 0

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        row = {"key": self.key, "label": self.label, "unit": self.unit, "budget": self.budget}
        return {**row, "actual": self.actual, "margin": self.margin, "ok": self.ok}


def check_budget(budget: Budget, report: Loaded) -> list[Check]:
    """Compare a model's figures with its budget."""
    lines = []
    for limit in LIMITS:
        if limit.key in budget.limits:
            value = limit.measure(report)
            lines.append(
                Check(limit.key, limit.label, limit.unit, budget.limits[limit.key], value, limit.is_most)
            )
    return lines


def read_budgets(path: Path) -> list[Budget]:
    """The budgets of a TOML file; whatever is wrong with it is a diagnostic."""
    where = str(path)
    data = read_toml(path, "ON108", "docs/ci-gate.md has an example.")
    for key in data:
        if key != "model":
            fail("ON108", f"{where}: {key}", "there is no such key", "Write [[model]] tables, nothing else.")
    tables = data.get("model", [])
    if not isinstance(tables, list) or not tables:
        fail("ON108", where, "there is no [[model]] table", "Write one for each model.")
    return [_budget(table, f"{where}: model {i}", path.parent) for i, table in enumerate(tables, 1)]


def _budget(table: Any, where: str, folder: Path) -> Budget:
    if not isinstance(table, Mapping):
        fail("ON108", where, "is not a table", "Write [[model]], then one key a line.")
    names = (*SETTINGS, *_BY_KEY)
    for key in table:
        if key not in names:
            fail("ON108", f"{where}: {key}", "there is no such key", nearest(key, names))
    model = table.get("model")
    if not isinstance(model, str) or not model:
        fail("ON108", where, "names no model", 'Write model = "...": a zoo name, a file, or a .json report.')
    limits = {key: _limit(key, table[key], f"{where}: {key}") for key in table if key in _BY_KEY}
    if not limits:
        fail("ON108", where, "has no budget", f"Known: {', '.join(_BY_KEY)}")
    options, samples = table.get("options", {}), table.get("samples")
    if not isinstance(options, Mapping):
        _wrong(f"{where}: options", "a table", options)
    if samples is not None and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
        _wrong(f"{where}: samples", "a positive number", samples)
    for key in ("name", "data"):
        if not isinstance(table.get(key, ""), str):
            _wrong(f"{where}: {key}", "a string", table[key])
    data = table.get("data")
    return Budget(
        name=table.get("name", model),
        model=_located(model, folder),
        limits=limits,
        options={k: _located(v, folder) if k == "calibration" else v for k, v in options.items()},
        data=None if data is None else _located(data, folder),
        samples=samples,
    )


def _located(text: Any, folder: Path) -> Any:
    """Paths are relative to the budget file; a name without an ending is the zoo's."""
    if not isinstance(text, str) or ("." not in text and "/" not in text):
        return text
    return str(folder / text)


def _limit(key: str, value: Any, where: str) -> float:
    if key in _BYTES and isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            _wrong(where, 'a number of bytes or a size like "128K"', value)
        factor = {"K": 1024, "M": 1024 * 1024}.get((match[2] or "").upper(), 1)
        try:
            return int(float(match[1]) * factor)
        except ValueError:
            _wrong(where, 'a number of bytes or a size like "128K"', value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        _wrong(where, "a number that is not negative", value)
    if key == "min_accuracy" and value > 1:
        _wrong(where, "a number from 0 to 1", value)
    if key in ("min_npu_macs", "min_npu_nodes") and value > 100:
        _wrong(where, "a percentage", value)
    return value


def _wrong(where: str, expected: str, value: Any) -> NoReturn:
    fail("ON108", where, f"must be {expected} (got {value!r})", "docs/ci-gate.md lists the keys.")
