"""Training for the combined recipe, in one call and with a loop of one's own."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "qat_own_loop.py"


@pytest.mark.slow  # a network is trained
def test_own_training_loop(tmp_path, capsys, monkeypatch):
    """The example: digits, a batch norm after a convolution without a bias, an operator on the CPU."""
    output = tmp_path / "digits.pte"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--epochs", "4", "-o", str(output)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    found = re.search(r"calibrated ([\d.]+)  trained ([\d.]+)", capsys.readouterr().out)
    assert found and output.exists()
    calibrated, trained = map(float, found.groups())
    assert calibrated > 0.85 and trained >= calibrated
