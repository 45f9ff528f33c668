"""A few of ExecuTorch's own tests over the open converter; `make upstream` runs them all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.upstream.record import digest
from tests.upstream.run import ROOT, reason


@pytest.mark.slow  # ExecuTorch's tests each lower and run a network several times
def test_executorchs_own_tests_pass_over_the_open_converter(tmp_path):
    pytest.importorskip("pytest_mock", reason="ExecuTorch's tests need pytest-mock")
    command = [sys.executable, "-m", "tests.upstream.run", "nxp", "--sample", "8", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    results = [json.loads(line) for line in (tmp_path / "nxp.jsonl").read_text().splitlines()]
    assert done.returncode == 0, done.stdout[-4000:]
    assert len([r for r in results if r["outcome"] == "passed"]) >= 5


@pytest.mark.slow  # two processes, each with torch and an export
def test_eiq_decides_as_executorchs_backend():
    words = [sys.executable, "-m", "tests.upstream.decisions", "aten.bmm.default", "aten.clamp.default"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and " 0 unexplained" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_larger_sample_has_all_of_a_smaller_one():
    names = sorted((f"test_{i}" for i in range(100)), key=digest)
    assert names[:10] == sorted(names[:50], key=digest)[:10]


def test_a_failure_is_explained_by_its_pattern_or_not_at_all():
    test = {"test": "generic_tests/test_cifarnet.py::test_x", "why": "AttributeError"}
    assert "data set" in (reason("nxp", test) or "")
    assert reason("suite", test) is None
    passes = {"test": "test_conv_converter.py::TestConv::test_y", "why": "[XPASS(strict)] a defect of theirs"}
    assert "and passes" in (reason("nxp", passes) or "")
