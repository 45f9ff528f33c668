"""Where trials run: processes of this machine, or the workers of a Dask cluster.

Either way a worker that dies loses its trial only: the trial is run again elsewhere, at most twice.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol

from openneutron.diagnostics import fail
from openneutron.search.trial import FAILED, Job, Outcome
from openneutron.search.versions import differing, installed

Execute = Callable[[Job], Outcome]
Log = Callable[[str], None]
MOST_TRIES = 3  # the first run of a trial and two more
_POLL = 0.2  # seconds between looks at the workers


class Workers(Protocol):
    """Something that runs trials."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """The outcomes, as they come."""

    def close(self) -> None:
        """Let the workers go."""


class Here:
    """This process: no other is started, one trial after the other."""

    def __init__(self, execute: Execute):
        self._execute = execute

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """One after the other."""
        return map(self._execute, jobs)

    def close(self) -> None:
        """Nothing to let go."""


class Processes:
    """Processes of this machine."""

    def __init__(self, execute: Execute, count: int, log: Log):
        self._execute, self._count, self._log = execute, count, log
        self._busy = False
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        # Not forked: torch's threads do not survive it.
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, spawn, initializer=_end_with, initargs=(os.getpid(),))

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """The outcomes as they come; a pool that broke is made anew, and what it lost runs again."""
        tries = {job.number: 1 for job in jobs}
        left, suspects = list(jobs), list[Job]()
        while left or suspects:
            # After a death its trials are run one by one, so that the guilty one takes no others with it.
            lost, left = yield from self._run(suspects[:1] or left, left if suspects else [])
            suspects = suspects[1:]
            if lost:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = self._started()
            for job in lost:
                tries[job.number] += 1
                if tries[job.number] > MOST_TRIES:
                    yield _given_up(job.number)
                    continue
                again = f"run again (try {tries[job.number]} of {MOST_TRIES})"
                self._log(f"trial {job.number}: a process died; {again}")
                suspects.append(job)

    def _run(
        self, jobs: list[Job], later: list[Job]
    ) -> Generator[Outcome, None, tuple[list[Job], list[Job]]]:
        """Run until all are done or a process dies: the trials it took with it, and those left to run."""
        self._busy = True
        running: dict[Future[Outcome], Job] = {}
        lost: list[Job] = []
        queue = iter(jobs)
        # Few are handed over at a time: only those are in doubt when a process dies.
        for job in itertools.islice(queue, self._count):
            running[self._pool.submit(_busy, self._execute, job)] = job
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                job = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    lost.append(job)
                    continue
                yield outcome
                if not lost and (following := next(queue, None)) is not None:
                    try:
                        running[self._pool.submit(_busy, self._execute, following)] = following
                    except BrokenProcessPool:
                        lost.append(following)
        self._busy = False
        return lost, [*queue, *later]

    def close(self) -> None:
        """End the processes; a trial that is running ends with them."""
        processes = list((getattr(self._pool, "_processes", None) or {}).values()) if self._busy else []
        self._pool.shutdown(wait=not self._busy, cancel_futures=True)
        for process in processes:
            process.terminate()


class Dask:
    """The workers of a Dask cluster that somebody has started, at its address.

    A cluster is none of ours to start: its ports would take code from whoever reaches them. TLS is as Dask's
    own configuration says.
    """

    def __init__(self, execute: Execute, address: str, log: Log):
        try:
            import distributed
        except ModuleNotFoundError:
            fail("ON805", "--dask", "dask.distributed is not installed", "pip install 'openneutron[sweep]'")
        self._execute, self._log = execute, log
        self._next_look, self._seen = 0.0, set[str]()
        if not address.startswith("tls://"):
            log(
                f"{address}: without TLS, whoever reaches this scheduler may run code on its workers and here"
            )
        try:
            self._client = distributed.Client(address, timeout=10, set_as_default=False)
        except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
            fail(
                "ON802",
                address,
                f"no Dask scheduler answers there: {_first_line(error)}",
                "Give the address that `dask scheduler` prints, e.g. tcp://10.0.0.5:8786.",
            )
        try:
            self._check_workers(address)
        except BaseException:
            self.close()
            raise

    def _check_workers(self, address: str) -> None:
        if not self._client.scheduler_info(n_workers=-1)["workers"]:
            fail("ON802", address, "the scheduler has no workers", f"Start some: dask worker {address}")
        own, gone = installed(), 0
        try:
            answers = self._client.run(installed, on_error="return")
        except (OSError, TimeoutError) as error:
            fail("ON802", address, f"the scheduler is gone: {_first_line(error)}", "Start it again.")
        for worker, versions in answers.items():
            if isinstance(versions, OSError):  # it died while it was asked
                gone += 1
                self._log(f"worker {worker} is gone")
            elif isinstance(versions, Exception):
                fail(
                    "ON802",
                    worker,
                    f"the worker cannot import OpenNeutron: {_first_line(versions)}",
                    "Install the same version in the environment of every worker.",
                )
            elif difference := differing(own, versions):
                fail(
                    "ON802",
                    worker,
                    difference,
                    "Install the same versions everywhere: results depend on them.",
                )
        if gone == len(answers):
            fail(
                "ON802",
                address,
                "all workers of the scheduler are gone",
                f"Start some: dask worker {address}",
            )

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """The outcomes as they come; Dask itself runs a lost task again elsewhere."""
        stamp = f"{time.time_ns():x}"
        names = {f"openneutron-{stamp}-{job.number}": job.number for job in jobs}
        pending = {
            self._client.submit(self._execute, job, key=key, pure=False, priority=-job.number)
            for job, key in zip(jobs, names, strict=True)
        }
        at: dict[str, str] = {}  # trial -> the worker that had it when last seen
        while pending:
            self._watch(names, at)
            ready = {future for future in pending if future.done()}
            if not ready:
                time.sleep(_POLL / 10)
            for future in ready:
                pending.discard(future)
                key = str(future.key)
                yield self._result(future, names[key])
                at.pop(key, None)

    def _watch(self, names: dict[str, int], at: dict[str, str]) -> None:
        """Say so when a worker is gone, and which trials it had."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _POLL
        alive = set(self._client.scheduler_info(n_workers=-1)["workers"])
        if not alive:  # a client that has lost sight of the scheduler for a moment sees none either
            return
        for worker in sorted(self._seen - alive):
            had = sorted(names[key] for key, place in at.items() if place == worker)
            what = f"trial {', '.join(map(str, had))}" if had else "what it had not handed over"
            self._log(f"worker {worker} is gone; {what} is run again elsewhere")
        for key in [key for key, worker in at.items() if worker not in alive]:
            del at[key]
        self._seen = alive
        for worker, keys in self._client.processing().items():
            at.update({key: worker for key in keys if key in names})

    def _result(self, future: Any, number: int) -> Outcome:
        try:
            outcome: Outcome = future.result()
            return outcome
        except Exception as error:
            if type(error).__name__ == "KilledWorker":
                return _given_up(number)
            return Outcome(number, FAILED, code="ON802", reason=f"its worker failed: {_first_line(error)}")

    def close(self) -> None:
        """Leave the cluster."""
        with contextlib.suppress(Exception):
            self._client.close()


_WORKING = threading.Lock()


def _busy(execute: Execute, job: Job) -> Outcome:
    with _WORKING:
        return execute(job)


def _end_with(parent: int) -> None:
    """In a worker: end when the search is gone, after the trial that is running; its outcome is kept.

    Ctrl-C reaches all processes of a terminal; the search itself then ends its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        with _WORKING:
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _given_up(number: int) -> Outcome:
    reason = f"its worker died {MOST_TRIES} times; out of memory?"
    return Outcome(number, FAILED, code="ON802", reason=reason)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
