"""What is said before a model is quantized."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from openneutron import CompileOptions, OpenNeutronError, compile_model
from openneutron.cli import main

SMALL = CompileOptions(sram_bytes=65536)
OWN = """
import torch
def net():
    return torch.nn.Sequential(torch.nn.Linear(64, 640), torch.nn.Linear(640, 64)), torch.randn(1, 64)
"""


class Net(nn.Module):
    """Two layers of 40 KiB, with a function between them that the NPU does not have, or without."""

    def __init__(self, apart: bool):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.apart = nn.Linear(64, 640), nn.Linear(640, 64), apart

    def forward(self, x):
        x = self.first(x)
        return self.second(torch.special.erfinv(torch.tanh(x) * 0.5) if self.apart else x)


class Touched(Exception):
    """Somebody has asked for a calibration sample."""


def samples() -> Iterator[tuple[torch.Tensor]]:
    """Fails when the first is asked for."""
    raise Touched
    yield


def compiled(apart=False, **given):
    """Compile up to where calibration begins."""
    compile_model(Net(apart).eval(), (torch.randn(1, 64),), calibration=samples(), **given)


def test_weights_beyond_the_sram_are_refused_before_calibration():
    for recipe in ("neutron", "imxrt700"):
        with pytest.raises(OpenNeutronError) as caught:
            compiled(options=SMALL, recipe=recipe)
        found = caught.value.diagnostic
        assert found.code == "ON403" and "81,920 bytes" in found.problem and "65,536" in found.problem
        assert "fetch_constants_to_sram" in (found.hint or "")


@pytest.mark.parametrize(
    "given",
    [
        {},  # the target's own SRAM
        {"options": CompileOptions(sram_bytes=65536, fetch_constants_to_sram=True)},
        {"options": SMALL, "delegate": False},
        {"options": SMALL, "recipe": "cortex-m"},
        {"options": SMALL, "keep_float": ["linear"]},
        {"options": SMALL, "apart": True},  # two partitions: each of them fits
    ],
)
def test_what_may_fit_goes_on_to_calibration(given):
    with pytest.raises(Touched):
        compiled(**given)


def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    assert main(["compile", "own.py:net", "--sram", "64K"]) == 1
    err = capsys.readouterr().err
    assert "ON403" in err and "Quantizing" not in err
