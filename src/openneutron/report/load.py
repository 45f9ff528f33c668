"""Figures of a compile: from a report, from what `compile --json` or `eval --json` printed, from a .pte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from openneutron.diagnostics import fail
from openneutron.files import read_text

SCHEMA = 1  # the one `report.data` writes; repeated here so that reading needs no torch
ACCURACIES = ("float", "quantized", "simulator")
_REQUIRED = ("partitions", "npu_nodes", "cpu_nodes", "cycles_estimated", "scratch_bytes", "program_bytes")
_HINT = "Give what `openneutron report -o FILE.json`, `compile --json` or `eval --json` wrote."


@dataclass(frozen=True)
class Loaded:
    """The figures of one compile; `nodes` and `errors` are in reports, `accuracy` is in what eval prints."""

    name: str
    summary: dict[str, Any]
    nodes: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    accuracy: dict[str, float] = field(default_factory=dict)


def load_report(path: Path | str) -> Loaded:
    """Read a JSON file, or the report of a .pte; whatever is wrong with it is a diagnostic."""
    where = str(path)
    if Path(path).suffix == ".pte":
        from openneutron.report.sidecar import report_of_program  # needs ExecuTorch, JSON does not

        return report_of(report_of_program(Path(path)), where)
    text = read_text(Path(path), "ON608")
    try:
        data = json.loads(text)
    except RecursionError:
        fail("ON608", where, "is nested too deeply", "Write it again.")
    except ValueError as error:
        fail("ON608", where, f"is not JSON: {error}", "If it was cut off, write it again.")
    return report_of(data, where)


def report_of(data: Any, where: str) -> Loaded:
    """The figures in parsed JSON."""
    if not isinstance(data, dict):
        _not_a_report(where, f"holds a {type(data).__name__}, not an object")
    if "schema" in data and data["schema"] != SCHEMA:
        fail("ON608", where, f"has schema {data['schema']!r}; this version of openneutron knows {SCHEMA}",
             "Write the report again with this version, or update openneutron.")  # fmt: skip
    wrapped = "schema" in data or "samples" in data
    summary = data.get("summary") if wrapped else data
    if not isinstance(summary, dict):
        _not_a_report(where, "has no summary")
    if missing := [key for key in _REQUIRED if key not in summary]:
        _not_a_report(where, f"has no '{missing[0]}'")
    lists = {key: data.get(key, []) if "schema" in data else [] for key in ("nodes", "errors")}
    for key, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            _not_a_report(where, f"'{key}' is not a list of objects")
    accuracy = {key: float(data[key]) for key in ACCURACIES if isinstance(data.get(key), int | float)}
    name = data.get("name") or Path(str(summary.get("program") or where)).stem
    return Loaded(str(name), summary, lists["nodes"], lists["errors"], accuracy if wrapped else {})


def figure_of(summary: Mapping[str, Any], key: str) -> Any:
    """A figure of a summary; None if it is not there or not known: not every delegate tells what it does."""
    timed = key.startswith("cycles_") or key == "time_us_estimated"
    if key in summary.get("unknown", ()) or (
        timed and summary.get("partitions") and summary.get("cycles_npu") == 0
    ):
        return None
    return summary.get(key)


def _not_a_report(where: str, problem: str) -> NoReturn:
    fail("ON608", where, f"is no report: it {problem}", _HINT)
