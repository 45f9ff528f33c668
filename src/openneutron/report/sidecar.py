"""The report beside a program: `model.pte` has `model.report.json`, bound to it by the checksum in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openneutron.board.measurements import read_measurements
from openneutron.diagnostics import OpenNeutronError
from openneutron.files import COUNTS, read_text, write_atomically
from openneutron.package.pte import read_program
from openneutron.report.data import SCHEMA
from openneutron.report.from_program import report_from_program

_TEXTS, _NUMBERS = ("method", "operator"), ("instruction", "instructions", "estimated_cycles", "border")


def sidecar_path(program: Path) -> Path:
    """Where the report of a program is kept."""
    return program.with_name(f"{program.stem}.report.json")


def write_sidecar(program: Path, data: Mapping[str, Any], inputs: Sequence[Any] = ()) -> Path:
    """Write the report beside the program, with the inputs it was compiled with unless they are large."""
    path = sidecar_path(program)
    arrays = [np.asarray(value) for value in inputs]
    if arrays and sum(array.nbytes for array in arrays) <= _MOST_INPUT_BYTES:
        data = {**data, _INPUTS: [_written(array) for array in arrays]}
    write_atomically(path, json.dumps(data).encode())
    return path


def _written(array: np.ndarray) -> dict[str, Any]:
    raw = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": raw}


def kept_inputs(program: Path) -> list[np.ndarray] | None:
    """The inputs that a program was compiled with, from the report beside it; None if that has none."""
    try:
        data = json.loads(read_text(sidecar_path(program), "ON608"))
        if data["sha256"] != hashlib.sha256(read_program(program)[0]).hexdigest():
            return None
        return [
            np.frombuffer(base64.b64decode(row["data"]), np.dtype(str(row["dtype"]))).reshape(row["shape"])
            for row in data[_INPUTS]
        ]
    except (OpenNeutronError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


_INPUTS = "example_inputs"
_MOST_INPUT_BYTES = 1 << 20


def report_of_program(program: Path) -> dict[str, Any]:
    """The report of a .pte: the one beside it if it is this program's, else what the program itself tells."""
    raw, _ = read_program(program)
    data = _known(program, raw)
    data["counts"] = _counts(program, raw)
    data["measured"] = read_measurements(program, raw)
    times = [row["median"] for row in data["measured"] if row["unit"] == "microseconds"]
    data["summary"]["time_us_measured"] = times[-1] if times else None
    return data


def _counts(program: Path, raw: bytes) -> dict[str, Any] | None:
    """What `openneutron firmware --run` counted of this very program, if it did so here or beside it."""
    for folder in (program.parent, Path()):
        path = folder / f"{program.stem}_firmware" / COUNTS
        try:
            data = json.loads(read_text(path, "ON608"))
            counted = [[str(s[k]) for k in _TEXTS] + [int(s[k]) for k in _NUMBERS] for s in data["steps"]]
            if data["program"] == hashlib.sha256(raw).hexdigest():
                rows = [dict(zip((*_TEXTS, *_NUMBERS), row, strict=True)) for row in counted]
                return {"core": str(data["core"]), "steps": rows}
        except (OpenNeutronError, ValueError, KeyError, TypeError, RecursionError):
            continue  # not there, or none of ours
    return None


def _known(program: Path, raw: bytes) -> dict[str, Any]:
    path = sidecar_path(program)
    if not path.exists():
        return report_from_program(program, note=f"There is no {path.name} beside the program.")
    try:
        data = json.loads(read_text(path, "ON608"))
    except (OpenNeutronError, ValueError, RecursionError):
        return report_from_program(program, note=f"{path.name} cannot be read.")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        return report_from_program(program, note=f"{path.name} was written by another version.")
    if data.get("sha256") != hashlib.sha256(raw).hexdigest():
        return report_from_program(program, note=f"{path.name} is of another program: its checksum differs.")
    own = report_from_program(program, note="")
    if strange := _wrong_type(data, own, ""):
        note = f"{path.name} is damaged: {strange} has another type than in a report."
        return report_from_program(program, note=note)
    data["summary"]["program"] = str(program)
    return data


def _wrong_type(value: Any, like: Any, where: str) -> str | None:
    """The first place where one value has another type than the other; what either lacks is not compared."""
    if isinstance(value, dict) and isinstance(like, dict):
        both = (_wrong_type(value[k], like[k], f"{where}.{k}".lstrip(".")) for k in like if k in value)
        return next((strange for strange in both if strange), None)
    if isinstance(value, list) and isinstance(like, list):
        each = (_wrong_type(item, like[0], f"{where}[{i}]") for i, item in enumerate(value) if like)
        return next((strange for strange in each if strange), None)
    numbers = isinstance(value, int | float) and isinstance(like, int | float)
    alike = numbers or value is None or like is None or isinstance(value, type(like))
    return None if alike else where or "the whole"
