"""`openneutron tune`: the cheapest variant within the drop, or the best there is."""

import json
from pathlib import Path

import pytest

from openneutron.cli import main

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sweep" / "lopsided.py"


@pytest.mark.slow
def test_a_network_that_int8_alone_ruins_is_mended(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["tune", f"{EXAMPLE}:net", "--data", "digits", "--samples", "60", "--jobs", "1", "--json"]
    assert main([*words, "--max-drop", "2", "-o", "a.pte"]) == 0
    data = json.loads(capsys.readouterr().out)
    drops = {row["variant"]: row["drop"] for row in data["tried"]}
    assert drops["calibration only"] > 2 >= drops[data["winner"]], "worse by default, mended by the winner"
    assert data["reached"] and Path("a.pte").exists() and "--accuracy" in data["command"]
    cheapest = min(r["figures"]["cycles"] for r in data["tried"] if r["drop"] is not None and r["drop"] <= 2)
    assert data["figures"]["cycles"] == cheapest


def test_bad_input(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "cifarnet", "--max-drop", "-1"]) == 2
    assert "must not be negative" in capsys.readouterr().err
    assert main(["tune", "no_such_model", "--jobs", "1"]) == 2
    assert "no_such_model" in capsys.readouterr().err
    assert not Path("no_such_model.pte").exists()
