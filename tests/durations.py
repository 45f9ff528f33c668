"""How long tests take: in seconds and in seconds of a processor's work, summed by room, written to a file.

A machine that does other work too makes every test slow, but it leaves the seconds of work nearly as they
are: they tell which test is expensive. Work of child processes counts once they have ended.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import warm

FILE = Path("build/test-durations.csv")


def _work() -> float:
    return sum(os.times()[:4]) + warm.work()


class Durations:
    """Adds a test's work to its reports where it runs, and sums up where reports come together."""

    def __init__(self) -> None:
        self.before = _work()
        self.seconds: dict[str, list[float]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self.before = _work()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        after = _work()
        report.work, self.before = after - self.before, after
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        times = self.seconds.setdefault(report.nodeid, [0.0, 0.0])
        times[0] += report.duration
        times[1] += getattr(report, "work", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """A row a room, most work first, and all tests in a file."""
        if len(self.seconds) < 2 or hasattr(config, "workerinput"):
            return
        rooms: dict[str, list[float]] = {}
        for test, times in self.seconds.items():
            sums = rooms.setdefault(room_of(test), [0, 0.0, 0.0])
            for place, value in enumerate((1, *times)):
                sums[place] += value
        terminalreporter.section("seconds by room")
        terminalreporter.write_line("  tests  seconds     work  room")
        for room, sums in sorted(rooms.items(), key=lambda row: -row[1][2]):
            terminalreporter.write_line("{:7.0f}{:9.1f}{:9.1f}  {}".format(*sums, room))
        total = [sum(column) for column in zip(*rooms.values(), strict=True)]
        terminalreporter.write_line("{:7.0f}{:9.1f}{:9.1f}  all; each test: {}".format(*total, FILE))
        self.write(config.rootpath / FILE)

    def write(self, file: Path) -> None:
        """All tests, most work first."""
        file.parent.mkdir(exist_ok=True)
        with file.open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["test", "seconds", "work"])
            for test, (seconds, work) in sorted(self.seconds.items(), key=lambda row: -row[1][1]):
                rows.writerow([test, f"{seconds:.2f}", f"{work:.2f}"])


def room_of(test: str) -> str:
    """`compiler` of `tests/compiler/test_loops.py::test_it[1]`; the file's name where it is in no folder."""
    parts = test.split("::")[0].split("/")
    return parts[1] if len(parts) > 1 else parts[0]
