"""Searches that are killed at a write, again and again: `python -m tests.search.killed FOLDER SEED ROUNDS`.

A process of its own, which forks: it has no threads, and every kill is a real one. Prints their number.
"""

import os
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path

from optuna.storages.journal import JournalFileBackend

from openneutron.search.engine import Search
from openneutron.search.space import make_space
from openneutron.search.workers import Here
from tests.search.jobs import compute

SAMPLED = {
    "model": "net.py:f",
    "parameters": {"x": {"from": 0, "to": 9}, "y": [0, 5, 9]},
    "objectives": {"cycles": "min"},
    "trials": 12,
    "batch": 4,
}
GRID = {**SAMPLED, "parameters": {"x": {"from": 0, "to": 7}}}


class Killer:
    """Counts what is written and kills its process at one of the writes, with a part of it on the disk."""

    def __init__(self, at, cut):
        self.at, self.cut, self.seen = at, cut, 0

    def is_time(self):
        self.seen += 1
        return self.seen == self.at

    def watch(self, event, arguments):
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in ("os.rename", "os.mkdir", "os.truncate")) and self.is_time():
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        real = JournalFileBackend.append_logs

        def append(backend, logs):
            path = Path(backend._file_path)
            before = path.stat().st_size
            now = self.is_time()
            real(backend, logs)
            if now:
                os.truncate(path, before + int(self.cut * (path.stat().st_size - before)))
                os.kill(os.getpid(), signal.SIGKILL)

        JournalFileBackend.append_logs = append
        os.fsync = lambda handle: None  # a killed process loses nothing that it wrote, and disks are slow
        sys.addaudithook(self.watch)


def execute(job):
    return replace(compute(job), program=b"program", report=b"report")


def rows(folder, table):
    found = Search(make_space(table), folder).run(lambda log: Here(execute))
    return [(row.point, replace(row.outcome, seconds=0.0), row.on_front) for row in found]


def in_child(folder, table, killer):
    """Run a search in a process of its own: how it ended, and how many writes it made."""
    ends, begins = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            killer.install()
            rows(folder, table)
            os.write(begins, killer.seen.to_bytes(4, "little"))
            code = 0
        finally:
            os._exit(code)
    os.close(begins)
    _, status = os.waitpid(child, 0)
    seen = os.read(ends, 4)
    os.close(ends)
    return status, int.from_bytes(seen, "little")


def main(folder, seed, rounds):
    draw = random.Random(seed)
    kills = 0
    for name, table in (("sampled", SAMPLED), ("grid", GRID)):
        wanted = rows(folder / name, table)
        status, writes = in_child(folder / f"{name} counted", table, Killer(0, 0))
        assert status == 0 and writes > 30
        for i in range(rounds):
            place = folder / f"{name} {i}"
            for _ in range(3):
                status, _ = in_child(place, table, Killer(draw.randint(1, writes), draw.random()))
                assert status in (0, signal.SIGKILL), (place, status)
                kills += status == signal.SIGKILL
            assert rows(place, table) == wanted, place
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
