"""The check after compiling: it finds real errors and never cries wolf."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from openneutron import OpenNeutronError, compile_model, quantize_model
from openneutron.accuracy.verify import verify_program
from openneutron.quantize.export import export_model
from openneutron.run.program import LoadedProgram


class Picture(nn.Module):
    """Gives a tensor in which every axis matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


@cache
def made():
    samples = [(torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(s)),) for s in range(4)]
    quantized = quantize_model(Picture().eval(), samples)
    return compile_model(quantized, samples[0], verify=False), export_model(quantized, samples[0]), samples


def check(sample=None):
    program, model, samples = made()
    given = samples[1] if sample is None else sample
    return verify_program(program.pte, program, {"forward": model}, {"forward": [[given]]})


ERRORS = {
    "rows and columns exchanged": lambda y: y.transpose(0, 1, 3, 2),
    "channels in another order": lambda y: y[:, ::-1],
    "the wrong layout": lambda y: np.ascontiguousarray(y.transpose(0, 2, 3, 1)).reshape(y.shape),
    "the wrong scale": lambda y: y * np.float32(1.5),
    "an offset": lambda y: y + y.std(),
    "a row lost": lambda y: np.concatenate([y[:, :, 1:], np.zeros_like(y[:, :, :1])], 2),
    "nothing": lambda y: y * 0,
    "not a number": lambda y: np.where(y == y.max(), np.nan, y),
}


@pytest.mark.parametrize("damage", ERRORS.values(), ids=ERRORS)
def test_finds(damage, monkeypatch):
    run = LoadedProgram.run
    monkeypatch.setattr(
        LoadedProgram,
        "run",
        lambda self, inputs, method="forward": [damage(y) for y in run(self, inputs, method)],
    )
    with pytest.raises(OpenNeutronError, match="ON517"):
        check()


def test_passes_a_program_that_is_right():
    assert check().worst < 0.5  # far from the bound
    constant = (torch.ones(1, 3, 8, 8),)  # would hide a wrong layout: another sample is taken
    assert check(constant).worst <= 1


def test_rounding_is_no_error(monkeypatch):
    """Every result one step off, at random, is what the bound allows for."""
    run = LoadedProgram.run
    step = float(made()[1].graph.output_node().args[0][0].args[1])
    noise = np.random.default_rng(0).integers(-1, 2, (1, 8, 8, 8)) * np.float32(step)
    monkeypatch.setattr(
        LoadedProgram,
        "run",
        lambda self, inputs, method="forward": [y + noise for y in run(self, inputs, method)],
    )
    assert check().worst <= 1


def test_int8_programs_are_checked_too():
    _, model, samples = made()
    program = compile_model(model, samples[0], int8_io=True)
    assert program.info.methods["forward"].inputs[0].dtype.lower() in ("char", "int8")
    assert program.verification is not None and program.verification.worst is not None


def test_can_be_switched_off():
    assert made()[0].verification is None


@pytest.mark.parametrize("name", ["lgamma", "_fft_c2c", "adaptive_max_pool3d", "linalg_inv_ex"])
def test_an_operator_without_a_kernel_anywhere_is_refused_by_name(name):
    functions = {
        "lgamma": torch.lgamma,
        "_fft_c2c": lambda x: torch.fft.fft(x.to(torch.complex64)).abs(),
        "adaptive_max_pool3d": lambda x: torch.nn.functional.adaptive_max_pool3d(
            x, (2, 2, 2), return_indices=True
        ),
        "linalg_inv_ex": lambda x: torch.linalg.inv(x + 4 * torch.eye(4)),
    }

    class Net(torch.nn.Module):
        def forward(self, x):
            return functions[name](torch.relu(x))

    inputs = (torch.rand(1, 2, 4, 4, 4) + 1,)
    with pytest.raises(OpenNeutronError, match=f"no kernel for aten::{name}") as error:
        compile_model(Net().eval(), inputs, calibration=[inputs])
    assert error.value.diagnostic.code == "ON513"
    kept = compile_model(Net().eval(), inputs, calibration=[inputs], verify=False)
    assert any("no kernel" in r.reject.hint for r in kept.rejected)


def test_a_kernel_that_is_there_is_not_said_to_be_missing():
    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.stft(torch.relu(x), 16, 8, center=False, return_complex=True).abs()

    inputs = (torch.rand(1, 64),)
    program = compile_model(Net().eval(), inputs, calibration=[inputs])
    assert program.rejected and not any("no kernel" in r.reject.hint for r in program.rejected)


def test_inputs_in_containers_are_verified():
    class Put(torch.nn.Module):
        def forward(self, x, places, values):
            return torch.relu(x).index_put(places, values)

    inputs = (torch.randn(3, 4), (torch.tensor([0, 1]), torch.tensor([1, 2])), torch.tensor([10.0, 20.0]))
    program = compile_model(Put(), inputs, calibration=[inputs])
    assert program.verification.worst is not None and not program.verification.skipped
