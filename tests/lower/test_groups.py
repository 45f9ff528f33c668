"""Grouped convolutions: whole for the open converter, one by one for NXP's, the same numbers in both."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode.format import Prefetch
from openneutron.litert.ir import Builtin
from openneutron.litert.reference import run_reference
from openneutron.litert.rules import run
from openneutron.lower.groups import SPLIT_GROUPS
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from openneutron.run.native import NativeModel


class Block(nn.Module):
    """What a RegNet is made of."""

    def __init__(self, groups: int = 6):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(24, 24, 1), nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1, groups=groups, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 24, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    inputs = (torch.randn(1, 24, 9, 9),)
    return compile_model(Block().eval(), inputs, calibration=[inputs], per_channel=False)


def test_a_grouped_convolution_stays_whole(program):
    (graph,) = program.graphs
    assert [op.kind for op in graph.ops].count(Builtin.CONV_2D) == 3
    assert not any(op.kind in (Builtin.SLICE, Builtin.CONCATENATION) for op in graph.ops)
    assert len(program.npu_nodes) == 4


def test_every_group_has_a_scale_of_its_own(program):
    (grouped,) = (
        op for op in program.graphs[0].ops if op.kind is Builtin.CONV_2D and op.operand(1).shape[3] == 4
    )
    scales = np.array(grouped.operand(1).quant.scale).reshape(6, 4)
    assert (scales == scales[:, :1]).all() and len(set(scales[:, 0])) == 6
    assert (np.abs(grouped.operand(1).array.reshape(6, -1)).max(1) == 127).all()


def test_one_by_one_they_give_the_same(program):
    (graph,) = program.graphs
    apart = run(graph, [SPLIT_GROUPS])
    assert [op.kind for op in apart.ops].count(Builtin.CONV_2D) == 8
    values = [np.random.default_rng(0).integers(-128, 128, t.shape).astype(np.int8) for t in graph.inputs]
    (whole,), (split,) = run_reference(graph, values), run_reference(apart, values)
    np.testing.assert_array_equal(whole, split)


def test_groups_are_streamed_apart(program):
    """Weights that do not fit the SRAM at once are copied a few groups at a time."""
    (graph,) = program.graphs
    whole = compile_graph(graph, program.target, CompileOptions())
    values = [np.random.default_rng(1).integers(-128, 128, t.shape).astype(np.int8) for t in graph.inputs]
    sram = whole.scratch_bytes + 700
    small = compile_graph(
        graph, program.target, CompileOptions(fetch_constants_to_sram=True, sram_bytes=sram)
    )
    assert sum(isinstance(call, Prefetch) for call in small.program.calls) > 3
    for a, b in zip(
        NativeModel(whole.microcode, whole.weights).run(values),
        NativeModel(small.microcode, small.weights).run(values),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
