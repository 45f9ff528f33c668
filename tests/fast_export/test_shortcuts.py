"""Shortcuts change how long a compile takes and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from openneutron import OpenNeutronError, compile_model, quantize_model
from openneutron.fast_export.shortcuts import ALL, SHORTCUTS, VARIABLE, Replaced, is_taken

SOURCE = Path(__file__).parents[2] / "src" / "openneutron"


class Last(nn.Module):
    """A recurrent layer, and a linear one on its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


def compiled(model: nn.Module, shape: tuple[int, ...]) -> bytes:
    samples = [(torch.randn(shape, generator=torch.Generator().manual_seed(i)),) for i in range(2)]
    return compile_model(model.eval(), samples[0], calibration=samples, accuracy="fast", verify=False).pte


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)), (1, 2, 4, 4)),
        # ExecuTorch's own way through the unrolled steps takes many seconds.
        pytest.param(Last, (1, 3, 4), marks=pytest.mark.slow),  # an LSTM without the shortcuts
    ],
)
def test_both_ways_give_the_same_program(make, shape, monkeypatch):
    torch.manual_seed(0)
    model = make()
    monkeypatch.delenv(VARIABLE, raising=False)
    quick = compiled(model, shape)
    monkeypatch.setenv(VARIABLE, ALL)
    assert not any(map(is_taken, SHORTCUTS))
    assert compiled(model, shape) == quick


@pytest.mark.slow  # torchao exports all its patterns
def test_a_trained_model_is_the_same_both_ways(monkeypatch):
    """One norm behind a convolution, and one behind a layer of which torchao has no pattern."""
    x = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(0))

    def trained() -> tuple[str, dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        layers = (nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        model = nn.Sequential(*layers, nn.BatchNorm1d(3))
        quantized = quantize_model(model, [(x,)], qat=True, train_fn=lambda m: m(x))
        return str(quantized.graph), quantized.state_dict()

    monkeypatch.delenv(VARIABLE, raising=False)
    found = [trained(), trained()]
    monkeypatch.setenv(VARIABLE, "norm_patterns")
    graph, values = trained()
    for other, tensors in found:
        assert other == graph and tensors.keys() == values.keys()
        assert all(torch.equal(tensors[name], value) for name, value in values.items())


def test_a_shortcut_is_left_out_by_its_name(monkeypatch):
    for each in SHORTCUTS:
        monkeypatch.setenv(VARIABLE, each.name)
        assert [other for other in SHORTCUTS if not is_taken(other)] == [each]


def test_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "lft")
    with pytest.raises(OpenNeutronError, match="lift"):
        compile_model(nn.ReLU(), (torch.zeros(1, 3),), verify=False)


def test_the_list_names_every_file_of_the_room():
    room = {f"fast_export/{f.name}" for f in (SOURCE / "fast_export").glob("*.py")}
    named = {each.file for each in SHORTCUTS}
    assert room - named == {"fast_export/__init__.py", "fast_export/shortcuts.py"}
    assert all(re.search(r"is_taken\(|Replaced\(", (SOURCE / name).read_text()) for name in named)


def test_functions_are_replaced_until_the_last_thread_has_left(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    module = SimpleNamespace(f="own", g="own")
    replaced = Replaced(SHORTCUTS[0], (module, {"f": "other"}))
    first, second = replaced(), replaced()
    with first:
        second.__enter__()
        assert (module.f, module.g) == ("other", "own")
    assert module.f == "other"
    second.__exit__(None, None, None)
    assert module.f == "own"
    monkeypatch.setenv(VARIABLE, SHORTCUTS[0].name)
    with replaced():
        assert module.f == "own"


class _OnTheCpu(nn.Module):
    """What is composite stays on the CPU beside a delegate: the decomposition takes it apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.diff(torch.relu(x), n=2).trace() + torch.ops.openneutron_tests.doubled(x).sum()


def test_operators_that_torch_computes_by_others_are_decomposed_the_same(monkeypatch):
    """One of them is registered here, after programs have been decomposed."""
    monkeypatch.delenv(VARIABLE, raising=False)
    sample = (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),)
    compile_model(nn.ReLU().eval(), sample, verify=False)
    library = torch.library.Library("openneutron_tests", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x + x, "CompositeImplicitAutograd")

    def program() -> bytes:
        return compile_model(_OnTheCpu().eval(), sample, calibration=[sample], verify=False).pte

    quick = program()
    monkeypatch.setenv(VARIABLE, "composite_operators")
    assert program() == quick
