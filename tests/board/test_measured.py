"""Measured times: kept beside a program, in its report, in a budget, beside the accuracy."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.cli import main
from openneutron.inputs.source import load_source
from tests.board.fake import Board
from tests.board.programs import layer_program, model_of

PAGE = Path(__file__).resolve().parents[2] / "docs/board.md"


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "layer.pte"
    path.write_bytes(layer_program())
    return path


def budget(tmp_path, most):
    path = tmp_path / "budget.toml"
    path.write_text(f'[[model]]\nmodel = "layer.pte"\nmax_measured_ms = {most}\n')
    return str(path)


def test_a_budget_of_measured_time(program, tmp_path, capsys):
    assert main(["check", budget(tmp_path, 1.0)]) == 1  # nothing was measured: not known is no pass
    assert "not known" in capsys.readouterr().out
    with Board(model_of(layer_program())) as board:
        assert main(["check", budget(tmp_path, 0.848), "--board", board.name]) == 0
        assert main(["check", budget(tmp_path, 0.847), "--board", board.name]) == 1
    assert main(["check", budget(tmp_path, 0.9)]) == 0  # what was measured is kept beside it


def test_a_report_has_every_measurement(program, tmp_path, capsys):
    with Board(model_of(layer_program())) as board:
        for _ in range(2):
            assert main(["run", str(program), "--board", board.name]) == 0
    assert main(["report", str(program), "-o", str(tmp_path / "r.json")]) == 0
    data = json.loads((tmp_path / "r.json").read_text())
    assert [row["median"] for row in data["measured"]] == [848, 848]
    assert data["summary"]["time_us_measured"] == 848
    assert main(["report", str(program), "-o", str(tmp_path / "r.html")]) == 0
    assert "executorch_modelrunner" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "program": "x", "runs": []}', "[" * 10000]
)
def test_a_damaged_file_is_none(program, tmp_path, text):
    program.with_name("layer.measured.json").write_text(text)
    assert main(["report", str(program), "-o", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["measured"] == []


def test_measurements_of_another_program_are_not_shown(program, tmp_path):
    with Board(model_of(layer_program())) as board:
        assert main(["run", str(program), "--board", board.name]) == 0
    program.write_bytes(layer_program() + b"\0" * 16)
    assert main(["report", str(program), "-o", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["measured"] == []


@pytest.mark.firmware
@pytest.mark.slow  # an image is built and run under QEMU
def test_accuracy_on_the_board(tmp_path, capsys):
    from tests.firmware.whole import find_test_sources

    find_test_sources()
    words = ["eval", "cifarnet", "-o", str(tmp_path / "c.pte"), "--samples", "4", "--board", "qemu", "--json"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["board"] == data["simulator"] and data["board_time"]["unit"] == "instructions"


@pytest.mark.firmware
@pytest.mark.slow  # an image is built and run under QEMU
def test_the_pages_way_with_qemu(tmp_path):
    from tests.firmware.whole import find_test_sources

    find_test_sources()
    section = PAGE.read_text().split("## With OpenNeutron's firmware under QEMU")[1].split("\n## ")[0]
    more = PAGE.read_text().split("## With MCUXpresso")[1]
    lines = re.findall(r"^\$ (openneutron (?:compile|run|firmware).*)", section + more, re.M)
    assert len(lines) == 5
    for line in lines:
        words = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"{line}\n{done.stderr[-2000:]}"
    assert (tmp_path / "serve/serve-cortex-m33.elf").exists()
    assert (tmp_path / "cifarnet_mcux/example.yml").exists()
    assert (tmp_path / "cifarnet_zephyr/app/prj.conf").exists()


NET = """import torch


def make():
    torch.manual_seed(0)
    samples = [(torch.randn(1, 6),) for _ in range(8)]
    return torch.nn.Linear(6, 3).eval(), samples[0], iter(samples)
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_compare_puts_the_board_beside_host_and_float(tmp_path, capsys, wrong):
    (tmp_path / "net.py").write_text(NET)
    model = [f"{tmp_path / 'net.py'}:make", "--operators_not_to_delegate", "aten::linear"]
    path = tmp_path / "net.pte"
    assert main(["compile", *model, "-o", str(path)]) == 0
    told, asked = model_of(path.read_bytes()), []
    right = told.compute

    def compute(given):
        asked.append(np.frombuffer(given, np.float32))
        (output,) = right(given)
        third = wrong and len(asked) == 3
        return [np.float32([1, 2, 3]).tobytes() if third else output]

    told.compute = compute
    capsys.readouterr()
    with Board(told) as board:
        code = main(["compare", *model, "--board", board.name, "--json", "--samples", "4"])
    said = capsys.readouterr()
    data = json.loads(said.out)
    found = data["board"]
    assert data["layers"] and len(asked) == 4
    assert found["time"]["median"] == 848 and found["time"]["unit"] == "microseconds"
    assert [row["time"] for row in found["samples"]] == [848] * 4
    assert [row["equal"] for row in found["samples"]] == [3, 3, 0 if wrong else 3, 3]
    module = load_source(model[0]).module
    for number, (row, given) in enumerate(zip(found["samples"], asked, strict=True)):
        exact = module(torch.from_numpy(given.copy())).detach().numpy()
        bad = wrong and number == 2
        output = np.float32([1, 2, 3]) if bad else np.frombuffer(right(given.tobytes())[0], np.float32)
        assert row["max_error"] == pytest.approx(np.abs(output - exact).max(), rel=1e-4)
        assert (row["sqnr_db"] > 25) is not bad
    assert code == (1 if wrong else 0)
    assert ("ON726" in said.err and "input 2, output 0: 3 of 3 values differ" in said.err) is wrong


def test_compare_prints_a_row_a_sample(tmp_path, capsys):
    (tmp_path / "net.py").write_text(NET)
    model = [f"{tmp_path / 'net.py'}:make", "--operators_not_to_delegate", "aten::linear"]
    path = tmp_path / "net.pte"
    assert main(["compile", *model, "-o", str(path)]) == 0
    capsys.readouterr()
    with Board(model_of(path.read_bytes())) as board:
        assert main(["compare", *model, "--board", board.name, "--samples", "2", "-o", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.count("848  ") == 2 and text.count("3 of 3") == 2
    assert "median 848 microseconds (measured); estimated for the chip" in text
    assert json.loads((tmp_path / "net.measured.json").read_text())["runs"][0]["median"] == 848
    assert main(["compare", *model, "--board", board.name, "-r"]) == 2


def test_a_sweep_with_measured_time(tmp_path, capsys):
    """A figure that needs a board; what a board refuses is the reason of its trial."""
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef make(width):\n    torch.manual_seed(0)\n"
        "    return torch.nn.Linear(6, width).eval(), (torch.randn(1, 6),)\n"
    )
    (tmp_path / "s.toml").write_text(
        'model = "net.py:make"\n[parameters]\nwidth = [2, 3]\n'
        '[data]\nboards = []\n[objectives]\nmeasured = "min"\n'
    )
    assert main(["sweep", str(tmp_path / "s.toml"), "--trust"]) == 2
    assert "there is no board" in capsys.readouterr().err
    with Board(model_of(layer_program())) as board:
        text = (tmp_path / "s.toml").read_text().replace("[]", f'["{board.name}"]')
        (tmp_path / "s.toml").write_text(text)
        assert main(["sweep", str(tmp_path / "s.toml"), "--jobs", "1", "--no-reports", "--trust"]) == 1
    assert "ON725" in capsys.readouterr().err  # the open converter's microcode on the stock firmware


@pytest.mark.parametrize(
    ("table", "words", "found"),
    [
        ("", [], (115200, 30.0)),
        ("", ["--baud", "9600", "--timeout", "2.5"], (9600, 2.5)),
        ("baud = 57600\ntimeout = 7", [], (57600, 7)),
        ("baud = 57600\ntimeout = 7", ["--timeout", "3"], (57600, 3.0)),
    ],
)
def test_a_sweep_opens_the_line_as_it_is_told(tmp_path, monkeypatch, table, words, found):
    from openneutron.board import session

    (tmp_path / "net.py").write_text(NET.replace("make():", "make(width):"))
    (tmp_path / "s.toml").write_text(
        f'model = "net.py:make"\n[parameters]\nwidth = [2]\n[data]\nboards = ["/dev/none"]\n{table}\n'
        '[objectives]\nmeasured = "min"\n'
    )
    heard = []

    def open_board(name, *, baud, timeout):
        heard.append((name, baud, timeout))
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "open_board", open_board)
    main(["sweep", str(tmp_path / "s.toml"), "--trust", "--jobs", "1", "--no-reports", *words])
    assert heard == [("/dev/none", *found)]


@pytest.mark.parametrize(
    "words", [["--baud", "0"], ["--timeout", "-1"], ["--timeout", "nan"], ["--baud", "1.5"], []]
)
def test_a_sweep_with_a_line_without_sense(tmp_path, capsys, words):
    """A line that cannot be; the last: a speed without a board."""
    (tmp_path / "net.py").write_text(NET)
    boards = 'boards = ["/dev/none"]' if words else "baud = 9600"
    (tmp_path / "s.toml").write_text(
        f'model = "net.py:make"\n[options]\nper_channel = [true, false]\n[data]\n{boards}\n'
        '[objectives]\nsram_bytes = "min"\n'
    )
    assert main(["sweep", str(tmp_path / "s.toml"), "--trust", *words]) == 2
    assert (words[0] if words else "--baud") in capsys.readouterr().err


@pytest.mark.firmware
@pytest.mark.slow  # several compiles and an image under QEMU
def test_a_sweep_under_qemu(tmp_path, capsys):
    from tests.firmware.whole import find_test_sources

    find_test_sources()
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef make(width):\n    torch.manual_seed(0)\n"
        "    return torch.nn.Linear(6, width).eval(), (torch.randn(1, 6),)\n"
    )
    (tmp_path / "s.toml").write_text(
        'model = "net.py:make"\n[parameters]\nwidth = [2, 400]\n[objectives]\nmeasured = "min"\n'
    )
    words = ["sweep", str(tmp_path / "s.toml"), "--trust", "--board", "qemu", "--jobs", "2", "--no-reports"]
    assert main([*words, "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    found = {t["point"]["parameters.width"]: t["figures"]["measured"] for t in trials}
    assert 0 < found[2] < found[400]
