"""Windows over the last frames: shifted where they lie, exact for any graph that keeps a part of a window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode import format as mc
from openneutron.litert.file import read, write
from openneutron.litert.reference import Reference
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target
from tests.stateful.graphs import random_window

TARGET = find_target("imxrt700")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_windows_are_those_of_litert(first: int):
    for seed in range(first, first + 20):
        raw, rng = write(random_window(seed)), np.random.default_rng(seed)
        reference = Reference(raw)
        given = [
            [rng.integers(-128, 128, t.shape).astype(np.int8) for t in read(raw).given] for _ in range(9)
        ]
        expected = [reference.run(x) for x in given]
        for mode in ("performance", "size"):
            compiled = compile_graph(read(raw), TARGET, CompileOptions(optimise=mode))
            model = NativeModel(compiled.microcode, compiled.weights)
            for x, wanted in zip(given, expected, strict=True):
                for found, want in zip(model.run(x), wanted, strict=True):
                    np.testing.assert_array_equal(found, want, f"seed {seed}, {mode}")


class Streaming(nn.Module):
    """Depthwise temporal convolutions with what they saw last, each behind a layer."""

    def __init__(self, blocks: int, channels: int = 16, taps: int = 3, batch: int = 1, chunk: int = 1):
        super().__init__()
        self.before = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(blocks))
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, channels, taps, dilation=1 << i, groups=channels) for i in range(blocks)
        )
        for i in range(blocks):
            self.register_buffer(f"ring{i}", torch.zeros(batch, channels, (taps - 1) << i))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, (before, conv) in enumerate(zip(self.before, self.convs, strict=True)):
            ring = self.get_buffer(f"ring{i}")
            window = torch.cat([ring, torch.relu(before(x))], -1)
            ring.copy_(window[..., -ring.shape[-1] :])
            x = torch.relu(conv(window))
        return x


def copies_of(compiled) -> list[mc.Copy]:
    (payload,) = compiled.info.payloads()
    return [call for call in mc.decode(payload.microcode).calls if isinstance(call, mc.Copy)]


def test_a_block_takes_one_copy():
    torch.manual_seed(0)
    frames = [[(torch.randn(1, 16, 1),) for _ in range(12)] for _ in range(2)]
    compiled = compile_model(Streaming(4).eval(), frames[0][0], calibration=frames, accuracy="fast")
    found = copies_of(compiled)
    assert len(found) == 4
    for number, call in enumerate(found):
        assert call.input.region == call.output.region == mc.Region.STATE
        assert call.input.offset - call.output.offset == 16  # a frame
        assert np.prod(call.dims) == 16 * (2 << number)  # what is kept of the window
