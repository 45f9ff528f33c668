"""Data names no code: a budget or space file runs nothing unless the user says --trust."""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from openneutron import sweep
from openneutron.cli import main
from openneutron.commands.compiling.arguments import add_compile_options
from openneutron.commands.compiling.file_options import TRUSTED_ONLY
from openneutron.diagnostics import OpenNeutronError
from openneutron.inputs.source import load_function, load_source

TRACE = Path("ran")  # what code would make
EVIL = "open('ran', 'w').close()\n\ndef net(cmd=''):\n    return None\n\ndef score(run):\n    return 0.0\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "inside" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "inside")
    monkeypatch.setenv("OPENNEUTRON_QUIET", "1")
    Path("evil.py").write_text(EVIL)
    Path("../outside.py").write_text(EVIL)
    Path("linked.pt2").symlink_to("evil.py")
    Path("linked.onnx").symlink_to("evil.py")
    Path("data.py").symlink_to("evil.py")
    return tmp_path


def models() -> list[str]:
    return [
        f"{subprocess.__file__}:getoutput(cmd='touch ran')",
        "evil.py:net",
        "./evil.py:net",
        "deeper/../evil.py:net()",
        "../outside.py:net",
        "data.py:net",
        "evil.py:net(cmd='x').tflite",
    ]


@pytest.mark.parametrize("model", models())
def test_a_file_names_no_python_code(model, capfd):
    for command, text in (
        ("check", f'[[model]]\nmodel = "{model}"\nmax_cycles = 1\n'),
        (
            "sweep",
            f'model = "{model}"\n[options]\nper_channel = [false, true]\n[objectives]\nsqnr_db = "max"\n',
        ),
    ):
        Path("file.toml").write_text(text)
        assert main([command, "file.toml"]) == 2
        said = capfd.readouterr().err
        assert "Python code" in said and "--trust" in said and "model" in said
    with pytest.raises(OpenNeutronError, match=r"ON130.*Python code"):
        sweep("file.toml")
    assert not TRACE.exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("preprocess", "evil.py:net"),
        ("so_library", "evil.so"),
        ("intermediates", "/x"),
        ("extra_flags", "a=1"),
    ],
)
def test_a_file_sets_no_option_that_runs_code(option, value, capfd):
    budget = f'[[model]]\nmodel = "cifarnet"\nmax_cycles = 1\noptions = {{ {option} = "{value}" }}\n'
    for varied in (f'"{value}"', f'["{value}", "other"]'):
        space = f'model = "cifarnet"\n[options]\n{option} = {varied}\nverify = [true, false]\n'
        for command, text in (("check", budget), ("sweep", f'{space}[objectives]\ncycles = "min"\n')):
            Path("file.toml").write_text(text)
            assert main([command, "file.toml"]) == 2
            said = capfd.readouterr().err
            assert f"options.{option}" in said and "--trust" in said
    assert not TRACE.exists()


def test_a_metric_is_code_too(capfd):
    Path("file.toml").write_text(
        'model = "cifarnet"\n[options]\nverify = [true, false]\n[data]\nmetric = "evil.py:score"\n'
        '[objectives]\nmetric = "max"\n'
    )
    assert main(["sweep", "file.toml"]) == 2
    assert "data.metric" in capfd.readouterr().err and not TRACE.exists()


MEASURED = 'model = "cifarnet"\n[options]\nverify = [true, false]\n{}[objectives]\nmeasured = "min"\n'


@pytest.mark.parametrize("objective", ['measured = "min"', 'cycles = "min"'])
@pytest.mark.parametrize("kind", ["device", "socket", "url", "qemu"])
def test_a_file_opens_no_board(kind, objective, capfd):
    """Nothing is opened or connected to, whether or not the file asks for what a board measures."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        place = f"socket://127.0.0.1:{server.getsockname()[1]}"
        port = {"device": "/dev/ttyACM0", "socket": place, "url": f"spy://{place}?file=ran", "qemu": "qemu"}[
            kind
        ]
        text = MEASURED.format(f'[data]\nboards = ["{port}"]\n').replace('measured = "min"', objective)
        Path("file.toml").write_text(text)
        assert main(["sweep", "file.toml", "--jobs", "1"]) == 2
        said = capfd.readouterr().err
        assert "data.boards" in said and "--trust" in said and "--board" in said
        with pytest.raises(OpenNeutronError, match=r"ON130.*data.boards"):
            sweep("file.toml")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not TRACE.exists() and not Path("file.sweep").exists()


def test_the_users_boards_stand_for_the_files(capfd):
    """Ports of the command line are opened, those of the file are not; --trust opens the file's."""
    with socket.create_server(("127.0.0.1", 0)) as theirs, socket.create_server(("127.0.0.1", 0)) as ours:
        names = [f"socket://127.0.0.1:{s.getsockname()[1]}" for s in (theirs, ours)]
        Path("file.toml").write_text(MEASURED.format(f'[data]\nboards = ["{names[0]}"]\n'))
        for words, wanted in ((["--board", names[1]], {1}), (["--trust"], {0})):
            opened = set()
            stop = threading.Event()

            def listen(number, server, opened=opened, stop=stop):
                server.settimeout(0.1)
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        server.accept()[0].close()
                        opened.add(number)

            threads = [threading.Thread(target=listen, args=(n, s)) for n, s in enumerate((theirs, ours))]
            for thread in threads:
                thread.start()
            # A line that is closed at once is no board: every trial fails, after it was opened.
            more = ["--jobs", "1", "--no-reports", "--trials", "1", "-o", f"out{len(words)}"]
            assert main(["sweep", "file.toml", *words, *more]) == 1
            stop.set()
            for thread in threads:
                thread.join()
            assert opened == wanted
            assert "ON72" in capfd.readouterr().err
    for wrong in ("", " "):
        assert main(["sweep", "file.toml", "--board", wrong]) == 2
    Path("file.toml").write_text(MEASURED.format(""))
    assert main(["sweep", "file.toml"]) == 2
    assert "there is no board" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["linked.pt2", "linked.onnx"])
def test_a_data_file_that_is_python_is_read_as_data(name, capfd):
    Path("file.toml").write_text(f'[[model]]\nmodel = "{name}"\nmax_cycles = 1\n')
    assert main(["check", "file.toml"]) == 1
    capfd.readouterr()
    assert not TRACE.exists()


def test_trust_runs_what_a_file_names(capfd):
    Path("file.toml").write_text('[[model]]\nmodel = "evil.py:net"\nmax_cycles = 1\n')
    assert main(["check", "file.toml", "--trust"]) == 1
    assert "the function returned NoneType" in capfd.readouterr().out
    assert TRACE.exists()


def test_every_option_that_takes_a_path_is_known_here():
    """A new option that names a file is either data, or is added to what only a trusted file may set."""
    parser = argparse.ArgumentParser()
    add_compile_options(parser)
    paths = [a for a in parser._actions if any(w in str(a.metavar) for w in ("FILE", "DIR", "LIB", "FLAGS"))]
    assert {a.dest for a in paths} == {*TRUSTED_ONLY, "calibration"}


OWN = """
import functools, os, subprocess
from os import system
from subprocess import getoutput as renamed
import torch

alias = os.system
bound = subprocess.Popen
part = functools.partial(os.system, "touch ran")

def build(width=1):
    return torch.nn.ReLU(), torch.zeros(1, 4)

@torch.no_grad()
def decorated():
    return build()

@functools.lru_cache
def cached():
    return build()

class Maker:
    def __call__(self):
        return build()

made = Maker()
own_part = functools.partial(build, width=3)
short = lambda: build()
"""


def test_a_callable_is_one_that_the_file_defines():
    Path("own.py").write_text(OWN)
    for name in ("build", "build(width=2)", "decorated", "cached", "made", "own_part", "short"):
        assert load_source(f"own.py:{name}").name == "own"
    for call in ("system(command='touch ran')", "renamed(cmd='touch ran')", "alias(command='touch ran')",
                 "part", "bound(args='x')", "os", "subprocess"):  # fmt: skip
        with pytest.raises(OpenNeutronError, match="defined in the file\n  hint: It has: build, decorated"):
            load_source(f"own.py:{call}")
    with pytest.raises(OpenNeutronError, match="ON604"):
        load_function("own.py:system")
    assert not TRACE.exists()
