"""Figures of a compile: from a report, from what `compile --json` or `eval --json` printed, from a .pte."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from openneutron.diagnostics import fail
from openneutron.files import read_text

SCHEMA = 1  # the one `report.data` writes; repeated here so that reading needs no torch
ACCURACIES = ("float", "quantized", "simulator")
_REQUIRED = ("partitions", "npu_nodes", "cpu_nodes", "cycles_estimated", "scratch_bytes", "program_bytes")
# key, words, and whether more of it is worse; None: neither.
FIGURES: tuple[tuple[str, str, bool | None], ...] = (
    ("cycles_estimated", "cycles (estimated)", True),
    ("cycles_npu", "  on the NPU", None),
    ("cycles_cpu", "  on the CPU", None),
    ("cycles_borders", "  at the borders", None),
    ("time_us_estimated", "time, us (estimated)", None),
    ("sram_needed", "SRAM needed, bytes", True),
    ("scratch_bytes", "  scratch", None),
    ("sram_prefetch_bytes", "  prefetched weights", None),
    ("io_bytes", "  inputs and outputs", None),
    ("reserve_bytes", "  activations, inputs and outputs together", None),
    ("planned_bytes", "  planned by ExecuTorch", None),
    ("program_bytes", "flash (program file), bytes", True),
    ("weights_bytes", "  weights", None),
    ("partitions", "partitions", True),
    ("npu_nodes", "nodes on the NPU", None),
    ("cpu_nodes", "nodes on the CPU", True),
    ("macs_npu", "MACs on the NPU", None),
    ("macs_cpu", "MACs on the CPU", True),
    ("border_transposes", "transposes at the borders", None),
    ("runtime_transposes", "transposes by the runtime", None),
    ("quantize_steps", "quantize steps", None),
    ("dequantize_steps", "dequantize steps", None),
)
_TEXTS = {"nodes": ("name", "op", "where"), "errors": ("name",), "cpu_nodes": ("node",)}
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
    _check_types(summary, where)
    for key, value in {**lists, "cpu_nodes": summary["cpu_nodes"]}.items():
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            _not_a_report(where, f"'{key}' is not a list of objects")
        for entry in value:
            _check_entry(entry, _TEXTS[key], where)
    accuracy = {key: float(data[key]) for key in ACCURACIES if isinstance(data.get(key), int | float)}
    name = data.get("name") or Path(str(summary.get("program") or where)).stem
    return Loaded(str(name), summary, lists["nodes"], lists["errors"], accuracy if wrapped else {})


def _check_types(summary: Mapping[str, Any], where: str) -> None:
    """Refuse a figure that is no number, and names that are no text."""
    for key in (*(key for key, *_ in FIGURES if key != "cpu_nodes"), "time_us_measured"):
        is_given = summary.get(key) is not None or key in ("partitions", "scratch_bytes", "program_bytes")
        if is_given and not _is_number(summary[key]):
            _not_a_report(where, f"'{key}' is not a number")
    for key in ("kernels", "unknown"):
        names = summary.get(key) or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            _not_a_report(where, f"'{key}' is not a list of names")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _check_entry(entry: Mapping[str, Any], texts: tuple[str, ...], where: str) -> None:
    for key in texts:
        if not isinstance(entry.get(key), str):
            _not_a_report(where, f"'{key}' of a node is not a text")
    for key in ("cycles", "sqnr_db"):
        if not isinstance(entry.get(key), int | float | None):
            _not_a_report(where, f"'{key}' of a node is not a number")
    reason = entry.get("reason")
    if not isinstance(reason.get("reason") if isinstance(reason, dict) else reason, str | None):
        _not_a_report(where, "'reason' of a node is not a text")


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
