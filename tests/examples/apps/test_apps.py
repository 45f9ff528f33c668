"""Every example in its short form, on the emulated chip too where the tools are; and their pages."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace

import pytest
from PIL import Image

from examples.apps.__main__ import main, names
from examples.apps.frame import APPS, PICTURES, ROOT, missing, on_chip, read_figures
from examples.apps.pages import GALLERY, anchor, overview, table, title_of
from openneutron.diagnostics import fail
from tests.firmware.whole import find_test_sources


@pytest.mark.slow  # a network is trained, compiled and run under QEMU
@pytest.mark.firmware
@pytest.mark.parametrize("name", names())
def test_an_example_runs(name, tmp_path, capfd):
    if reason := missing(importlib.import_module(f"examples.apps.{name}.app").NEEDS):
        pytest.skip(reason)
    if (APPS / name / "app.c").exists():
        find_test_sources()
    assert main([name, "--short", "-o", str(tmp_path)]) == 0
    said = capfd.readouterr().out
    assert re.search(rf"^{name}: [\d.]+ minutes$", said, re.M) and "ms (estimated)" in said
    assert "not run under QEMU" not in said
    assert Image.open(tmp_path / name / f"{name}.png").width > 300


def test_packages_that_are_not_there_are_named(capsys, monkeypatch):
    app = importlib.import_module("examples.apps.anomaly.app")
    monkeypatch.setattr(app, "NEEDS", ("no_such_package",))
    assert main(["anomaly", "--short"]) == 1
    assert "no_such_package: pip install 'openneutron[apps]'" in capsys.readouterr().err


def test_an_example_goes_on_where_the_chip_cannot_be_emulated(tmp_path, capsys, monkeypatch):
    program = SimpleNamespace(target="imxrt700")
    monkeypatch.setattr("openneutron.firmware.whole.read_several", lambda paths, named: program)
    monkeypatch.setattr("openneutron.firmware.check.check_whole", lambda *_: fail("ON707", "", "no sources"))
    assert on_chip({"one": b""}, [], {}, tmp_path) is None
    assert "not run under QEMU: ON707" in capsys.readouterr().out


def test_an_unknown_example_is_said(capsys):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "there is no nothing; there are anomaly" in capsys.readouterr().err


@pytest.mark.parametrize("name", [n for n in names() if (APPS / n / "figures.json").exists()])
def test_the_pages_show_the_figures_that_were_kept(name):
    figures = table(read_figures(APPS / name / "figures.json"))
    assert figures in (APPS / name / "README.md").read_text() and figures in GALLERY.read_text()
    picture = PICTURES / f"{name}.png"
    assert picture.stat().st_size <= 150 * 1024
    assert str(picture.relative_to(ROOT)) in (APPS / name / "README.md").read_text()


def test_one_table_has_all_that_were_kept():
    kept = {
        n: read_figures(APPS / n / "figures.json") for n in names() if (APPS / n / "figures.json").exists()
    }
    page, rows = GALLERY.read_text(), overview(kept).splitlines()
    assert overview(kept) in page and len(rows) > len(kept)
    for name in kept:
        (row,) = [line for line in rows if line.startswith(f"| [{name}]")]
        assert f"## {title_of(name)[0]}" in page and f"(#{anchor(title_of(name)[0])})" in row
