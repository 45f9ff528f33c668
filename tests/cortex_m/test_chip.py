"""The host's cortex_m kernels against ExecuTorch's own on CMSIS-NN: a host run predicts the chip."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import torch

from openneutron.firmware.sources import CMSIS_NN, EXECUTORCH, find_sources
from openneutron.run.program import load_program
from tests.cortex_m.cases import CASES
from tests.cortex_m.chip import ChipMaker, build_chip, run_chip
from tests.cortex_m.program import Call, compile_calls, inputs_of, one_by_one

pytestmark = pytest.mark.slow
ROUNDS = 12
# Those whose generated arguments CMSIS-NN is defined for; the others are compared in whole programs on the
# emulated core, with the arguments that ExecuTorch's passes make (tests/firmware).
OPERATORS = (
    "transpose",
    "quantized_depthwise_conv2d_nhwc",
    "quantized_avg_pool2d",
    "quantized_avg_pool2d_nhwc",
    "quantized_max_pool2d",
    "quantized_max_pool2d_nhwc",
    "quantized_batch_matmul",
)


@pytest.fixture(scope="module")
def image():
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    if not (os.environ.get(EXECUTORCH) and os.environ.get(CMSIS_NN)):
        pytest.skip(f"{EXECUTORCH} and {CMSIS_NN} not set, and no ../shared/sources beside the checkout")
    return build_chip(find_sources())


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_host_does_what_the_chip_does(image, operator, tmp_path):
    maker = ChipMaker(7)
    maker.nhwc = operator.endswith("_nhwc")
    calls = [Call(operator, arguments) for arguments in CASES[operator](maker)]
    data = one_by_one(compile_calls(calls))
    generator = torch.Generator().manual_seed(1)
    rounds = [[_fresh(t, r, generator) for t in inputs_of(calls)] for r in range(ROUNDS)]
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


def _fresh(tensor: torch.Tensor, round: int, generator: torch.Generator) -> np.ndarray:
    """Other values for activations; multipliers, shifts, tables and scratch stay as they are."""
    if round == 0 or tensor.dtype not in (torch.int8, torch.float32) or tensor.dim() < 2:
        return tensor.numpy()
    if tensor.dtype == torch.float32:
        return (torch.randn(tensor.shape, generator=generator) * 3).numpy()
    return torch.randint(-128, 128, tensor.shape, generator=generator).to(torch.int8).numpy()
