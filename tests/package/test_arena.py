"""Inputs and outputs in the arena: planned by ExecuTorch with the rest, the same bits, whoever plans."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

from openneutron import NeutronPartitioner, compile_model, generate_neutron_compile_spec, quantize_model
from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.driver import prepare_problem
from openneutron.litert.file import write
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_litert
from openneutron.run.program import load_program
from openneutron.targets.table import find_target
from tests.compiler.test_cascade import picture, tower

SMALL = CompileOptions(optimise="size")


def test_a_program_that_is_one_delegate_needs_its_arena_and_nothing_else():
    arena, kept, whole = (
        compile_litert(write(tower()), options)
        for options in (SMALL, dataclasses.replace(SMALL, keep_inputs=True), CompileOptions())
    )
    assert arena.reserve_bytes == arena.planned_bytes == arena.partitions[0].converted.scratch_bytes
    assert arena.reserve_bytes < kept.reserve_bytes < whole.reserve_bytes
    assert arena.io_bytes == kept.io_bytes == 32 * 32 * 3 + 16 * 16 * 8
    assert kept.reserve_bytes == kept.scratch_bytes + kept.planned_bytes
    inputs = [torch.from_numpy(picture()[0])]
    (wanted,) = load_program(whole.pte).run(inputs)
    for program in (arena, kept):
        loaded = load_program(program.pte)
        for _ in range(2):  # the input is overwritten, the caller's is not
            assert np.array_equal(loaded.run(inputs)[0], wanted)
    assert np.array_equal(inputs[0], picture()[0])


class Branches(torch.nn.Module):
    """`tail` decides what else reads the input or the output of the part for the NPU."""

    def __init__(self, tail: str):
        super().__init__()
        self.tail = tail
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.second(torch.relu(self.first(x)))
        if self.tail == "input":
            return y, torch.atan(x)
        if self.tail == "itself":
            return y, x
        if self.tail == "two":
            return (self.second(torch.relu(self.first(torch.atan(y)))), y)
        return (torch.atan(y),)


@pytest.mark.parametrize("tail", ["output", "input", "itself", "two"])
def test_whatever_else_reads_a_tensor(tail):
    inputs = [(torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(n)),) for n in range(2)]
    model = quantize_model(Branches(tail).eval(), inputs)
    whole = compile_model(model, inputs[0])
    arena = compile_model(model, inputs[0], options=SMALL)
    assert arena.reserve_bytes < whole.reserve_bytes
    one = any(d.place for c in arena.compiled for d in c.program.inputs)
    assert one == (tail != "two")
    wanted = load_program(whole.pte).run(inputs[1])
    for got, expected in zip(load_program(arena.pte).run(inputs[1]), wanted, strict=True):
        assert np.array_equal(got, expected)


class TwoPictures(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.first(x), self.second(y)
        return torch.relu(a + b), torch.nn.functional.max_pool2d(a, 2)


def test_float_inputs_and_outputs_lie_in_the_arena_while_the_npu_waits():
    generator = torch.Generator().manual_seed(0)
    inputs = [tuple(torch.randn(1, 3, 16, 16, generator=generator) for _ in range(2)) for _ in range(3)]
    model = quantize_model(TwoPictures().eval(), inputs)
    whole = load_program(compile_model(model, inputs[0]).pte)
    program = compile_model(model, inputs[0], options=SMALL)
    floats, ports = 2 * 4 * 3 * 256, 2 * 3 * 256
    assert program.io_bytes == floats + 4 * (8 * 256 + 8 * 64)
    # The float outputs and the int8 ones they are made of are all there is in the end, and that is the most.
    assert program.reserve_bytes == max(
        floats + ports, 5 * (8 * 256 + 8 * 64), program.partitions[0].converted.scratch_bytes
    )
    loaded = load_program(program.pte)
    for values in inputs:
        for got, wanted in zip(loaded.run(values), whole.run(values), strict=True):
            assert np.array_equal(got, wanted)


@pytest.mark.parametrize("keep", [None, False])
def test_memory_planned_by_others_is_as_good(keep):
    """`to_executorch()` without our planning: inputs are kept, or copied if one insists."""
    inputs = [(torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(n)),) for n in range(2)]
    model = quantize_model(Branches("output").eval(), inputs)
    specs = generate_neutron_compile_spec("imxrt700", optimise="size", keep_inputs=keep)
    exported = torch.export.export(model, inputs[0])
    edge = to_edge_transform_and_lower(exported, partitioner=[NeutronPartitioner(specs)])
    wanted = load_program(compile_model(model, inputs[0]).pte).run(inputs[1])
    (got,) = load_program(edge.to_executorch().buffer).run(inputs[1])
    assert np.array_equal(got, wanted[0])


def with_places(**places: int) -> str:
    """What the driver says of a program with other places for its first input and output."""
    compiled = compile_graph(tower(), find_target("imxrt700"), SMALL)
    program = compiled.program
    ports = {side: (dataclasses.replace(getattr(program, side)[0], place=places[side]),) for side in places}
    return prepare_problem(mc.encode(dataclasses.replace(program, **ports)), compiled.weights)


def test_the_driver_checks_places():
    scratch = compile_graph(tower(), find_target("imxrt700"), SMALL).scratch_bytes
    assert with_places() == ""
    assert with_places(inputs=scratch - 32 * 32 * 3 + 1) == ""  # its last byte is the last
    for side, bytes in (("inputs", 32 * 32 * 3), ("outputs", 16 * 16 * 8)):
        assert "outside its memory region" in with_places(**{side: scratch - bytes + 2})
        assert "outside its memory region" in with_places(**{side: 0xFFFF_FFFF})
