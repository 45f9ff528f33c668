"""Measured times of a program, kept beside it: `model.measured.json`, bound to it by its checksum."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from openneutron.board.session import BoardRun
from openneutron.files import read_text, write_atomically

SCHEMA = 1
_MOST = 100  # measurements that are kept: the newest
_TEXTS, _NUMBERS = (
    ("firmware", "unit", "when"),
    ("inferences", "median", "mean", "minimum", "maximum", "deviation"),
)


def measured_path(program: Path) -> Path:
    """Where the measurements of a program are kept."""
    return program.with_name(f"{program.stem}.measured.json")


def read_measurements(program: Path, data: bytes) -> list[dict[str, Any]]:
    """The measurements of this very program, oldest first; none if there are none, or they are damaged."""
    try:
        document = json.loads(read_text(measured_path(program), "ON608"))
        if document["schema"] != SCHEMA or document["program"] != hashlib.sha256(data).hexdigest():
            return []
        rows = [_row(row) for row in document["runs"]]
        return rows if all(row["unit"] in ("microseconds", "instructions") for row in rows) else []
    except Exception:  # not there, not JSON, not ours: as if nothing had been measured
        return []


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {key: str(row[key]) for key in _TEXTS} | {key: float(row[key]) for key in _NUMBERS}


def add_measurement(program: Path, data: bytes, run: BoardRun) -> dict[str, Any]:
    """Write a measurement behind the earlier ones; those of another program are dropped."""
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    row = {"firmware": run.firmware.name, "when": when, **run.statistics()}
    runs = [*read_measurements(program, data), row][-_MOST:]
    content = {"schema": SCHEMA, "program": hashlib.sha256(data).hexdigest(), "runs": runs}
    write_atomically(measured_path(program), (json.dumps(content, indent=1) + "\n").encode())
    return row
