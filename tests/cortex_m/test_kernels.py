"""Every cortex_m operator gives on the host, bit for bit, what the dialect's Python reference gives.

But for those that ExecuTorch's own kernels, so the chip, compute differently: the host follows the chip. Of
softmax CMSIS-NN itself is the definition (test_chip.py).
"""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from openneutron.run.delegate import cortex_m_operators, load_runtime
from tests.cortex_m.cases import CASES, Maker
from tests.cortex_m.program import Call, chip, reference, run_calls


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def test_every_operator_of_the_dialect_is_registered() -> None:
    """A wheel with a new operator fails here."""
    names = load_runtime().operator_registry.operator_names
    assert {name for name in names if name.startswith("cortex_m::")} == cortex_m_operators()


def test_every_operator_of_the_dialect_has_cases() -> None:
    assert {f"cortex_m::{operator}.out" for operator in CASES} == cortex_m_operators()
    assert len(CASES) == 23


AS_THE_CHIP = ("quantize_per_tensor", "quantized_div", "quantized_avg_pool2d", "quantized_avg_pool2d_nhwc")


@pytest.mark.parametrize("operator", [name for name in CASES if name != "softmax"])
def test_equals_the_reference(operator: str) -> None:
    calls = [Call(operator, arguments) for arguments in CASES[operator](Maker(0))]
    results = run_calls(calls)
    assert len(results) == len(calls)
    expected = chip if operator in AS_THE_CHIP else reference
    different = [i for i, call in enumerate(calls) if not _same_bits(results[i], expected(call))]
    assert not different, f"calls {different} of {len(calls)}"


@pytest.mark.parametrize("operator", [*AS_THE_CHIP, "softmax"])
def test_what_follows_the_chip_is_within_a_step_of_the_reference(operator: str) -> None:
    calls = [Call(operator, arguments) for arguments in CASES[operator](Maker(3))]
    off = [(r.int() - reference(c).int()).abs() for r, c in zip(run_calls(calls), calls, strict=True)]
    assert max(int(o.max()) for o in off if o.numel()) <= 1


@pytest.mark.parametrize("operator", ["quantized_conv2d", "quantized_depthwise_conv2d_nhwc"])
def test_dilation_equals_weights_with_gaps(operator: str) -> None:
    """torch has no dilated convolution of int32, so the reference is one with zeros between the taps."""
    dilated, spread = [], []
    for arguments in islice(CASES[operator](Maker(1)), 12):
        x, weight, bias, stride, padding, _, *rest = arguments
        gaps = torch.zeros(*weight.shape[:1], *(2 * s - 1 for s in weight.shape[1:3]), weight.shape[3])
        gaps = gaps.to(torch.int8)
        gaps[:, ::2, ::2] = weight
        padding = [
            p + k for p, k in zip(padding, weight.shape[1:3], strict=True)
        ]  # room for the wider window
        dilated.append(Call(operator, (x, weight, bias, stride, padding, [2, 2], *rest)))
        spread.append(Call(operator, (x, gaps, bias, stride, padding, [1, 1], *rest)))
    results = run_calls(dilated)
    assert all(_same_bits(result, reference(call)) for result, call in zip(results, spread, strict=True))
