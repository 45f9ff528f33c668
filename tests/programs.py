"""Test support: compiled programs, and what they must compute according to LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from executorch.exir.delegate import executorch_call_delegate

from openneutron.litert.reference import Reference
from openneutron.package.program import CompiledProgram, delegates
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program
from tests.lowering import _constant_of, run_delegate

Inputs = tuple[torch.Tensor, ...]


def random_inputs(shapes: Sequence[Sequence[int]], seed: int, channels_last: bool = False) -> Inputs:
    """Random inputs; those of rank 4 in channels-last memory if asked for."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(tuple(shape), generator=generator) for shape in shapes]
    return tuple(
        x.to(memory_format=torch.channels_last) if channels_last and x.ndim == 4 else x for x in inputs
    )


@cache
def small_program() -> bytes:
    """A program of one convolution, where any will do."""
    inputs = (torch.ones(1, 2, 4, 4),)
    return compile_model(torch.nn.Conv2d(2, 2, 1).eval(), inputs, calibration=[inputs]).pte


class ReferenceProgram(torch.fx.Interpreter):
    """A compiled program, its delegates computed by LiteRT and the rest by PyTorch."""

    def __init__(self, compiled: CompiledProgram):
        self.exported = compiled.edge
        super().__init__(self.exported.graph_module)
        modules = delegates(self.exported.graph_module)
        self.delegates = {
            id(module): (part.lowered, module, Reference(part.litert))
            for module, part in zip(modules, compiled.partitions, strict=True)
        }

    def outputs(self, inputs: Inputs) -> list[np.ndarray]:
        """The program's outputs."""
        users = iter(inputs)
        specs = self.exported.graph_signature.input_specs
        found = [_constant_of(self.exported, spec) for spec in specs]
        with torch.no_grad():
            results = self.run(*(next(users) if value is None else value for value in found))
        return [r.numpy() for r in results]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is executorch_call_delegate:
            lowered, module, reference = self.delegates[id(args[0])]
            return run_delegate(lowered, module, args[1:], reference)
        return super().call_function(target, args, kwargs)


def assert_runs_exactly(compiled: CompiledProgram, make: Callable[[int], Inputs], count: int) -> None:
    """The .pte on ExecuTorch's runtime gives the reference's outputs bit for bit, on `count` inputs."""
    program, reference = load_program(compiled.pte), ReferenceProgram(compiled)
    for seed in range(1000, 1000 + count):
        inputs = make(seed)
        assert_same(program.run(inputs), reference.outputs(inputs))


def assert_same(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Equal in number, type, shape and every bit."""
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)


def compiled_for(
    module: torch.nn.Module, shapes: Sequence[Sequence[int]], channels_last: bool = False, **kwargs: Any
) -> CompiledProgram:
    """Quantize on a few random inputs and compile."""
    samples = [random_inputs(shapes, seed, channels_last) for seed in range(3)]
    return compile_model(module.eval(), samples[0], calibration=samples, **kwargs)


def transposes(compiled: CompiledProgram) -> int:
    """How many transposes the NPU does."""
    return sum(op.kind.name == "TRANSPOSE" for graph in compiled.graphs for op in graph.ops)
