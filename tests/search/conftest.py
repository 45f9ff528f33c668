"""A Dask cluster as users have it: a scheduler and two workers, each a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture
def cluster(tmp_path):
    """The address and the processes, scheduler first; the workers have a folder of their own."""
    file, elsewhere = tmp_path / "scheduler.json", tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = ["--host", "127.0.0.1", "--scheduler-file", str(file), "--no-dashboard"]
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", *where]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *where]
    worker += ["--local-directory", str(elsewhere)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": elsewhere, "env": environment}
    processes = [subprocess.Popen(command, **quiet)]
    try:
        for _ in range(600):
            if file.exists() and file.read_text().strip().endswith("}"):
                break
            time.sleep(0.1)
        processes += [subprocess.Popen(worker, **quiet) for _ in range(2)]
        address = json.loads(file.read_text())["address"]
        _wait_for_workers(address, 2)
        yield address, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait_for_workers(address, count):
    import distributed

    with distributed.Client(address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=120)
