"""One trial: what is asked of a worker, and what comes back. Plain values that travel between processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DONE, OVER, FAILED = "done", "over a limit", "failed"


@dataclass(frozen=True)
class Job:
    """What a worker needs to run a trial."""

    number: int
    point: dict[str, Any]  # the values of the dimensions
    model: str
    parameters: dict[str, Any]
    options: dict[str, Any]
    data: dict[str, Any]
    limits: tuple[tuple[str, str, float], ...]
    asked: tuple[str, ...]  # the figures that objectives and limits name
    evaluate: bool
    folder: str  # where the program and its report go, on a path that the worker sees
    reports: bool = True
    files: dict[str, bytes] = field(default_factory=dict)  # what travels with it, by path


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    number: int
    state: str
    figures: dict[str, float] = field(default_factory=dict)
    code: str = ""
    reason: str = ""
    seconds: float = 0.0
    command: str = ""
    program: bytes | None = None  # sent back when files travel; otherwise it is in the job's folder
    report: bytes | None = None

    def as_row(self, point: dict[str, Any]) -> dict[str, Any]:
        """A line of the log."""
        row = asdict(self)
        del row["program"], row["report"]
        return {"number": self.number, "point": point, **row}
