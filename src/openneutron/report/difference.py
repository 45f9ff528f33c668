"""Two compiles side by side: figures, what moved between NPU and CPU, layers, errors, accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from openneutron.report.load import ACCURACIES, FIGURES, Loaded, figure_of

_STEPS = "quantized_decomposed."


@dataclass(frozen=True)
class Change:
    """One figure of both; None: one of them does not have it."""

    key: str
    label: str
    a: float | None
    b: float | None
    worse_if_more: bool | None = None

    @property
    def percent(self) -> float | None:
        """The change relative to the first; None if that is nothing."""
        return None if self.a is None or self.b is None or self.a == 0 else 100 * (self.b - self.a) / self.a

    @property
    def worse(self) -> bool:
        """Whether the second is worse than the first."""
        if self.worse_if_more is None or self.a is None or self.b is None:
            return False
        return self.b > self.a if self.worse_if_more else self.b < self.a

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        percent = self.percent
        values = {key: value for key, value in asdict(self).items() if key != "worse_if_more"}
        return {**values, "percent": None if percent is None else round(percent, 3), "worse": self.worse}


@dataclass(frozen=True)
class Difference:
    """All that differs."""

    names: tuple[str, str]
    figures: list[Change]
    moved: list[dict[str, Any]]
    kernels_added: list[str]
    kernels_removed: list[str]
    layers: list[Change]  # cycles of a node, by name; those that differ, the largest change first
    errors: list[Change]  # SQNR of a layer
    accuracy: list[Change]

    def as_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "a": self.names[0],
            "b": self.names[1],
            "figures": [change.as_dict() for change in self.figures],
            "moved": self.moved,
            "kernels_added": self.kernels_added,
            "kernels_removed": self.kernels_removed,
            "layers": [change.as_dict() for change in self.layers],
            "errors": [change.as_dict() for change in self.errors],
            "accuracy": [change.as_dict() for change in self.accuracy],
        }

    def regressions(self, percent: float) -> list[Change]:
        """Figures that are worse by more than so many percent; one that was 0 and is not, too."""
        every = (*self.figures, *self.accuracy)
        return [c for c in every if c.worse and (c.percent is None or abs(c.percent) > percent)]


def compare_reports(a: Loaded, b: Loaded) -> Difference:
    """What differs between two compiles."""
    kernels = [set(figure_of(one.summary, "kernels") or ()) for one in (a, b)]
    if any("kernels" in one.summary.get("unknown", ()) for one in (a, b)):
        kernels = [set(), set()]  # which of them are new is not known
    return Difference(
        names=(a.name, b.name),
        figures=[
            Change(key, label, _figure(a, key), _figure(b, key), worse) for key, label, worse in FIGURES
        ],
        moved=_moved(a, b),
        kernels_added=sorted(kernels[1] - kernels[0]),
        kernels_removed=sorted(kernels[0] - kernels[1]),
        layers=_layers(a, b),
        errors=_errors(a, b),
        accuracy=[
            Change(key, key, a.accuracy.get(key), b.accuracy.get(key), False)
            for key in ACCURACIES
            if key in a.accuracy or key in b.accuracy
        ],
    )


def sram_needed(summary: dict[str, Any]) -> int:
    """Bytes of SRAM the program needs: for all activations, and the weights or their prefetch area."""
    prefetch = int(summary.get("sram_prefetch_bytes") or 0)
    weights = prefetch or int(summary.get("weights_bytes") or 0)
    return reserve(summary) + weights


def reserve(summary: dict[str, Any]) -> int:
    """Bytes for inputs, outputs and activations together; reports of before have the parts of the sum."""
    nbytes = summary.get("reserve_bytes")
    return (
        int(summary["scratch_bytes"]) + int(summary.get("planned_bytes") or 0) if nbytes is None else nbytes
    )


def _figure(report: Loaded, key: str) -> float | None:
    if key == "sram_needed":
        return sram_needed(report.summary)
    value = figure_of(report.summary, key)
    return len(value) if isinstance(value, list) else value


def _moved(a: Loaded, b: Loaded) -> list[dict[str, Any]]:
    """Nodes that run elsewhere now. Without a node list only those on the CPU are known, by name."""
    if a.nodes and b.nodes:
        before, after = _places(a), _places(b)
        return [
            {"node": name, "op": op, "from": before[name][1], "to": place, "reason": reason}
            for name, (op, place, reason) in after.items()
            if name in before and before[name][1] != place
        ]
    cpu = [{entry["node"]: entry for entry in one.summary["cpu_nodes"]} for one in (a, b)]
    gone = [entry | {"to": None, "from": "cpu"} for name, entry in cpu[0].items() if name not in cpu[1]]
    come = [entry | {"to": "cpu", "from": None} for name, entry in cpu[1].items() if name not in cpu[0]]
    keys = ("node", "op", "from", "to", "reason")
    return [{key: entry.get(key) for key in keys} for entry in (*gone, *come)]


def _places(report: Loaded) -> dict[str, tuple[str, str, str | None]]:
    return {
        node["name"]: (node["op"], node["where"], (node.get("reason") or {}).get("reason"))
        for node in report.nodes
        if node["where"] in ("npu", "cpu") and not node["op"].startswith(_STEPS)
    }


def _layers(a: Loaded, b: Loaded) -> list[Change]:
    cycles = [{n["name"]: n.get("cycles") for n in one.nodes if n["where"] != "io"} for one in (a, b)]
    changes = [Change(name, name, cycles[0].get(name), cycles[1].get(name)) for name in _union(*cycles)]
    changed = [c for c in changes if (c.a or 0) != (c.b or 0)] if a.nodes and b.nodes else []
    return sorted(changed, key=lambda c: -abs((c.b or 0) - (c.a or 0)))


def _errors(a: Loaded, b: Loaded) -> list[Change]:
    errors = [{e["name"]: e.get("sqnr_db") for e in one.errors} for one in (a, b)]
    if not (errors[0] and errors[1]):
        return []
    changes = [
        Change(name, name, errors[0].get(name), errors[1].get(name), False) for name in _union(*errors)
    ]
    return sorted(changes, key=lambda c: (c.b or 0) - (c.a or 0))


def _union(a: Iterable[str], b: Iterable[str]) -> list[str]:
    return list(dict.fromkeys((*a, *b)))
