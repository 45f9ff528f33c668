"""`openneutron report`, and the report that `compile` leaves beside a program."""

import json
from pathlib import Path

import pytest


def test_compile_leaves_a_report_that_report_reads(cli, tmp_path):
    assert cli("compile", "own.py:split", "-o", "a.pte").code == 0
    done = cli("report", "a.pte", "-o", "page/a.html")
    assert done.code == 0, done.err
    assert done.out.strip() == "page/a.html" and "not in the report" not in done.err
    page = Path("page/a.html").read_text()
    assert page.startswith("<!doctype html>") and "aten.atan.default" in page
    Path("a.report.json").unlink()
    done = cli("report", "a.pte", "-o", "a.json")
    assert done.code == 0 and "Why operators stay on the CPU" in done.err
    assert json.loads(Path("a.json").read_text())["summary"]["partitions"] == 2


def test_no_sidecar(cli, tmp_path):
    assert cli("compile", "own.py:net", "-o", "a.pte", "--no-sidecar").code == 0
    assert not (tmp_path / "a.report.json").exists()


@pytest.mark.slow  # the network is compiled again for each suggestion
def test_report_of_a_model_says_what_supporting_an_operator_saves(cli, tmp_path):
    done = cli("report", "own.py:split", "-o", "split.json", "--program", "kept.pte")
    assert done.code == 0, done.err
    data = json.loads(Path("split.json").read_text())
    kinds = {entry["kind"] for entry in data["what_if"]}
    assert kinds == {"support", "delegate"}  # one channel: both memory orders are the same
    (support,) = [e for e in data["what_if"] if e["kind"] == "support"]
    assert "atan" in support["title"] and support["partitions_then"] == 1
    layers = {data["nodes"][row["node"]]["op"]: row for row in data["errors"]}
    assert layers["aten.convolution.default"]["sqnr_db"] > 10
    assert (tmp_path / "kept.pte").exists() and (tmp_path / "kept.report.json").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("report", "absent.pte"), "there is no such file"),
        (("report", "own.py:net", "-o", "x.doc"), "no known report format"),
        (("report", "absent.pte", "--per-channel"), "has no effect"),
    ],
)
def test_wrong_use(cli, words, problem):
    done = cli(*words)
    assert done.code != 0 and problem in done.err, done.err
