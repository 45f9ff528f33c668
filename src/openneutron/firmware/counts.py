"""Counted instructions as a file beside a program, for the report."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from openneutron.diagnostics import fail
from openneutron.files import write_atomically
from openneutron.firmware.whole import WholeFirmware
from openneutron.firmware.whole_run import WholeRun

COUNTS = "counts.json"


def write_counts(firmware: WholeFirmware, run: WholeRun) -> Path:
    """Write what every step of every method took into the firmware's folder."""
    steps = [
        {
            "method": s.method,
            "instruction": s.number,
            "operator": s.operator,
            "instructions": s.instructions,
            "kernels": dict(s.kernels),
        }
        for s in run.steps
    ]
    data = {"core": firmware.core.name, "program": _digest(firmware.program.data), "steps": steps}
    path = firmware.folder / COUNTS
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode())
    return path


@dataclass(frozen=True)
class Counts:
    """Instructions counted on the target, by method and number of the instruction."""

    core: str
    steps: dict[tuple[str, int], int]


def read_counts(path: Path, program: bytes) -> Counts:
    """The counts of a file; one of another program is refused."""
    try:
        data = json.loads(path.read_text())
        steps = {(s["method"], int(s["instruction"])): int(s["instructions"]) for s in data["steps"]}
        core, digest = str(data["core"]), data["program"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fail("ON605", str(path), f"holds no counts ({type(error).__name__})",
             "Make it: openneutron firmware FILE.pte --run")  # fmt: skip
    if digest != _digest(program):
        fail("ON605", str(path), "these are the counts of another program",
             "Make them again: openneutron firmware FILE.pte --run")  # fmt: skip
    return Counts(core, steps)


def _digest(program: bytes) -> str:
    return hashlib.sha256(program).hexdigest()
