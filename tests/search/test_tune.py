"""`openneutron tune`: the cheapest variant within the drop, or the best there is."""

import json
from pathlib import Path

import pytest

from openneutron.cli import main
from openneutron.commands.searching import tune

HARD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 50)

    def forward(self, x):
        return torch.relu(self.layer(x)) * 0.001 + 100.0  # int8 has nothing left of the small number

def net():
    torch.manual_seed(0)
    return Net(), torch.randn(1, 16), [torch.randn(1, 16) for _ in range(4)]
"""
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sweep" / "lopsided.py"


@pytest.mark.slow  # several variants are quantized and compiled
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


def test_where_nothing_reaches_the_drop_the_best_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "FREE", tune.FREE[:1])  # the rest takes long and helps no more
    monkeypatch.setattr(tune, "FLOAT_LAYERS", (1,))
    Path("hard.py").write_text(HARD)
    assert main(["tune", "hard.py:net", "--max-drop", "1", "--jobs", "1", "-o", "a.pte"]) == 1
    out = capsys.readouterr().out
    assert "calibration only" in out and "the worst layer in float" in out
    assert "nothing" in out and Path("a.pte").exists()


def test_bad_input(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", "cifarnet", "--max-drop", "-1"]) == 2
    assert "must not be negative" in capsys.readouterr().err
    assert main(["tune", "no_such_model", "--jobs", "1"]) == 2
    assert "no_such_model" in capsys.readouterr().err
    assert not Path("no_such_model.pte").exists()
