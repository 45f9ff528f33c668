"""What the search costs beside the trials: CPU time of the engine per trial, and memory as trials go by.

    python benchmarks/bench_search.py [--trials 1000] [--only engine|compile]

`engine`: trials that compute nothing, so that all the time is the engine's (choosing points, storage, log).
`compile`: a tiny network compiled without verification in this process, one variant a trial; the engine's
time is what the trials' own leaves. Both print memory along the way, which must not grow.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from openneutron.commands.searching.trial import execute_trial
from openneutron.search.engine import Progress, Search
from openneutron.search.space import make_space
from openneutron.search.trial import DONE, Job, Outcome
from openneutron.search.workers import Here

NET = """
import torch
from torch import nn

def net(width=4, seed=0):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(1, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, 4))
    return module, torch.randn(1, 1, 8, 8), [torch.randn(1, 1, 8, 8) for _ in range(2)]
"""


def _nothing(job: Job) -> Outcome:
    width, seed = job.point["parameters.width"], job.point["parameters.seed"]
    return Outcome(job.number, DONE, {"cycles": float(width * 100 + seed % 7), "sram_bytes": float(-width)})


def _memory() -> int:
    """Resident now, in MB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) >> 10


def measure(kind: str, trials: int) -> None:
    """Search so many points, and print what that took."""
    own = 0.0

    def timed(job: Job) -> Outcome:
        nonlocal own
        began = time.process_time()
        outcome = (_nothing if kind == "engine" else execute_trial)(job)
        own += time.process_time() - began
        assert outcome.state == DONE, outcome
        return outcome

    memory: list[tuple[int, int]] = []

    def watch(found: Progress) -> None:
        if found.done in (trials // 10, trials // 2, trials):
            memory.append((found.done, _memory()))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_text(NET)
        table = {
            "model": str(folder / "net.py:net"),
            "parameters": {"width": {"from": 1, "to": 12}, "seed": {"from": 0, "to": 999}},
            "options": {"verify": False, "accuracy": "fast"},
            "objectives": {"cycles": "min", "sram_bytes": "min"},
            "trials": trials,
        }
        search = Search(make_space(table), folder / "out", reports=False)
        began = time.process_time()
        rows = search.run(lambda log: Here(timed), watch)
        spent = time.process_time() - began
    assert len(rows) == trials
    print(
        f"{kind}: {trials} trials, {own / trials * 1e3:.1f} ms CPU each for themselves and "
        f"{(spent - own) / trials * 1e3:.1f} ms for the engine; memory "
        + ", ".join(f"{mb} MB after {done}" for done, mb in memory)
    )


def main() -> None:
    """Measure one or both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--only", choices=("engine", "compile"))
    args = parser.parse_args()
    for kind in ("engine", "compile") if args.only is None else (args.only,):
        measure(kind, args.trials)


if __name__ == "__main__":
    main()
