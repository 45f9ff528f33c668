"""Predictions for networks and chips, written down before anything is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from openneutron import __version__
from openneutron.bench.published import check_network, cpu_estimate, find_network, macs_of, zoo_graph
from openneutron.compiler.compile import compile_graph
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import read_text
from openneutron.litert.ir import Graph
from openneutron.models.zoo import ZOO
from openneutron.options import CompileOptions
from openneutron.report.cost_model import Band, band, error_label
from openneutron.targets.chip import Target
from openneutron.targets.table import TARGETS, find_target

SCHEMA = 1
_MOST_LINES = 1000
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Question:
    """A network and the chips to predict it for."""

    network: str
    targets: tuple[str, ...]


def read_list(path: Path) -> list[Question]:
    """The lines of a list: a network, `zoo` for all of the zoo, then chips (none: all)."""
    questions: list[Question] = []
    for number, line in enumerate(read_text(path, "ON602", _MOST_BYTES).splitlines(), 1):
        words = line.split("#")[0].split()
        if not words or len(questions) > _MOST_LINES:
            continue
        targets = tuple(dict.fromkeys(words[1:])) or tuple(TARGETS)
        for name in targets:
            find_target(name)
        for network in ZOO if words[0] == "zoo" else words[:1]:
            check_network(network, f"{path}:{number}")
            questions.append(Question(network, targets))
    if not 0 < len(questions) <= _MOST_LINES:
        many = f"more than {_MOST_LINES:,} networks" if questions else "no network"
        fail("ON104", str(path), f"asks for {many}", "Write one a line.")
    return questions


def predict(questions: list[Question]) -> dict[str, Any]:
    """The predictions, with version, date and the bands they come with."""
    return {
        "schema": SCHEMA,
        "generator": f"openneutron {__version__}",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "label": error_label(),
        "bands": {"npu": vars(band("npu")), "cpu": vars(band("cpu"))},
        "note": "int8 inputs and outputs, channels last, whole inference, random weights; "
        "low and high: what the time is if the estimate is off as it was for published times",
        "predictions": [row for question in questions for row in _rows(question)],
    }


def _rows(question: Question) -> Iterator[dict[str, Any]]:
    graph = zoo_graph(question.network) if question.network in ZOO else find_network(question.network)
    for name in question.targets:
        target = find_target(name)
        for in_flash in (False,) if target.reads_flash else (False, True):
            options = CompileOptions(config=name, fetch_constants_to_sram=in_flash)
            yield _row(question.network, graph, target, options)


def _row(network: str, graph: Graph, target: Target, options: CompileOptions) -> dict[str, Any]:
    in_flash = options.fetch_constants_to_sram
    row: dict[str, Any] = {
        "network": network,
        "target": target.name,
        "chip": target.chip,
        "invented": target.invented,
        "weights": "in flash, copied" if in_flash else "in flash, read" if target.reads_flash else "in SRAM",
        "macs": macs_of(graph),
        "cpu_alone": _time(cpu_estimate(graph, target), target, band("cpu")),
    }
    try:
        made = compile_graph(graph, target, options)
    except OpenNeutronError as error:
        return row | {"npu": None, "refused": error.diagnostic.problem}
    memory = {"scratch_bytes": made.scratch_bytes, "weights_bytes": made.program.weights_bytes,
              "prefetch_bytes": made.prefetch_bytes}  # fmt: skip
    return row | {"npu": _time(made.cycles, target, band("npu")) | memory, "refused": None}


def _time(cycles: int, target: Target, around: Band) -> dict[str, float]:
    micro = cycles / target.frequency_hz * 1e6
    low, high = around.around(micro)
    return {"cycles": cycles, "microseconds": round(micro, 1), "low": round(low, 1), "high": round(high, 1)}
