"""Instructions of CPU kernels on an emulated Cortex-M33, and the cost model's parameters fitted to them.

Two programs with a method for each operator and size, one of float operators on ExecuTorch's portable
kernels, one of int8 operators on its Cortex-M kernels (CMSIS-NN), run as firmware under QEMU, which counts.
The model is that of `openneutron.estimate.cpu_cost`: an operator takes a fixed amount and one that grows with
its work. Cycles are instructions times one stated factor.

Needs the cross tools, EXECUTORCH_SOURCE and CMSIS_NN_SOURCE (docs/firmware.md).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from openneutron.diagnostics import OpenNeutronError
from openneutron.estimate.cpu_cost import Operator, cpu_work
from openneutron.firmware.cores import DEFAULT
from openneutron.firmware.sources import find_sources
from openneutron.firmware.whole import build_whole, read_whole_program
from openneutron.firmware.whole_run import random_runs, run_whole
from openneutron.pipeline import compile_model
from openneutron.run.program_steps import program_steps
from openneutron.target import DEFAULT_TARGET, find_target

CYCLES_PER_INSTRUCTION = 1.2  # assumed, for a Cortex-M33 that runs from memory without wait states
DISPATCH = "cpu_dispatch_cycles"
SIZES = (64, 512, 4096)


@dataclass(frozen=True)
class Count:
    """One operator of one size: what the model counts its work by, and what it took."""

    operator: str
    parameter: str
    amount: float
    instructions: int


class Function(nn.Module):
    """A function of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def float_cases() -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """The commonest portable kernels."""
    functions = {
        "add": lambda x: x + x,
        "mul": lambda x: x * x,
        "div": lambda x: x / 3.0,
        "log1p": lambda x: torch.log1p(x.abs()),
        "erf": torch.erf,
        "permute": lambda x: x.reshape(8, -1).t() + 0,
        "softmax": lambda x: torch.softmax(x, -1),
        "mean": lambda x: x.reshape(8, -1).mean(1),
        "flip": lambda x: torch.flip(x, [1]),
    }
    for name, function in functions.items():
        for size in SIZES:
            yield f"{name}_{size}", Function(function), (torch.randn(1, size),)
    for size in (8, 24, 64):
        yield f"linear_{size}", nn.Linear(size, size), (torch.randn(4, size),)


def int8_cases() -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """Every kind of Cortex-M kernel."""
    for channels, side in ((4, 8), (8, 12), (16, 16)):
        image = (torch.randn(1, channels, side, side),)
        layers = {
            "conv": nn.Conv2d(channels, channels, 3),
            "pointwise": nn.Conv2d(channels, channels, 1),
            "depthwise": nn.Conv2d(channels, channels, 3, groups=channels),
            "transposed": nn.ConvTranspose2d(channels, channels, 2, stride=2),
            "max_pool": nn.MaxPool2d(2),
            "avg_pool": nn.AvgPool2d(2),
            "add": Function(lambda x: x + x),
            "mul": Function(lambda x: x * x),
            "minimum": Function(lambda x: torch.minimum(x, -x)),
            "sigmoid": nn.Sigmoid(),
            "softmax": Function(lambda x: torch.softmax(x.flatten(1), -1)),
            "linear": nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 16)),
            "matmul": Function(lambda x: torch.bmm(x[0], x[0])),
        }
        for name, layer in layers.items():
            yield f"{name}_{channels}", layer, image


def count(recipe: str) -> list[Count]:
    """Count the operators of a recipe's cases."""
    cases = list(float_cases() if recipe == "neutron" else int8_cases())
    modules = {name: module.eval() for name, module, _ in cases}
    inputs = {name: values for name, _, values in cases}
    calibration = None if recipe == "neutron" else {name: [values] for name, values in inputs.items()}
    more = {"delegate": False} if recipe == "neutron" else {"recipe": recipe}
    made = compile_model(modules, inputs, calibration=calibration, verify=False, **more)
    program = read_whole_program(made.pte)
    with tempfile.TemporaryDirectory() as folder:
        firmware = build_whole(program, Path(folder), find_sources())
        run = run_whole(firmware, random_runs(program, 1))
    steps = program_steps(program.data, {name: [] for name in program.info.methods}, "program")
    found = []
    for step in run.steps:
        call = steps[step.method].steps[step.number]
        shapes = tuple(t.spec.shape for t in call.inputs)
        op = Operator(step.operator, shapes, call.outputs[0].spec.shape if call.outputs else ())
        if not op.is_view:
            found.append(Count(step.operator, *cpu_work(op), step.instructions))
    return found


def fit(counts: list[Count]) -> dict[str, float]:
    """Instructions per call and per unit of work, by the least squares of the logarithms of the errors."""
    groups = {
        name: [c for c in counts if c.parameter == name] for name in sorted({c.parameter for c in counts})
    }

    def given(dispatch: float) -> tuple[float, dict[str, float]]:
        found, error = {DISPATCH: dispatch}, 0.0
        for name, mine in groups.items():
            each = [np.log(max(c.instructions - dispatch, 1.0) / c.amount) for c in mine]
            found[name] = float(np.exp(np.median(each)))
            error += sum(np.log((dispatch + found[name] * c.amount) / c.instructions) ** 2 for c in mine)
        return error, found

    return min((given(float(d)) for d in range(100, 2000, 50)), key=lambda pair: pair[0])[1]


def main() -> int:
    """Print counts, the fit and its errors."""
    try:
        counts = count("cortex-m") + count("neutron")
    except OpenNeutronError as error:
        print(f"skipped: {error}")
        return 0
    fitted = fit(counts)
    cost = find_target(DEFAULT_TARGET).cost
    print(f"On QEMU's {DEFAULT.name}; {CYCLES_PER_INSTRUCTION} cycles per instruction are assumed.\n")
    print(f"{'parameter':<28}{'instructions':>13}{'cycles':>9}{'in the model':>14}")
    for name, value in fitted.items():
        print(f"{name:<28}{value:>13.2f}{value * CYCLES_PER_INSTRUCTION:>9.2f}{getattr(cost, name):>14g}")
    print(
        f"\n{'operator':<44}{'calls':>6}{'per unit of work':>20}{'error of the fit':>20}{'of the model':>20}"
    )
    for operator in sorted({c.operator for c in counts}):
        mine = [c for c in counts if c.operator == operator]
        each = [c.instructions / max(c.amount, 1) for c in mine]
        ours = [(fitted[DISPATCH] + fitted[c.parameter] * c.amount) / c.instructions - 1 for c in mine]
        model = [
            (getattr(cost, DISPATCH) + getattr(cost, c.parameter) * c.amount)
            / (c.instructions * CYCLES_PER_INSTRUCTION)
            - 1
            for c in mine
        ]
        spans = [f"{min(each):.1f} to {max(each):.1f}", _span(ours), _span(model)]
        print(f"{operator:<44}{len(mine):>6}{spans[0]:>20}{spans[1]:>20}{spans[2]:>20}")
    return 0


def _span(errors: list[float]) -> str:
    return f"{min(errors):+.0%} to {max(errors):+.0%}"


if __name__ == "__main__":
    sys.exit(main())
