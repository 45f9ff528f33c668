"""`--recipe` on the command line."""

from __future__ import annotations

import json

import pytest

from openneutron.cli import main

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(144, 5)

    def forward(self, x):
        return self.head(torch.log1p(torch.relu(self.first(x))).flatten(1))

def net():
    torch.manual_seed(0)
    return Net(), torch.randn(1, 3, 8, 8), [torch.randn(1, 3, 8, 8) for _ in range(4)]
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:net"


@pytest.mark.parametrize(("recipe", "kernel"), [("npu+cpu", "cortex_m.quantized_activation.default"),
                                                  ("imxrt700", "cortex_m.quantized_activation.default"),
                                                ("neutron", "aten.log1p.default")])  # fmt: skip
def test_recipe(model, tmp_path, capsys, recipe, kernel):
    kept = ["--operators_not_to_delegate", "aten::log1p"]
    assert main(["compile", model, "--recipe", recipe, *kept, "-o", str(tmp_path / "m.pte"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["partitions"] == 2 and data["cpu_kernels"] == [kernel]
    assert data["verified"].startswith("passed")
    assert [node["int8"] for node in data["cpu_nodes"]] == [recipe != "neutron"]


def test_no_verify(model, tmp_path, capsys):
    assert main(["compile", model, "--no-verify", "-o", str(tmp_path / "m.pte"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is None


@pytest.mark.parametrize("options", [["--core", "cortex-m55"], ["--recipe", "cortex-m", "--no-delegate"],
                                     ["--recipe", "cortex-m", "--per-channel"],
                                     ["--recipe", "imxrt700", "--core", "cortex-x1"]])  # fmt: skip
def test_what_has_no_effect_or_no_meaning_is_refused(model, tmp_path, capsys, options):
    assert main(["compile", model, *options, "-o", str(tmp_path / "m.pte")]) == 2
    assert capsys.readouterr().err.count("error: ON1") == 1
    assert not (tmp_path / "m.pte").exists()
