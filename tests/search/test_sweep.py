"""`openneutron sweep` on a tiny network: figures, limits, failures, the files it leaves, and the page."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openneutron import sweep
from openneutron.diagnostics import OpenNeutronError
from openneutron.search.front import pareto_front
from tests.report.browser import Browser

NET = """
import torch
from torch import nn

def tiny(width=4, act="relu"):
    torch.manual_seed(0)
    if act == "broken":
        raise ValueError("no such function")
    function = nn.ReLU() if act == "relu" else nn.Sigmoid()
    layers = nn.Conv2d(1, width, 3), function, nn.MaxPool2d(2), nn.Flatten()
    module = nn.Sequential(*layers, nn.Linear(width * 49, 10))
    return module, torch.randn(1, 1, 16, 16), [torch.randn(1, 1, 16, 16) for _ in range(4)]

def score(run):
    return float(run(torch.zeros(1, 1, 16, 16))[0].max())

def bad(run):
    raise KeyError("nothing")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    return tmp_path


def space(**change):
    table = {
        "model": "net.py:tiny",
        "parameters": {"width": [2, 4]},
        "options": {"optimise": ["performance", "size"]},
        "objectives": {"sqnr_db": "max", "sram_bytes": "min"},
    }
    return {**table, **change}


def test_a_grid_its_front_and_its_files(folder):
    data = sweep(space(), "out", jobs=1)
    trials = data["trials"]
    assert [t["state"] for t in trials] == ["done"] * 4
    wanted = pareto_front([t["figures"] for t in trials], {"sqnr_db": "maximize", "sram_bytes": "minimize"})
    assert data["front"] == wanted
    for trial in trials:
        assert (trial["program"] is not None) == trial["front"], "programs of the front are kept"
        assert (folder / "out" / trial["report"]).exists()
    rows = list(csv.DictReader((folder / "out" / "sweep.csv").open()))
    assert [float(r["sram_bytes"]) for r in rows] == [t["figures"]["sram_bytes"] for t in trials]
    assert json.loads((folder / "out" / "sweep.json").read_text()) == data
    runs = (folder / "out" / "trials.log").read_text().count("done in")
    assert sweep(space(), "out", jobs=1) == data
    assert (folder / "out" / "trials.log").read_text().count("done in") == runs, "nothing is run again"


def test_limits_failures_and_metrics_are_rows(folder):
    table = space(
        parameters={"width": [2, 4], "act": ["relu", "broken"]},
        options={"verify": False},
        data={"metric": "net.py:score"},
        objectives={"metric": "max"},
        limits={"sram_bytes": "<= 3000"},
    )
    data = sweep(table, "out", jobs=1, reports=False)
    assert {t["state"] for t in data["trials"]} == {"done", "over a limit", "failed"}
    failed = next(t for t in data["trials"] if t["state"] == "failed")
    assert failed["code"] == "ON604" and "no such function" in failed["reason"]
    over = next(t for t in data["trials"] if t["state"] == "over a limit")
    assert "sram_bytes" in over["reason"] and "metric" not in over["figures"], "not evaluated"
    table["data"] = {"metric": "net.py:bad"}
    bad = sweep(table, "bad", jobs=1, reports=False)
    assert {t["code"] for t in bad["trials"] if t["point"]["parameters.act"] == "relu"} >= {"ON803"}


def test_wrong_spaces_are_found_before_any_trial(folder):
    for change, says in (
        ({"options": {"optimize": ["size", "performance"]}}, "Did you mean 'optimise'?"),
        ({"options": {"optimise": ["size", "speed"]}}, "one of performance, size"),
        ({"parameters": {"widht": [2, 4]}}, "Did you mean 'width'?"),
        ({"objectives": {"accuracy": "max"}}, "no labelled data"),
        ({"data": {"metric": "net.py:scores"}, "objectives": {"metric": "max"}}, "no function 'scores'"),
    ):
        with pytest.raises(OpenNeutronError) as error:
            sweep(space(**change), "out", jobs=1)
        assert error.value.diagnostic.code in ("ON130", "ON606", "ON604") and says in str(error.value)
    assert not Path("out").exists()


def _children(pid):
    """Workers that a process left behind: their environment names it."""
    marked = f"OPENNEUTRON_TEST_CLIENT={os.getpid()}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if marked in (path / "environ").read_bytes().split(b"\0") and int(path.name) != pid:
                found.append(int(path.name))
        except OSError:
            pass
    return found


@pytest.mark.slow  # a sweep that is killed and goes on
def test_a_client_that_was_killed_goes_on(folder, monkeypatch):
    monkeypatch.setenv("OPENNEUTRON_TEST_CLIENT", str(os.getpid()))
    Path("space.toml").write_text(
        'model = "net.py:tiny"\n[parameters]\nwidth = [2, 3, 4, 5]\n[options]\nverify = false\n'
        '[objectives]\nsqnr_db = "max"\n'
    )
    command = [sys.executable, "-m", "openneutron", "sweep", "space.toml", "--trust"]
    command += ["--jobs", "2", "--no-reports"]
    process = subprocess.Popen(
        [*command, "--trials", "30"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    log = folder / "space.sweep" / "trials.log"
    while process.poll() is None and not (log.exists() and log.read_text().count("done in") >= 1):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = log.read_text().count("done in")
    ended = time.monotonic() + 120
    while _children(process.pid) and time.monotonic() < ended:
        time.sleep(0.2)
    assert not _children(process.pid), "its workers end by themselves"
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert [t["state"] for t in data["trials"]] == ["done"] * 4
    assert log.read_text().count("done in") - before == 4 - before, "no trial that was told is run twice"


@pytest.mark.slow  # a Dask cluster, killed on the way
def test_dask_workers_that_see_no_path_and_one_that_is_killed(folder, cluster):
    """Model and neighbour travel; a worker dies, then the client: the rows are those of this process."""
    address, processes = cluster
    Path("helper.py").write_text("SCALE = 2\n")
    Path("net.py").write_text(NET.replace("import torch\n", "import torch\nfrom helper import SCALE\n", 1))
    options = {"verify": False, "optimise": ["performance", "size"]}
    table = space(parameters={"width": [2, 3, 4]}, options=options, workers={"ship": True})

    def rows(data):
        return [(t["number"], t["point"], t["state"], t["reason"], t["figures"]) for t in data["trials"]]

    wanted = sweep(table, "here", jobs=1, reports=False)
    assert {t["state"] for t in wanted["trials"]} == {"done"}
    code = f"import openneutron; openneutron.sweep({table!r}, 'there', dask={address!r}, reports=False)"
    client = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    log = folder / "there" / "trials.log"

    def done():
        return log.read_text().count("done in") if log.exists() else 0

    while client.poll() is None and done() < 1:
        time.sleep(0.05)
    client.kill()
    client.wait()
    before = done()
    assert 1 <= before < 6
    processes[1].kill()
    found = sweep(table, "there", dask=address, reports=False)
    assert rows(found) == rows(wanted) and found["front"] == wanted["front"]
    assert [t["command"] for t in found["trials"]] == [t["command"] for t in wanted["trials"]]
    assert done() == 6, "no trial that was told is run twice"
    for trial in found["trials"]:
        if trial["front"]:
            assert (folder / "there" / trial["program"]).read_bytes()


@pytest.fixture(scope="module")
def swept_page(tmp_path_factory):
    """The page of a sweep, which tests only read."""
    place = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("net.py").write_text(NET)
        sweep(space(limits={"sram_bytes": "<= 1M"}), "out", jobs=1, reports=False)
    return place / "out" / "sweep.html"


@pytest.mark.browser
@pytest.mark.slow  # a sweep, and its page in a browser
@pytest.mark.parametrize("look", [{}, {"dark": True, "width": 400, "height": 800, "touch": True}])
def test_the_page(swept_page, look):
    browser = Browser()
    try:
        page = browser.open(swept_page, **look)
        count = "document.querySelectorAll('{}').length"
        assert page.evaluate(count.format("#scatter circle.dot")) == 4
        assert page.evaluate(count.format("#parallel path.thread")) == 4
        assert page.evaluate(count.format("#trials tbody tr")) == 4
        assert page.evaluate(count.format("#scatter line.limit")) == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        page.hover("#scatter circle.dot")
        assert page.evaluate(count.format("#trials tr.marked")) == 1, "marked everywhere"
        first = "document.querySelector('#trials tbody td').textContent"
        assert page.evaluate(first) == "0"
        page.click("#trials th button")
        assert page.evaluate(first) == "3", "sorted the other way"
        if picture := os.environ.get("OPENNEUTRON_PICTURES"):
            page.screenshot(Path(picture) / f"sweep-{'dark' if look else 'light'}.png", whole=True)
        assert page.complaints() == [] and page.requests() == []
    finally:
        browser.close()


@pytest.mark.parametrize("name", ["trials.log", "sweep.html", "trials/0000/model.pte", "study.journal"])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_folder_with_what_no_search_leaves(folder, name, kind):
    """Nothing is written through a link, and nobody waits at a FIFO."""
    place = Path("out", name)
    place.parent.mkdir(parents=True)
    Path("theirs").write_text("kept")
    place.symlink_to(Path("theirs").resolve()) if kind == "link" else os.mkfifo(place)
    with pytest.raises(OpenNeutronError, match=f"ON801.*{place.name}.*no search leaves"):
        sweep(space(), "out", jobs=1)
    assert Path("theirs").read_text() == "kept"
