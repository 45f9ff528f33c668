"""`openneutron diff` and `openneutron check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow  # two compiles in processes of their own
def test_diff_of_two_compiles(cli):
    assert cli("compile", "own.py:net", "-o", "a.pte", "--report", "a.json").code == 0
    options = ("--operators_not_to_delegate", "aten::max_pool2d_with_indices")
    done = cli("compile", "own.py:net", "-o", "b.pte", "--report", "b.json", "--json", *options)
    Path("c.json").write_text(done.out)
    for file in ("b.json", "c.json"):
        found = cli("diff", "a.json", file, "--json").json
        figures = {row["key"]: row for row in found["figures"]}
        assert figures["partitions"]["a"] == 1 and figures["partitions"]["b"] == 2
        assert figures["cycles_estimated"]["percent"] > 0
        (moved,) = found["moved"]
        assert "max_pool2d" in moved["node"] and moved["to"] == "cpu"
    table = cli("diff", "a.json", "b.json")
    assert table.code == 0 and "from the NPU to the CPU: The user excludes" in table.out
    assert cli("diff", "a.json", "b.json", "--fail-on-regression", 5).code == 1
    assert cli("diff", "b.json", "a.json", "--fail-on-regression", 5).code == 0
    assert cli("diff", "a.json", "a.json", "--fail-on-regression").code == 0

    found = {row["key"]: row for row in cli("diff", "a.pte", "a.json", "--json").json["figures"]}
    for key in ("program_bytes", "scratch_bytes", "weights_bytes", "partitions"):
        assert found[key]["a"] == found[key]["b"] > 0, key

    Path("budget.toml").write_text(
        '[[model]]\nmodel = "a.pte"\nmax_partitions = 1\nmax_cycles = 9_999_999\n'
        '[[model]]\nmodel = "b.json"\nname = "B"\nmax_partitions = 1\nmax_flash = "1M"\n'
        '[[model]]\nmodel = "a.json"\nname = "no accuracy"\nmin_accuracy = 0.5\n'
    )
    done = cli("check", "budget.toml")
    assert done.code == 1 and done.out.count("FAIL") == 2 and "no accuracy: ON608" in done.out
    data = cli("check", "budget.toml", "--json").json
    assert [model["ok"] for model in data["models"]] == [True, False, False] and data["ok"] is False
    assert [check["ok"] for check in data["models"][1]["checks"]] == [True, False]  # in the table's order


@pytest.mark.slow  # two networks are compiled and measured
def test_the_example_is_kept(cli):
    done = cli("check", ROOT / "examples/ci/budget.toml", "--json")
    assert done.code == 0, done.out + done.err
    data = done.json
    assert data["ok"] and [len(model["checks"]) for model in data["models"]] == [9, 3]
    assert all(check["margin"] >= 0 for model in data["models"] for check in model["checks"])


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        (None, 2, "no such file"),
        ('[[model]]\nmodel = "a"\nmax_cyles = 1', 2, "Did you mean 'max_cycles'?"),
        ('[[model]]\nmodel = "a"\nmax_cycles = 1\noptions = { per_chanel = true }', 2, "'per_channel'"),
        ('[[model]]\nmodel = "a"\nmax_cycles = 1\noptions = { per_channel = 1 }', 2, "true or false"),
        ('[[model]]\nmodel = "a"\nmax_cycles = 1\noptions = { converter = "x" }', 2, "one of open, eiq"),
        ('[[model]]\nmodel = "a"\nmax_cycles = 1\noptions = { sram = "x" }', 2, "not a size"),
    ],
)
def test_wrong_budget_files(cli, text, code, problem):
    if text is not None:
        Path("budget.toml").write_text(text)
    done = cli("check", "budget.toml")
    assert done.code == code and problem in done.err and "ON108" in done.err


def test_models_that_cannot_be_measured(cli):
    """They fail with their reason; the others are still checked."""
    Path("budget.toml").write_text(
        '[[model]]\nmodel = "resnet9"\nmax_cycles = 1\n[[model]]\nmodel = "none.json"\nmax_cycles = 1\n'
    )
    done = cli("check", "budget.toml", "--json")
    assert done.code == 1
    problems = [model["problem"] for model in done.json["models"]]
    assert "ON106" in problems[0] and "resnet8" in problems[0] and "ON608" in problems[1]


def test_diff_of_what_is_no_report(cli):
    Path("a.json").write_text(json.dumps({"schema": 99}))
    for argv, problem in ((("a.json", "a.json"), "schema 99"), (("a.json", "b.json"), "schema 99")):
        done = cli("diff", *argv)
        assert done.code == 1 and "ON608" in done.err and problem in done.err
