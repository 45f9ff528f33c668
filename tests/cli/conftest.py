"""The command line, called in this process: torch is imported once for all tests."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass

import pytest

from openneutron.cli import main

OWN = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 4)
    return nn.Sequential(*layers), (torch.randn(1, 1, 16, 16),), [torch.randn(1, 1, 16, 16) for _ in range(4)]

def pooled():
    layers = nn.MaxPool2d(2), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
    return nn.Sequential(*layers), (torch.randn(1, 3, 16, 16),), [torch.randn(1, 3, 16, 16) for _ in range(4)]

def without_calibration():
    return net()[:2]

class Cumsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x):
        return self.second(torch.atan(self.first(x)))

def split():
    return Cumsum(), torch.randn(1, 1, 12, 12)

def raises():
    raise ValueError("the data are missing")

def returns_a_number():
    return 5

number = 5
"""


@dataclass
class Done:
    """What a command left: exit code and texts."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """Its standard output, which must be one JSON object."""
        return json.loads(self.out)


@pytest.fixture
def cli(capfd, tmp_path, monkeypatch):
    """Run a command in an empty folder with the file own.py in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)

    def run(*argv: object) -> Done:
        capfd.readouterr()
        with warnings.catch_warnings():
            try:
                code = main([str(a) for a in argv])
            finally:
                logging.disable(logging.NOTSET)
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run
