"""Each step that writes fails once: opening to write, writing, making a folder, renaming.

Whatever fails, a command ends with a diagnostic or, where the file is a cache, as if there were none; a file
that was there is the old one or the new one, whole.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from openneutron.cli import main
from openneutron.pipeline import compile_model
from tests.hostile.test_interrupted import MODEL

OLD = b"yesterday's"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.mkdir", "os.truncate", "os.link", "os.symlink", "os.chmod")


class Faults:
    """Lets the nth step that writes fail, as a full disk or a lost device does."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.write = os.write
        sys.addaudithook(self.hook)  # for the life of the process; it does nothing while `left` is None

    def step(self) -> None:
        assert self.left is not None
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def hook(self, event: str, arguments: tuple) -> None:
        if self.left is None or not arguments or arguments[0] == os.devnull:
            return
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if opens or event in CHANGES:
            self.step()

    def fault(self, handle: int, data: bytes) -> int:
        if self.left is not None and handle > 2:
            self.step()
        return self.write(handle, data)


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 1, 6, 6),)
    made = compile_model(torch.nn.Conv2d(1, 2, 3).eval(), inputs, calibration=[inputs])
    folder = tmp_path_factory.mktemp("program")
    (folder / "net.pte").write_bytes(made.pte)
    (folder / "net.tflite").write_bytes(made.partitions[0].litert)
    (folder / "model.py").write_text(MODEL)
    return folder


COMMANDS = {
    "run": (["run", "net.pte", "--output-dir", "out"], ["output_0.npy"]),
    "report": (["report", "net.pte", "-o", "out/report.html"], ["report.html"]),
    "convert": (["convert", "model.py:net", "-o", "out/net.tflite"], ["net.tflite"]),
    "compile": (["compile", "net.tflite", "-o", "out/net.pte"], ["net.pte", "net.report.json"]),
}


@pytest.mark.parametrize(
    # Slow: a compile for each write.
    "name",
    ["run", "report", "convert", pytest.param("compile", marks=pytest.mark.slow)],
)
def test_each_write_fails_once(tmp_path, monkeypatch, capsys, faults, program, name):
    command, results = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "write", faults.fault)
    for file in program.iterdir():
        shutil.copy(file, ".")
    for n in range(200):
        shutil.rmtree("cache", ignore_errors=True)
        Path("out").mkdir(exist_ok=True)
        for file in results:
            Path("out", file).write_bytes(OLD)
        faults.left = n
        try:
            code = main(command)
            failed = faults.left < 0
        finally:
            faults.left = None
        said = "".join(capsys.readouterr())
        assert code in (0, 1), (n, said)
        assert "Traceback" not in said and "ON699" not in said, (n, said)
        assert sorted(os.listdir("out")) == results, (n, said)
        whole = [Path("out", file).read_bytes() != OLD for file in results]
        assert code == 1 or all(whole), (n, said)
        if not failed:
            break
    assert code == 0 and n > 2
