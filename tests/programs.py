"""Test support: compiled programs, and what they must compute according to LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from openneutron.package.program import CompiledProgram
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program
from tests.lowering import Inputs, ReferenceProgram


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


def reference_of(compiled: CompiledProgram) -> ReferenceProgram:
    """A compiled program, its delegates computed by LiteRT."""
    return ReferenceProgram(compiled.edge, compiled.partitions)


def assert_runs_exactly(compiled: CompiledProgram, make: Callable[[int], Inputs], count: int) -> None:
    """The .pte on ExecuTorch's runtime gives the reference's outputs bit for bit, on `count` inputs."""
    program, reference = load_program(compiled.pte), reference_of(compiled)
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
