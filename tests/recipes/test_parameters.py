"""Quantize and dequantize steps of other tools on the CPU: whatever types their parameters have, they run."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed

from openneutron import compile_model

STEPS = torch.ops.quantized_decomposed


class Weights(torch.nn.Module):
    """A layer whose weights are int8 per channel, with activations in float."""

    def __init__(self, scale: torch.dtype, zero: torch.dtype):
        super().__init__()
        self.register_buffer("weight", torch.arange(-12, 12, dtype=torch.int8).reshape(6, 4))
        self.register_buffer("scale", torch.linspace(0.01, 0.02, 6, dtype=scale))
        self.register_buffer("zero", torch.arange(6).to(zero))

    def forward(self, x):
        arguments = self.scale, self.zero, 0, -128, 127, torch.int8
        return torch.nn.functional.linear(x, STEPS.dequantize_per_channel(self.weight, *arguments))


class Activations(torch.nn.Module):
    """Activations per channel."""

    def __init__(self, scale: torch.dtype, zero: torch.dtype):
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.01, 0.02, 4, dtype=scale))
        self.register_buffer("zero", torch.arange(4).to(zero))

    def forward(self, x):
        arguments = self.scale, self.zero, 1, -128, 127, torch.int8
        return STEPS.dequantize_per_channel(STEPS.quantize_per_channel(x, *arguments), *arguments)


class Tensors(torch.nn.Module):
    """Activations with one scale, which is a tensor."""

    def __init__(self, scale: torch.dtype, zero: torch.dtype):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.02, dtype=scale))
        self.register_buffer("zero", torch.tensor(3, dtype=zero))

    def forward(self, x):
        arguments = self.scale, self.zero, -128, 127, torch.int8
        return STEPS.dequantize_per_tensor.tensor(STEPS.quantize_per_tensor.tensor(x, *arguments), *arguments)


@pytest.mark.parametrize("model", [Weights, Activations, Tensors])
@pytest.mark.parametrize(
    ("scale", "zero"),
    [(torch.float32, torch.int32), (torch.float32, torch.int8), (torch.float64, torch.int64)],
)
def test_parameters_of_any_type_run_on_the_cpu(model, scale, zero):
    inputs = (torch.linspace(-1, 1, 8).reshape(2, 4),)
    program = compile_model(model(scale, zero).eval(), inputs)
    assert program.verification.worst is not None and program.verification.worst <= 1
    converts = any("_to_dim_order_copy" in r.op for r in program.rejected)
    assert converts == (zero != torch.int64)
