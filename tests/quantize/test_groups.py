"""Groups of operators that are not quantized in between: functions of one tensor, and wide values."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from openneutron import compile_model, quantize_model
from openneutron.fx import op_name

STATISTICS = {
    "var": lambda x, m: torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5),
    "std": lambda x, m: x.std(1, keepdim=True),
    "squares": lambda x, m: torch.sqrt(((x - m) ** 2).mean(1, keepdim=True) + 1e-5),
    "exp": lambda x, m: torch.exp(m),
    "norm": lambda x, m: x.norm(dim=1, keepdim=True),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_that_is_read_again_behind_a_layer(name):
    class RevIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            mean = x.mean(1, keepdim=True)
            spread = STATISTICS[name](x, mean)
            return self.layer((x - mean) / spread) * spread + mean

    inputs = (torch.randn(4, 16) + 1,)
    program = compile_model(RevIN().eval(), inputs, calibration=[inputs])
    assert program.rejected == () and len(program.partitions) == 1
    assert program.verification is not None and not program.verification.skipped


FUNCTIONS = {
    "GELU by erf": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "GELU by tanh": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3))),
    "Mish": lambda x: x * torch.tanh(F.softplus(x)),
    "Mish by log": lambda x: x * torch.tanh(torch.log1p(x.exp())),
    "SiLU by exp": lambda x: x / (1 + torch.exp(-x)),
    "hard-swish": lambda x: x * F.hardsigmoid(x),
    "hard-swish of Paddle": lambda x: x * torch.clip(x + 3, 0, 6) / 6 * 1.2 + 0.1,
    "ELU and a factor": lambda x: F.elu(x) * F.elu(-x),
    "SELU and a sum": lambda x: F.selu(x) + x,
    "CELU": lambda x: F.celu(x) * 0.5 + x,
    "snake": lambda x: x + torch.sin(x) ** 2,
    "a power of two": lambda x: torch.pow(2.0, -x.abs()) * x,
    "a threshold": lambda x: F.threshold(x, 0.1, 0.0) * x,
    "between": lambda x: ((x >= -1) & (x <= 1)).float() * x,
    "outside": lambda x: torch.where(~(x > 0) | (x > 1), x, 0.3 * x),
    "either": lambda x: torch.where((x > 0) ^ (x > 1), x, 0.3 * x),
}


class OfLayer(nn.Module):
    """A function of what a layer gives."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return self.function(2 * self.layer(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_one_tensor_is_rounded_once_however_it_is_spelled(name):
    module = OfLayer(FUNCTIONS[name]).eval()
    samples = [(2 * torch.randn(4, 8),) for _ in range(8)]
    quantized = quantize_model(module, samples, accuracy="fast")
    rounded = [n for n in quantized.graph.nodes if op_name(n).startswith("quantized_decomposed.quantize")]
    assert len(rounded) == 3  # the input, what the layer gives, and the function


@pytest.mark.parametrize("name", ["between", "GELU by erf"])
def test_such_a_function_is_one_table(name):
    inputs = (2 * torch.randn(4, 8),)
    program = compile_model(OfLayer(FUNCTIONS[name]).eval(), inputs, calibration=[inputs])
    assert program.rejected == () and program.summary()["kernels"].count("TABLE") == 1
    assert "ISLAND" not in program.summary()["kernels"]


@pytest.mark.parametrize("function", [F.silu, F.gelu, F.mish, F.hardswish, torch.sin, torch.erf, F.elu])
def test_a_function_of_a_wide_value_that_neither_rises_nor_falls_alone(function):
    class OfSquares(nn.Module):
        def forward(self, x, y):
            return function(x * x - y * y)

    inputs = torch.randn(2, 8), torch.randn(2, 8)
    program = compile_model(OfSquares(), inputs, calibration=[inputs])
    assert program.rejected == () and len(program.partitions) == 1
    assert program.verification is not None and not program.verification.skipped


def test_the_work_for_an_operator_does_not_grow_with_the_chain(monkeypatch):
    """Each end of a long chain of two tensors walked back through all of it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from openneutron import ops
    from openneutron.quantize.annotation import fused_groups

    def chain(length):
        def run(x, y):
            for i in range(length):
                y = torch.tanh(y * x + 0.1) if i % 2 else y - x
            return y

        tensors = torch.ones(1, 8), torch.ones(1, 8)
        return list(make_fx(run, tracing_mode="fake")(*tensors).graph.nodes)

    calls = 0
    operands = fused_groups._operands_of_function

    def counted(*given):
        nonlocal calls
        calls += 1
        return operands(*given)

    monkeypatch.setattr(fused_groups, "_operands_of_function", counted)
    work = []
    for length in (50, 200):
        calls = 0
        fused_groups.find_groups(chain(length), ops.find, lambda node: True, ())
        work.append(calls)
    assert 0 < work[1] < 6 * work[0]
