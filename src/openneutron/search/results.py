"""What a search found, as data, as a table of values, and as one web page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openneutron.search.engine import Row
from openneutron.search.space import Space
from openneutron.search.trial import DONE


def sweep_data(space: Space, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
    """Everything the outputs show; paths are relative to the folder."""
    return {
        "model": space.model,
        "seed": space.seed,
        "grid": space.is_grid,
        "dimensions": list(space.dimensions),
        "objectives": {name: aim.removesuffix("imize") for name, aim in space.objectives.items()},
        "limits": [{"figure": b.figure, "sign": b.sign, "value": b.value} for b in space.limits],
        "trials": [_trial(row, folder) for row in rows],
        "front": [row.outcome.number for row in rows if row.on_front],
    }


def _trial(row: Row, folder: Path) -> dict[str, Any]:
    place = Path("trials") / f"{row.outcome.number:04d}"

    def made(name: str) -> str | None:
        return str(place / name) if (folder / place / name).exists() else None

    row_data = row.outcome.as_row(row.point)
    return {**row_data, "front": row.on_front, "program": made("model.pte"), "report": made("report.html")}


def as_csv(data: Mapping[str, Any]) -> str:
    """A line for every trial."""
    figures = sorted({name for trial in data["trials"] for name in trial["figures"]})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["number", "state", "front", *data["dimensions"], *figures, "code", "reason", "command"])
    for trial in data["trials"]:
        values = [trial["point"].get(name, "") for name in data["dimensions"]]
        values += [trial["figures"].get(name, "") for name in figures]
        end = [trial["code"], trial["reason"], trial["command"]]
        writer.writerow([trial["number"], trial["state"], int(trial["front"]), *values, *end])
    return file.getvalue()


def prune_programs(rows: Sequence[Row], folder: Path) -> None:
    """Keep the programs of the front; the others can be made again with their commands."""
    for row in rows:
        program = folder / "trials" / f"{row.outcome.number:04d}" / "model.pte"
        if row.outcome.state == DONE and not row.on_front:
            program.unlink(missing_ok=True)
