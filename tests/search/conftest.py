"""A Dask cluster as users have it: a scheduler and two workers, each a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture
def tls(tmp_path, monkeypatch):
    """A certificate for the run, as docs/sweep.md has it: for schedulers, workers and clients."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    page = (Path(__file__).resolve().parents[2] / "docs" / "sweep.md").read_text()
    lines = [
        line[2:] for line in page.splitlines() if line.startswith(("$ openssl", "$ export", "$ for who"))
    ]
    assert len(lines) == 3
    script = "\n".join([*lines, "env -0 | grep -z ^DASK_"])
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    for entry in done.stdout.strip("\0").split("\0"):
        name, _, value = entry.partition("=")
        monkeypatch.setenv(name, str(tmp_path / value) if value.endswith(".pem") else value)
    import dask.config

    with dask.config.set({}):
        dask.config.refresh()
        yield "tls"
        monkeypatch.undo()
        dask.config.refresh()


@pytest.fixture
def tls_cluster(tmp_path, tls):
    """As `cluster`, with TLS."""
    yield from _cluster(tmp_path, ["--protocol", tls])


@pytest.fixture
def cluster(tmp_path):
    """The address and the processes, scheduler first; the workers have a folder of their own."""
    yield from _cluster(tmp_path, [])


def _cluster(tmp_path, options):
    file, elsewhere = tmp_path / "scheduler.json", tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = ["--host", "127.0.0.1", "--scheduler-file", str(file), "--no-dashboard"]
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", *where, *options]
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
