"""Differences and budgets as data."""

from __future__ import annotations

import copy
import json

import pytest

from openneutron.diagnostics import OpenNeutronError
from openneutron.report import data as report_module
from openneutron.report import load
from openneutron.report.budget import LIMITS, check_budget, read_budgets
from openneutron.report.difference import compare_reports
from openneutron.report.load import load_report, report_of

SUMMARY = {
    "program": "net.pte", "partitions": 1, "npu_nodes": 4, "cpu_nodes": [], "macs_npu": 900, "macs_cpu": 0,
    "scratch_bytes": 1000, "sram_prefetch_bytes": 0, "weights_bytes": 2000, "planned_bytes": 500,
    "program_bytes": 4000, "cycles_estimated": 10_000, "time_us_estimated": 30.0,
    "kernels": ["ADD", "CONV_2D"],
}  # fmt: skip


def node(name: str, where: str, cycles: int, op: str = "aten.add.Tensor", reason=None) -> dict:
    return {"name": name, "op": op, "where": where, "cycles": cycles, "reason": reason}


def report(**summary) -> dict:
    nodes = [node("a", "npu", 4000), node("b", "npu", 6000), node("x", "io", 0, "input")]
    errors = [{"name": "a", "sqnr_db": 40.0}, {"name": "b", "sqnr_db": 20.0}]
    return {"schema": 1, "name": "net", "summary": {**SUMMARY, **summary}, "nodes": nodes, "errors": errors}


def test_schema_is_the_one_that_is_written():
    assert load.SCHEMA == report_module.SCHEMA


def test_what_changed():
    before, after = (
        report(),
        report(cycles_estimated=12_500, partitions=2, weights_bytes=1000, kernels=["ADD", "COPY"]),
    )
    after["summary"]["cpu_nodes"] = [{"node": "b", "op": "aten.add.Tensor", "reason": "Why not"}]
    after["nodes"][1] = node("b", "cpu", 8500, reason={"reason": "Why not"})
    after["nodes"].append(node("q", "cpu", 10, "quantized_decomposed.quantize_per_tensor.default"))
    after["errors"][1]["sqnr_db"] = 35.0
    found = compare_reports(report_of(before, "a"), report_of(after, "b"))
    figures = {change.key: change for change in found.figures}
    assert figures["cycles_estimated"].percent == 25.0 and figures["cycles_estimated"].worse
    assert (figures["sram_needed"].a, figures["sram_needed"].b) == (3500, 2500)
    assert not figures["sram_needed"].worse and figures["cpu_nodes"].b == 1
    assert found.moved == [
        {"node": "b", "op": "aten.add.Tensor", "from": "npu", "to": "cpu", "reason": "Why not"}
    ]
    assert (found.kernels_added, found.kernels_removed) == (["COPY"], ["CONV_2D"])
    assert [(c.key, c.a, c.b) for c in found.layers] == [("b", 6000, 8500), ("q", None, 10)]
    assert [(c.key, c.b) for c in found.errors] == [("a", 40.0), ("b", 35.0)]
    assert {c.key for c in found.regressions(0)} == {"cycles_estimated", "partitions", "cpu_nodes"}
    assert {c.key for c in found.regressions(30)} == {"partitions", "cpu_nodes"}
    assert not compare_reports(report_of(before, "a"), report_of(before, "b")).regressions(0)
    assert json.loads(json.dumps(found.as_dict()))["figures"][0]["percent"] == 25.0


def test_summaries_and_evaluations_are_read_too():
    flat = report_of({**SUMMARY, "cpu_nodes": [{"node": "b", "op": "x", "reason": "r"}]}, "compile.json")
    assert flat.name == "net" and not flat.nodes
    judged = report_of({"samples": 3, "float": 0.9, "simulator": 0.8, "summary": SUMMARY}, "eval.json")
    found = compare_reports(flat, judged)
    assert [(e["node"], e["from"], e["to"]) for e in found.moved] == [("b", "cpu", None)]
    assert [(c.key, c.a, c.b) for c in found.accuracy] == [("float", None, 0.9), ("simulator", None, 0.8)]


WRONG = (
    ("cycles_estimated", "many"),
    ("program_bytes", None),
    ("weights_bytes", float("inf")),
    ("kernels", [["CONV_2D"]]),
    ("unknown", 3),
    ("cpu_nodes", [7]),
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        (json.dumps(report())[:300], "not JSON"),
        ("[]", "holds a list"),
        ('{"a": 1}', "has no 'partitions'"),
        (json.dumps({**report(), "schema": 7}), "has schema 7; this version of openneutron knows 1"),
        (json.dumps({**report(), "nodes": 5}), "'nodes' is not a list"),
        ('{"schema": 1}', "has no summary"),
        *((json.dumps({**SUMMARY, key: value}), f"'{key}'") for key, value in WRONG),
        (json.dumps({**report(), "nodes": [{"name": "a", "op": {}, "where": "npu"}]}), "'op' of a node"),
        (json.dumps({**SUMMARY, "cpu_nodes": [{"node": "a", "reason": []}]}), "'reason' of a node"),
        (json.dumps({**report(), "nodes": [{"op": "a", "where": "npu"}]}), "'name' of a node"),
        (json.dumps({**report(), "errors": [{"name": "a", "sqnr_db": "b"}]}), "'sqnr_db' of a node"),
    ],
)
def test_files_that_are_no_reports(text, problem, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(OpenNeutronError, match="ON608") as error:
        load_report(tmp_path / "x.json")
    assert problem in str(error.value) and "x.json" in str(error.value)
    with pytest.raises(OpenNeutronError, match="no such file"):
        load_report(tmp_path / "none.json")


def budget(tmp_path, text: str):
    (tmp_path / "b.toml").write_text(text)
    return read_budgets(tmp_path / "b.toml")


def test_every_limit_both_ways(tmp_path):
    """A budget that is met exactly is kept, one that is missed by a little is not."""
    summary = {**SUMMARY, "cpu_nodes": [{"node": "b"}], "macs_cpu": 100, "time_us_measured": 50.0}
    loaded = report_of({"samples": 9, "float": 0.75, "simulator": 0.5, "summary": summary}, "x")
    exact = {
        "max_cycles": 10_000, "max_time_ms": 0.03, "max_measured_ms": 0.05, "max_sram": 3500,
        "max_reserve": 1500, "max_scratch": 1000, "max_flash": 4000,
        "max_partitions": 1, "max_cpu_nodes": 1, "min_npu_macs": 90, "min_npu_nodes": 80, "min_accuracy": 0.5,
        "max_accuracy_loss": 0.25,
    }  # fmt: skip
    assert set(exact) == {limit.key for limit in LIMITS}
    for factor, good in ((1, True), (0.99, False), (1.01, False)):
        lines = [
            f"{key} = {value if good else value * factor}"
            for key, value in exact.items()
            if good or key.startswith("max_") == (factor < 1)
        ]
        (found,) = budget(tmp_path, "\n".join(["[[model]]", 'model = "x.json"', *lines]))
        checks = check_budget(found, loaded)
        assert len(checks) == len(lines) and all(check.ok is good for check in checks)
    unknown = report_of({**SUMMARY, "cycles_estimated": 0}, "eiq")
    (found,) = budget(tmp_path, '[[model]]\nmodel = "x.json"\nmax_cycles = 5')
    assert [check.ok for check in check_budget(found, unknown)] == [False]


def test_sizes_and_places(tmp_path):
    one, two = budget(
        tmp_path,
        '[[model]]\nmodel = "nets/own.py:net"\nmax_sram = "1.5M"\noptions.calibration = "d/x.npz"\n'
        '[[model]]\nmodel = "cifarnet"\nname = "C"\nmax_flash = "100 KiB"\ndata = "data.npz"',
    )
    assert one.limits == {"max_sram": 1_572_864} and one.model == str(tmp_path / "nets/own.py:net")
    assert one.options == {"calibration": str(tmp_path / "d/x.npz")} and not one.needs_accuracy
    assert (two.name, two.model, two.limits) == ("C", "cifarnet", {"max_flash": 102_400})
    assert two.data == str(tmp_path / "data.npz")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no [[model]] table"),
        ("[[model]", "not TOML"),
        ("[model]\nmax_cycles = 1", "no [[model]] table"),
        ("title = 1", "there is no such key"),
        ('[[model]]\nmodel = "a"', "has no budget"),
        ("[[model]]\nmax_cycles = 1", "names no model"),
        ('[[model]]\nmodel = "a"\nmax_cycle = 1', "Did you mean 'max_cycles'? Known: "),
        ('[[model]]\nmodel = "a"\nmax_cycles = "many"', "must be a number"),
        ('[[model]]\nmodel = "a"\nmax_cycles = true', "must be a number"),
        ('[[model]]\nmodel = "a"\nmax_sram = "5 apples"', "128K"),
        ('[[model]]\nmodel = "a"\nmin_accuracy = 95', "from 0 to 1"),
        ('[[model]]\nmodel = "a"\nmin_npu_macs = 950', "percentage"),
        ('[[model]]\nmodel = "a"\nmax_cycles = 1\noptions = 3', "must be a table"),
        ('[[model]]\nmodel = "a"\nmax_cycles = 1\nsamples = 0', "positive"),
    ],
)
def test_budget_files_that_are_wrong(text, problem, tmp_path):
    with pytest.raises(OpenNeutronError, match="ON108") as error:
        budget(tmp_path, text)
    assert problem in str(error.value)


def test_reports_are_not_changed_by_reading():
    data = report()
    kept = copy.deepcopy(data)
    compare_reports(report_of(data, "a"), report_of(data, "b"))
    assert data == kept
