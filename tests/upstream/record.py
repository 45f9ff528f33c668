"""A pytest plugin for ExecuTorch's tests: takes a sample of them, and writes down what became of each.

The sample is by a digest of a test's name: the same tests wherever and whenever it is taken, and a larger
sample has all of a smaller one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, default=0, help="so many of the tests; 0: all of them")
    parser.addoption("--results", type=Path, required=True, help="a line of JSON for each test")


def pytest_collection_modifyitems(config, items):
    if most := config.getoption("--sample"):
        chosen = set(sorted(items, key=lambda item: digest(item.nodeid))[:most])
        items[:] = [item for item in items if item in chosen]


def digest(name: str) -> str:
    """What a sample is ordered by."""
    return hashlib.sha256(name.encode()).hexdigest()


def pytest_collectreport(report):
    if report.failed:
        _write(report.nodeid, "not collected", report.longreprtext)


def pytest_runtest_logreport(report):
    # A test that is skipped ends in its setup, every other in its call; a setup may fail too.
    if report.when == "call" or report.outcome != "passed":
        _write(report.nodeid, report.outcome, "" if report.passed else _why(report))


def pytest_configure(config):
    global _results
    _results = config.getoption("--results")


def _why(report) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    chain = getattr(report.longrepr, "chain", ())
    causes = [crash.message for _, crash, _ in reversed(chain) if crash]  # the last error first
    said = [text for title, text in report.sections if title == "openneutron.sdk"]
    return " | ".join([*(causes or [str(report.longrepr)]), *said])


def _write(name: str, outcome: str, why: str) -> None:
    with _results.open("a") as file:
        file.write(json.dumps({"test": name, "outcome": outcome, "why": why[:2000]}) + "\n")
