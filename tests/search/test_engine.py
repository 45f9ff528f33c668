"""The search: the same trials whoever runs them, nothing lost and nothing run twice."""

import pytest

from openneutron.diagnostics import OpenNeutronError
from openneutron.search.engine import LOG, Search
from openneutron.search.space import make_space
from openneutron.search.workers import Dask, Here, Processes
from tests.search.jobs import compute

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


@pytest.mark.slow
def test_dask_gives_the_same_though_a_worker_is_killed(tmp_path, cluster):
    address, processes = cluster
    table = {**TABLE, "data": {"metric": "slow.py:f"}}
    whole = plain(searched(tmp_path / "here", TABLE))

    def make(log):
        return Dask(compute, address, 2, log)

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
        searched(tmp_path, make=lambda log: Dask(compute, "tcp://127.0.0.1:9", 1, log))
    assert error.value.diagnostic.code == "ON802" and "127.0.0.1:9" in str(error.value)
