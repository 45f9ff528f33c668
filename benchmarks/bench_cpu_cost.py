"""Instructions of CPU kernels on an emulated Cortex-M33, and the cost model's parameters fitted to them.

Programs with a method for each operator and size run as firmware under QEMU, which counts: float operators
and the steps around a delegate on ExecuTorch's portable kernels and on those of runtime/cpu_kernels, int8
operators on its Cortex-M kernels (CMSIS-NN).
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
from openneutron.estimate.cpu_cost import Operator, are_floats, cpu_work
from openneutron.firmware.cores import DEFAULT
from openneutron.firmware.sources import find_sources
from openneutron.firmware.whole import build_whole, read_whole_program
from openneutron.firmware.whole_run import random_runs, run_whole
from openneutron.pipeline import compile_model
from openneutron.run.program_steps import program_steps
from openneutron.targets.table import DEFAULT_TARGET, find_target

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
        "sub": lambda x: x - 0.5 * x,
        "maximum": lambda x: torch.maximum(x, -x),
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        "bmm": lambda x: torch.bmm(x.reshape(1, 8, -1), x.reshape(1, -1, 8)),
        "broadcast": lambda x: x.reshape(4, 8, -1) * x.reshape(4, 8, -1)[:1, :, :1],
        "slice": lambda x: x.reshape(8, -1)[:, ::2] + 0,
        "cat": lambda x: torch.cat([x.reshape(8, -1), x.reshape(8, -1)], 1),
    }
    for name, function in functions.items():
        for size in SIZES:
            yield f"{name}_{size}", Function(function), (torch.randn(1, size),)
    for size in (8, 24, 64):
        yield f"linear_{size}", nn.Linear(size, size), (torch.randn(4, size),)
    for channels, side in ((4, 8), (8, 12), (16, 16)):
        image = (torch.randn(1, channels, side, side),)
        yield f"float_conv_{channels}", nn.Conv2d(channels, channels, 3, padding=1), image
        yield f"float_point_{channels}", nn.Conv2d(channels, channels, 1), image
        yield f"float_depth_{channels}", nn.Conv2d(channels, channels, 3, padding=1, groups=channels), image
        yield f"float_transposed_{channels}", nn.ConvTranspose2d(channels, channels, 2, stride=2), image
        yield f"float_max_pool_{channels}", nn.MaxPool2d(2), image
        yield f"float_avg_pool_{channels}", nn.AvgPool2d(2), image


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
            "minimum": Function(lambda x: torch.minimum(x, x * 0.5)),
            "maximum": Function(lambda x: torch.maximum(x, x * 0.5)),
            "div": Function(lambda x: x / (torch.sigmoid(x) + 1)),
            "pad": Function(lambda x: nn.functional.pad(x, (1, 1, 1, 1))),
            "sigmoid": nn.Sigmoid(),
            "softmax": Function(lambda x: torch.softmax(x.flatten(1), -1)),
            "linear": nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 16)),
            "matmul": Function(lambda x: torch.bmm(x[0], x[0])),
        }
        for name, layer in layers.items():
            yield f"{name}_{channels}", layer, image


def border_cases() -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """What stands between the application and the NPU with the recipe `neutron`."""
    for side in (8, 16, 32):
        yield f"border_{side}", nn.Conv2d(3, 4, 1), (torch.randn(1, 3, side, side),)


def count(what: str, *, portable: bool = False) -> list[Count]:
    """Count the operators of a recipe's cases; `float`: of float models without the NPU.

    `portable`: with none of runtime/cpu_kernels.
    """
    cases = list({"float": float_cases, "cortex-m": int8_cases, "neutron": border_cases}[what]())
    modules = {name: module.eval() for name, module, _ in cases}
    inputs = {name: values for name, _, values in cases}
    calibration = None if what == "float" else {name: [values] for name, values in inputs.items()}
    more = {"delegate": False} if what == "float" else {"recipe": what}
    made = compile_model(modules, inputs, calibration=calibration, verify=False, **more)
    program = read_whole_program(made.pte)
    with tempfile.TemporaryDirectory() as folder:
        firmware = build_whole(program, Path(folder), find_sources(), portable=portable)
        run = run_whole(firmware, random_runs(program, 1))
    arguments = {
        name: [d.payload().input_args for d in method.delegates]
        for name, method in program.info.methods.items()
    }
    steps = program_steps(program.data, arguments, "program")
    found = []
    for step in run.steps:
        call = steps[step.method].steps[step.number]
        if call.delegate is not None:
            continue
        shapes = tuple(t.spec.shape for t in call.inputs)
        is_float = are_floats(t.spec.dtype for t in (*call.inputs, *call.outputs[:1]))
        shape = call.outputs[0].spec.shape if call.outputs else ()
        op = Operator(step.operator, shapes, shape, is_float=is_float)
        if not op.is_view and (portable or op.fast):
            name = f"{step.operator}, ours" if op.fast and not portable else step.operator
            found.append(Count(name, *cpu_work(op, portable=portable), step.instructions))
    return found


def fit(counts: list[Count]) -> dict[str, float]:
    """Instructions per call and per unit of work; every operator has one voice, however often it was called.

    An operator's calls lie on a line; the fixed amount is the median of where these begin. A parameter is the
    median, over the operators it stands for, of what a unit of work takes beyond that in the largest call.
    """
    calls = [[c for c in counts if c.operator == name] for name in sorted({c.operator for c in counts})]
    by_operator = [mine for mine in calls if len({c.amount for c in mine}) > 1]
    dispatch = float(np.median([_start(mine) for mine in by_operator]))
    slopes: dict[str, list[float]] = {}
    for mine in by_operator:
        largest = max(c.amount for c in mine)
        each = [max(c.instructions - dispatch, 1.0) / c.amount for c in mine if c.amount == largest]
        slopes.setdefault(mine[0].parameter, []).append(float(np.median(each)))
    return {DISPATCH: dispatch} | {name: float(np.median(found)) for name, found in sorted(slopes.items())}


def _start(counts: list[Count]) -> float:
    """Where the line through an operator's calls begins, each call's error relative to what it took."""
    weights = np.array([1 / c.instructions for c in counts])
    lines = np.array([[1.0, c.amount] for c in counts]) * weights[:, None]
    return max(0.0, float(np.linalg.lstsq(lines, np.ones(len(counts)), rcond=None)[0][0]))


def main() -> int:
    """Print counts, the fit and its errors."""
    counts = []
    for what in ("cortex-m", "float", "neutron"):
        try:  # sources may have no kernels for one of them
            counts += [found for portable in (True, False) for found in count(what, portable=portable)]
        except OpenNeutronError as error:
            print(f"{what} is skipped: {error}")
    if not counts:
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
