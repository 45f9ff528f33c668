"""Reports to look at: real programs, and rows for the sections that need more than a program."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from openneutron.models.zoo import find_model
from openneutron.options import CompileOptions
from openneutron.package.program import CompiledProgram
from openneutron.pipeline import compile_model
from openneutron.report.data import report_data
from tests.report.models import Split, example

Data = dict[str, Any]


def zoo(name: str, **options: Any) -> CompiledProgram:
    """A model of the zoo, calibrated on its example."""
    entry = find_model(name)
    inputs = entry.example_inputs()
    return compile_model(
        entry.build(trained=entry.is_trained).eval(),
        inputs,
        calibration=[inputs],
        options=CompileOptions(**options),
    )


PROGRAMS: dict[str, Callable[[], CompiledProgram]] = {
    "cifarnet": lambda: zoo("cifarnet"),
    "mobilenet_v2": lambda: zoo("mobilenet_v2", fetch_constants_to_sram=True),
    "split": lambda: compile_model(Split().eval(), example(), calibration=[example()]),
}


def build(name: str) -> Data:
    """The report of one of the programs above; the split one has errors and what-if rows as well."""
    data = report_data(PROGRAMS[name](), name=name)
    return with_rows(data) if name == "split" else data


def with_rows(data: Data) -> Data:
    """The same report with the rows that need the model itself, not only the program."""
    npu = [n for n in data["nodes"] if n["where"] == "npu"]
    cpu = next(n for n in data["nodes"] if n["reason"])
    total = data["summary"]["cycles_estimated"]
    data["errors"] = [
        {
            "node": n["id"],
            "own_sqnr_db": None if i == 1 else 30.0 + i,
            "name": n["name"],
            "op": n["op"],
            "sqnr_db": 20.0 + 3 * i,
            "max_abs": 0.125 / (i + 1),
            "cosine": 1 - 0.001 / (i + 1),
            "suggestion": "Give every channel a scale of its own." if i == 0 else "",
        }
        for i, n in enumerate(reversed(npu))
    ]
    now = {"partition": None, "cycles_now": total, "partitions_now": 2, "border_steps_now": 8}
    layout = {
        "kind": "layout",
        "node": None,
        "op": None,
        "title": "Channels-last inputs",
        "detail": "Compiled so.",
    }
    support = {"kind": "support", "node": cpu["id"], "op": cpu["op"], "title": f"{cpu['op']} on the NPU"}
    data["what_if"] = [
        now | layout | {"cycles_then": total + 1000, "saved_cycles": -1000}
        | {"partitions_then": 2, "border_steps_then": 8},
        now | support | {"cycles_then": total // 2, "saved_cycles": total - total // 2}
        | {"partitions_then": 1, "border_steps_then": 2, "detail": "Two partitions become one."},
    ]  # fmt: skip
    return data


def hostile(data: Data) -> Data:
    """The same report with names that want to be HTML, scripts and template markers."""
    data = copy.deepcopy(data)
    names = [
        "</script><script>document.title='broken'</script>",
        "<img src=x onerror=\"document.title='broken'\">",
        "{{data}} {{script}}",
        "line\u2028separator & \"quotes' \\ <!--",
        "https://example.com/?a=b&c=d#node=%zz",
        "__proto__",
    ]
    data["name"] = names[0]
    data["summary"]["hint"] = names[1]
    data["summary"]["program"] = names[0]
    for node, name in zip(data["nodes"], names, strict=False):
        node["name"] = name
    for node in data["nodes"]:
        if node["reason"]:
            node["reason"] = {"code": names[1], "reason": names[0], "hint": names[2]}
    for step in data["timeline"]:
        step["name"] = names[1]
    for area in data["memory"]:
        for buffer in area["buffers"]:
            buffer["name"] = names[0] + buffer["name"]
    return data


def bare(data: Data) -> Data:
    """The same report from a converter that tells nothing of its calls; and the program does not fit."""
    data = copy.deepcopy(data)
    data["timeline"], data["errors"], data["what_if"] = [], [], []
    data["missing"] = ["What the calls cost: the eiq converter does not tell."]
    data["summary"] |= {"converter": "eiq", "cycles_estimated": 0, "time_us_estimated": 0, "fits": False}
    data["summary"]["sram_bytes"] = 1024
    for node in data["nodes"]:
        node["cycles"], node["calls"] = 0, []
    for area in data["memory"]:
        area["buffers"] = []
    return data
