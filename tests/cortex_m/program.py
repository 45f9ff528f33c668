"""Calls of cortex_m operators as one program, and what the dialect's Python reference gives for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import executorch.backends.cortex_m.passes  # noqa: F401  registers the reference; its operators.py cannot come first
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

from openneutron.run.program import LoadedProgram, load_program


@dataclass(frozen=True)
class Call:
    """One call: an operator's name in the dialect and its arguments, of which tensors become inputs."""

    operator: str
    arguments: tuple[Any, ...]

    def __call__(self, arguments: Sequence[Any]) -> torch.Tensor:
        return getattr(torch.ops.cortex_m, self.operator).default(*arguments)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [a for a in self.arguments if isinstance(a, torch.Tensor)]


class _Calls(torch.nn.Module):
    def __init__(self, calls: Sequence[Call]):
        super().__init__()
        self.calls = calls

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(inputs)
        return tuple(
            call([next(rest) if isinstance(a, torch.Tensor) else a for a in call.arguments])
            for call in self.calls
        )


def compile_calls(calls: Sequence[Call]) -> bytes:
    """A program whose outputs are those of the calls, each on its own inputs."""
    exported = torch.export.export(_Calls(calls), inputs_of(calls), strict=False)
    edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
    return edge.to_executorch().buffer


def inputs_of(calls: Sequence[Call]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for call in calls for tensor in call.tensors)


def one_by_one(program: bytes) -> bytes:
    """The same program with a method call_0, call_1, ... for each operator it calls; all inputs to each."""
    file = deserialize_pte_binary(program)
    (plan,) = file.program.execution_plan
    (chain,) = plan.chains
    file.program.execution_plan = [
        replace(plan, name=f"call_{i}", chains=[replace(chain, instructions=[instruction])])
        for i, instruction in enumerate(chain.instructions)
    ]
    return bytes(serialize_pte_binary(file))


def run_calls(calls: Sequence[Call]) -> list[torch.Tensor]:
    """The calls' results in ExecuTorch's runtime."""
    return run_program(load_program(compile_calls(calls)), calls)


def run_program(program: LoadedProgram, calls: Sequence[Call]) -> list[torch.Tensor]:
    outputs = program.run(inputs_of(calls))
    return [torch.from_numpy(array) for array in outputs]


def chip(call: Call) -> torch.Tensor:
    """As ExecuTorch's kernels have it, which in these differ from the dialect's reference."""
    if call.operator == "quantize_per_tensor":
        return _quantize(*call.arguments)
    return _divide(*call.arguments) if call.operator == "quantized_div" else _average_pool(call)


def _quantize(
    x: torch.Tensor, scale: float, zero: int, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """The inverse of the scale in single precision."""
    steps = torch.round(x.float() * (torch.tensor(1.0) / torch.tensor(scale, dtype=torch.float32)))
    return torch.clamp(steps + zero, low, high).to(dtype)


def _divide(
    a: torch.Tensor, a_zero: int, b: torch.Tensor, b_zero: int, zero: int, scale: float
) -> torch.Tensor:
    """Halves away from zero."""
    left, right = (a.int() - a_zero).float(), (b.int() - b_zero).float()
    scaled = torch.where(right != 0, left / right, torch.zeros_like(left)) * scale
    whole = torch.where((scaled - scaled.trunc()).abs() == 0.5, scaled + 0.5 * scaled.sign(), scaled.round())
    info = torch.iinfo(a.dtype)
    return torch.clamp(whole + zero, info.min, info.max).to(a.dtype)


def _average_pool(call: Call) -> torch.Tensor:
    """The taps' sum over their number, halves away from zero."""
    x, kernel, stride, padding, ceil_mode = call.arguments[:5]
    nhwc = call.operator.endswith("_nhwc")
    image = (x.permute(0, 3, 1, 2) if nhwc else x).double()
    pool = torch.nn.functional.avg_pool2d
    # The sum of a window and how many taps it has: both are averages over all of its places.
    full = {"stride": stride, "padding": padding, "ceil_mode": ceil_mode, "divisor_override": 1}
    kernel = kernel if len(kernel) == 2 else kernel * 2
    sums, counts = pool(image, kernel, **full), pool(torch.ones_like(image), kernel, **full)
    quotient = torch.trunc((sums.abs() + torch.floor(counts / 2)) / counts) * sums.sign()
    result = quotient.to(torch.int8)
    return result.permute(0, 2, 3, 1) if nhwc else result


def reference(call: Call) -> torch.Tensor:
    """The result of the dialect's Python implementation."""
    return call(call.arguments)
