"""The host's cortex_m kernels against ExecuTorch's own on CMSIS-NN: a host run predicts the chip."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from openneutron.run.program import load_program
from tests.cortex_m.cases import CASES
from tests.cortex_m.chip import ChipMaker, build_chip, chip_arguments, run_chip
from tests.cortex_m.program import Call, compile_calls, one_by_one
from tests.firmware.whole import find_test_sources

pytestmark = pytest.mark.slow  # images with ExecuTorch's kernels are built
ROUNDS = 12
CONTIGUOUS = ("minimum", "maximum", "transpose", "pad", "quantized_linear")  # besides those that say so


@pytest.fixture(scope="module")
def image():
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return build_chip(find_test_sources())


@pytest.mark.parametrize("operator", CASES)
def test_the_host_does_what_the_chip_does(image, operator, tmp_path):
    calls = chip_calls(operator)
    data = one_by_one(compile_calls(calls))
    generator = torch.Generator().manual_seed(1)
    rounds = [[a for c in calls for a in _fresh(c, r, generator)] for r in range(ROUNDS)]
    program = load_program(data)
    chip = run_chip(image, data, rounds, tmp_path)
    compared = 0
    for inputs, results in zip(rounds, chip, strict=True):
        for i, theirs in enumerate(results):
            if theirs is None:
                continue  # ExecuTorch's kernel takes fewer arguments than ours
            ours = program.run(inputs, f"call_{i}")[i]
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), (
                f"call {i}: {calls[i].arguments}"
            )
            compared += 1
    assert compared >= ROUNDS * 2, f"only {compared} of {ROUNDS * len(calls)} calls ran on both"


def chip_calls(operator: str) -> list[Call]:
    """Calls that the chip's kernel is defined for."""
    maker = ChipMaker(7)
    maker.nhwc = operator.endswith("_nhwc") or operator in CONTIGUOUS
    found = [chip_arguments(operator, arguments) for arguments in CASES[operator](maker)]
    return [Call(operator, arguments) for arguments in found if arguments is not None]


def _fresh(call: Call, round: int, generator: torch.Generator) -> list[np.ndarray]:
    """Other values for activations; weights and what belongs to them stay as they are."""
    tensors = call.tensors
    weights = 1 if len(tensors) > 2 and call.operator != "quantized_batch_matmul" else 2
    return [
        t.numpy() if round == 0 or i >= weights or t.dim() < 2 else _random(t, generator)
        for i, t in enumerate(tensors)
    ]


def _random(tensor: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    if tensor.dtype == torch.float32:
        spread = tensor.abs().max().item()
        return (torch.rand(tensor.shape, generator=generator) * 2 * spread - spread).numpy()
    info = torch.iinfo(tensor.dtype)
    return torch.randint(info.min, info.max + 1, tensor.shape, generator=generator).to(tensor.dtype).numpy()
