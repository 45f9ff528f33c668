"""The search: the same trials whoever runs them, nothing lost and nothing run twice."""

import contextlib
import errno
import json
import os
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from openneutron.commands.searching.sweep import worker_maker
from openneutron.diagnostics import OpenNeutronError
from openneutron.search.engine import LOG, Search
from openneutron.search.journal import line_sum
from openneutron.search.space import make_space
from openneutron.search.study import JOURNAL
from openneutron.search.trial import Outcome
from openneutron.search.workers import Dask, Here, Processes
from tests.search.jobs import compute

ROOT = Path(__file__).resolve().parents[2]
TABLE = {
    "model": "net.py:f",
    "parameters": {"x": {"from": 0, "to": 40}, "y": [0, 5, 9]},
    "objectives": {"cycles": "min", "sram_bytes": "max"},
    "trials": 20,
}


def here(log):
    return Here(compute)


def searched(folder, table=TABLE, make=here, stop_after=None):
    search = Search(make_space(table), folder)
    count = 0

    def watch(found):
        nonlocal count
        count += 1
        if count == stop_after:
            raise KeyboardInterrupt

    return search.run(make, watch)


def plain(rows):
    return [
        (row.outcome.number, row.point, row.outcome.figures, row.outcome.state, row.on_front) for row in rows
    ]


def runs(folder):
    return {path.parent.name: len(path.read_text().split()) for path in folder.rglob("runs")}


def test_a_sampled_search_repeats_itself_and_an_interrupted_one_goes_on(tmp_path):
    whole = plain(searched(tmp_path / "whole"))
    assert len(whole) == 20 == len({str(row[1]) for row in whole})
    assert any(row[4] for row in whole)
    for stop in (3, 11):  # in the middle of a batch
        folder = tmp_path / f"stopped{stop}"
        with pytest.raises(KeyboardInterrupt):
            searched(folder, stop_after=stop)
        assert plain(searched(folder)) == whole
    more = plain(searched(tmp_path / "whole", {**TABLE, "trials": 24}))
    assert len(more) == 24 and [row[:4] for row in more[:20]] == [row[:4] for row in whole], "extended"
    assert set(runs(tmp_path / "whole").values()) == {1}, "nothing is run twice"


def test_a_huge_space_is_sampled(tmp_path):
    huge = {"x": {"from": 1, "to": 10**12}, "y": {"from": 0.0, "to": 1.0, "step": 1e-9}}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, parameters in (("two", huge), ("one", {"x": huge["x"]})):
        rows = plain(searched(tmp_path / name, {**TABLE, "parameters": parameters}))
        assert len(rows) == 20 == len({str(row[1]) for row in rows})
        assert plain(searched(tmp_path / name, {**TABLE, "parameters": parameters})) == rows
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, "KiB"


def test_processes_give_the_same_and_a_process_that_dies_loses_nothing(tmp_path):
    whole = plain(searched(tmp_path / "here"))
    folder = tmp_path / "there"
    victim = whole[5][1]["parameters.x"]
    table = {**TABLE, "data": {"samples": victim}}
    rows = plain(searched(folder, table, lambda log: Processes(compute, 2, log)))
    assert rows == whole
    log = (folder / LOG).read_text()
    assert "a process died; run again (try 2 of 3)" in log


def test_a_trial_that_kills_every_worker_fails_alone(tmp_path):
    table = {**TABLE, "parameters": {"x": [1, 2, 3, 4, 5, 6]}, "data": {"samples": 3, "test": "always"}}
    rows = searched(tmp_path, table, lambda log: Processes(compute, 2, log))
    states = {row.point["parameters.x"]: row.outcome.state for row in rows}
    assert states == {1: "done", 2: "done", 3: "failed", 4: "done", 5: "done", 6: "done"}
    assert next(r.outcome.code for r in rows if r.outcome.state == "failed") == "ON802"


def test_a_failed_trial_is_a_row(tmp_path):
    rows = searched(tmp_path, {**TABLE, "parameters": {"x": [-1, 2]}})
    assert [(r.outcome.state, r.outcome.code) for r in rows] == [("failed", "ON401"), ("done", "")]


def test_a_folder_belongs_to_one_space_and_one_search(tmp_path):
    searched(tmp_path, {**TABLE, "parameters": {"x": [1, 2]}})
    with pytest.raises(OpenNeutronError, match="another space"):
        searched(tmp_path, {**TABLE, "parameters": {"x": [1, 3]}})
    held = Search(make_space({**TABLE, "parameters": {"x": [1, 2]}}), tmp_path)
    with pytest.raises(OpenNeutronError, match="another search"):
        Search(make_space({**TABLE, "parameters": {"x": [1, 2]}}), tmp_path)
    held.run(here)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OpenNeutronError) as error:
        searched(blocked / "folder")
    assert error.value.diagnostic.code == "ON801"


@pytest.mark.slow  # a Dask cluster
def test_dask_gives_the_same_though_a_worker_is_killed(tmp_path, cluster):
    address, processes = cluster
    table = {**TABLE, "data": {"metric": "slow.py:f"}}
    whole = plain(searched(tmp_path / "here", TABLE))

    def make(log):
        return Dask(compute, address, log)

    search = Search(make_space(table), tmp_path / "there")
    count = 0

    def watch(found):
        nonlocal count
        count += 1
        if count == 6:
            processes[1].kill()

    assert plain(search.run(make, watch)) == whole
    assert "is run again elsewhere" in (tmp_path / "there" / LOG).read_text()


def test_no_scheduler_is_said(tmp_path):
    with pytest.raises(OpenNeutronError) as error:
        searched(tmp_path, make=lambda log: Dask(compute, "tcp://127.0.0.1:9", log))
    assert error.value.diagnostic.code == "ON802" and "127.0.0.1:9" in str(error.value)


def test_searches_that_are_killed_at_any_write_go_on(tmp_path):
    """The rows are those of a search that nobody killed; nobody waits for a lock that a dead process left."""
    code = [sys.executable, "-m", "tests.search.killed", str(tmp_path), str(random.randrange(2**31)), "40"]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{code}\n{done.stderr[-3000:]}"
    assert int(done.stdout) > 40


SMALL = {**TABLE, "parameters": {"x": [1, 2, 3]}}


def test_a_lock_that_optuna_left_is_not_waited_for(tmp_path):
    """What a client that was killed left, under a version that used it."""
    searched(tmp_path, SMALL, stop_after=None)
    (tmp_path / "study.journal.lock").symlink_to("gone/study.journal")
    assert len(searched(tmp_path, SMALL)) == 3


@pytest.mark.parametrize("tail", [b'{"op_code": 4, "wor', b"\0\0\0\0", b"\xff", b"{}"])
def test_a_torn_last_line_is_dropped_and_said(tmp_path, tail):
    whole = plain(searched(tmp_path, SMALL))
    journal = tmp_path / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]) + tail)
    search = Search(make_space(SMALL), tmp_path)
    assert "its last line was not written to its end" in search.note
    assert plain(search.run(here)) == whole
    assert search.note in (tmp_path / LOG).read_text()
    assert runs(tmp_path) == {"0000": 1, "0001": 1, "0002": 2}, "that trial alone"


def test_a_disk_that_fills_up(tmp_path, monkeypatch):
    """At whichever line: the reason is said with the file's name, and the search goes on from there."""
    from optuna.storages.journal import JournalFileBackend

    whole = plain(searched(tmp_path / "whole", SMALL))
    append, left = JournalFileBackend.append_logs, 0

    def full(self, logs):
        nonlocal left
        left -= 1
        if left < 0:
            with open(self._file_path, "ab") as file:
                file.write(b'{"op_code": 4, "wor')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, logs)

    for count in range(20):
        folder, left = tmp_path / str(count), count
        with monkeypatch.context() as patch:
            patch.setattr(JournalFileBackend, "append_logs", full)
            try:
                searched(folder, SMALL)
                break
            except OpenNeutronError as error:
                found = error.diagnostic
        assert found.code == "ON601" and JOURNAL in found.where and "No space left" in found.problem
        assert plain(searched(folder, SMALL)) == whole, count
    assert 2 < count < 19


def summed(lines):
    """The same lines with sums that are right, as somebody would write them who means harm."""
    total, found = 0, []
    for operation in map(json.loads, lines):
        operation.pop("sum", None)
        total = line_sum(operation, total)
        found.append(json.dumps({**operation, "sum": total}).encode() + b"\n")
    return found


def damaged(lines):
    """Journals with every kind of damage but a torn end."""
    for i in range(len(lines) - 1):
        yield f"without line {i}", [*lines[:i], *lines[i + 1 :]]
        yield f"line {i} twice", [*lines[: i + 1], *lines[i:]]
        yield f"lines {i} and {i + 1} exchanged", [*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]
        digit = next(m for m in re.finditer(rb"\d(?=[^\d])", lines[i]))
        other = b"%d" % ((int(digit[0]) + 1) % 10)
        changed = lines[i][: digit.start()] + other + lines[i][digit.end() :]
        yield f"a digit of line {i}", [*lines[:i], changed, *lines[i + 1 :]]
    yield "a line in the middle", [*lines[:2], b"{]\n", *lines[2:]]
    yield "a line cut in the middle", [*lines[:3], lines[3][:30] + b"\n", *lines[4:]]
    yield "a number", [b"7\n", *lines]
    yield "nested", [b"[" * 100_000 + b"\n", *lines]
    yield "no operation", [b"{}\n", *lines]
    yield "an unknown operation", summed([*lines, b'{"op_code": 99, "worker_id": "x"}\n'])
    yield "bytes", [os.urandom(200).replace(b"\n", b"") + b"\n"]
    row = next(i for i, line in enumerate(lines) if b'"openneutron"' in line)
    for one, other in (
        (b'"parameters.x"', b'"options.so_library"'),
        (b'"point":{"parameters.x":', b'"point":{"parameters.x":9'),
        (b'"state":"done"', b'"state":"odd"'),
        (b'"cycles":', b'"cyclos":'),
        (b'"figures":{', b'"figures":null,"other":{'),
    ):
        assert one in lines[row]
        yield other.decode(), summed([*lines[:row], lines[row].replace(one, other), *lines[row + 1 :]])


def test_any_other_damage_is_a_coded_error(tmp_path):
    searched(tmp_path, SMALL)
    journal = tmp_path / JOURNAL
    for name, changed in damaged(journal.read_bytes().splitlines(keepends=True)):
        journal.write_bytes(b"".join(changed))
        with pytest.raises(OpenNeutronError) as error:
            searched(tmp_path, SMALL)
        found = error.value.diagnostic
        assert found.code == "ON801" and found.hint and JOURNAL in found.where, name
    journal.unlink()
    os.mkfifo(journal)
    with pytest.raises(OpenNeutronError, match="is a FIFO"):
        searched(tmp_path, SMALL)


def test_a_point_of_the_file_that_is_none_of_the_space_is_not_run(tmp_path):
    """What a killed process asked for is run again from the file: as the space has it, or not at all."""
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path, stop_after=2)
    journal = tmp_path / JOURNAL
    data = journal.read_bytes()
    changed = data.replace(b'"param_name":"parameters.y"', b'"param_name":"options.so_library"')
    assert changed != data
    journal.write_bytes(b"".join(summed(changed.splitlines())))
    with pytest.raises(OpenNeutronError, match="ON801"):
        searched(tmp_path)


@pytest.mark.slow  # a Dask cluster with certificates
def test_dask_with_tls_takes_those_with_the_certificate_only(tmp_path, tls_cluster):
    address, _ = tls_cluster
    assert address.startswith("tls://")
    rows = searched(tmp_path / "there", SMALL, lambda log: Dask(compute, address, log))
    assert plain(rows) == plain(searched(tmp_path / "here", SMALL))
    assert "without TLS" not in (tmp_path / "there" / LOG).read_text()
    import dask.config

    # Another certificate, made by anybody: not of the scheduler's authority.
    other = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=sweep"]
    files = {"key": str(tmp_path / "other-key.pem"), "cert": str(tmp_path / "other-cert.pem")}
    subprocess.run([*other, "-keyout", files["key"], "-out", files["cert"]], check=True, capture_output=True)
    config = {f"distributed.comm.tls.client.{name}": file for name, file in files.items()}
    with dask.config.set(config), pytest.raises(OpenNeutronError, match="ON802"):
        Dask(compute, address, lambda text: None)
    with pytest.raises(OpenNeutronError, match="ON802"):
        Dask(compute, address.replace("tls://", "tcp://"), lambda text: None)


def test_dask_local_listens_on_no_port(tmp_path):
    """A port of ours would take code from every user of the machine: these are processes and pipes."""
    workers = worker_maker(2, "local")(lambda text: None)
    try:
        assert isinstance(workers, Processes)
        workers._execute = _sockets
        job = Search(make_space(SMALL), tmp_path)._job(0, {"parameters.x": 1})
        (outcome,) = workers.run([job])
        assert outcome.reason == "[]"
    finally:
        workers.close()


def _sockets(job):
    """In a worker: the sockets in its family of processes that listen."""
    own = set()
    for file in (f for p in (os.getpid(), os.getppid()) for f in Path(f"/proc/{p}/fd").iterdir()):
        with contextlib.suppress(OSError):  # the folder that is read is a file too, and closed by then
            own.add(os.readlink(file))
    text = "".join(Path(f"/proc/net/{kind}").read_text() for kind in ("tcp", "tcp6"))
    lines = [line.split() for line in text.splitlines()]
    listening = [f"socket:[{words[9]}]" for words in lines if words[3] == "0A"]
    return Outcome(job.number, "done", reason=str(sorted(own.intersection(listening))))
