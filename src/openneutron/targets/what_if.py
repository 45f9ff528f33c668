"""Chips that a user makes up: a TOML file that changes some fields of a real one, to ask what that would do.

    base = "imxrt700"
    macs = 128                # or pipes and macs_per_pipe
    sram_bytes = 3_932_160

    [cost]
    sram_bytes_per_cycle = 6

The file comes from anywhere: every field is checked, and none is more than a number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from openneutron.diagnostics import fail, nearest
from openneutron.files import read_toml
from openneutron.targets.chip import INVENTED, Target
from openneutron.targets.cost import CostModel

SUFFIX = ".toml"
_CODE = "ON113"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
# The least and the most that makes sense to ask for; the compiler's own arithmetic holds far beyond.
_RANGES = {
    "units": (1, 64),
    "pipes": (1, 1024),
    "macs_per_pipe": (1, 1024),
    "macs": (1, 1 << 20),
    "frequency_hz": (10**5, 10**11),
    "sram_bytes": (1024, 1 << 31),
    "flash_bytes": (1024, 1 << 31),
}
_LEAST_COST, _MOST_COST = 1e-6, 1e12
_HINT = "docs/targets.md has the fields: base, name, macs, sram_bytes, frequency_hz, ... and [cost]."


def read_invented(path: Path, known: Mapping[str, Target], refused: Collection[str]) -> Target:
    """The chip that a file describes."""
    data, where = read_toml(path, _CODE, _HINT), str(path)
    base = _base(data.pop("base", None), where, known)
    name = data.pop("name", re.sub(r"[^A-Za-z0-9_-]", "_", path.stem)[:32])
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {*known, *refused}:
        fail(_CODE, where, f"the name {str(name)[:40]!r} is a real chip's, or not letters, digits, - and _",
             'Give another name: name = "mychip"')  # fmt: skip
    cost = data.pop("cost", {})
    if not isinstance(cost, dict):
        fail(_CODE, where, "cost is not a table", "Write [cost] and the parameters below it.")
    changes: dict[str, Any] = {}
    for key, value in data.items():
        if key == "reads_flash":
            changes[key] = _flag(value, where)
        elif key in _RANGES:
            changes[key] = _whole(key, value, *_RANGES[key], where)
        else:
            fail(_CODE, where, f"there is no field {str(key)[:40]!r}",
                 nearest(str(key), [*_RANGES, "base", "name", "reads_flash", "cost"]))  # fmt: skip
    shape = _shape(changes, base, where)
    costs: dict[str, Any] = {str(key): _cost(str(key), value, where) for key, value in cost.items()}
    said = ", ".join(f"{k} {v:g}" for k, v in {**changes, **costs}.items()) or "nothing changed"
    model = _derived(base, shape, costs)
    return replace(
        base,
        **shape,
        name=name,
        number=INVENTED,
        chip=f"{name} (INVENTED, after {base.chip})",
        cost=replace(model, **costs, sources=tuple((key, f"invented: {where}") for key in costs)),
        cores=(),
        published=(),
        facts=(),
        invented=f"{base.chip} with {said}",
    )


def _base(value: Any, where: str, known: Mapping[str, Target]) -> Target:
    if not isinstance(value, str) or value not in known:
        trouble = "is missing" if value is None else f"{str(value)[:40]!r} is no chip"
        fail(_CODE, where, f"base {trouble}", f"Name the chip that is changed: {', '.join(known)}.")
    return known[value]


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        fail(_CODE, where, "reads_flash is not true or false", _HINT)
    return value


def _whole(key: str, value: Any, least: int, most: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        fail(_CODE, where, f"{key} is not a whole number from {least:,} to {most:,}", _HINT)
    return value


def _cost(key: str, value: Any, where: str) -> Any:
    """A parameter of the cost model: a positive number; NaN and infinity are none."""
    names = {item.name: item for item in fields(CostModel) if item.metadata}
    if key not in names:
        fail(_CODE, where, f"the cost model has no parameter {key[:40]!r}", nearest(key, list(names)))
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not _LEAST_COST <= value <= _MOST_COST
    ):
        fail(_CODE, where, f"cost.{key} is not a number from {_LEAST_COST:g} to {_MOST_COST:g}", _HINT)
    if names[key].type == "int" and value != int(value):
        fail(_CODE, where, f"cost.{key} is not a whole number", _HINT)
    return int(value) if names[key].type == "int" else float(value)


def _shape(changes: dict[str, Any], base: Target, where: str) -> dict[str, Any]:
    """The changes with `macs`, all multipliers together, as pipes."""
    shape = dict(changes)
    macs = shape.pop("macs", None)
    if macs is not None:
        if "pipes" in shape:
            fail(_CODE, where, "macs and pipes are both given", "macs is units x pipes x macs_per_pipe.")
        row = shape.get("units", base.units) * shape.get("macs_per_pipe", base.macs_per_pipe)
        if macs % row:
            fail(_CODE, where, f"macs ({macs}) is no multiple of {row}, units x macs_per_pipe",
                 "Give pipes and macs_per_pipe instead.")  # fmt: skip
        shape["pipes"] = macs // row
    return shape


def _derived(base: Target, shape: Mapping[str, Any], costs: Mapping[str, float]) -> CostModel:
    """The base's costs, where they follow from the shape or the clock for those of the changed chip."""
    model, pipes = base.cost, shape.get("pipes", base.pipes)
    if pipes > base.pipes:  # one output a cycle is written, so that a wider tile takes longer
        model = replace(model, drain_cycles=max(model.drain_cycles, pipes))
    if "frequency_hz" in shape and model.cpu_frequency_hz == base.frequency_hz:
        model = replace(model, cpu_frequency_hz=shape["frequency_hz"])
    if "call_cycles" in costs:
        model = replace(model, step_cycles=int(costs["call_cycles"]) // 2)
    return model
