"""Edge to LiteRT: layout at the borders, provenance, intermediate files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from openneutron import generate_neutron_compile_spec
from openneutron.litert.file import read
from openneutron.lower.convert import lower_program
from tests.lowering import Delegated, delegate, quantize, transposes


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        return torch.softmax(self.head((y + self.second(y)).flatten(1)), -1)


class Image(nn.Module):
    """Image to image: both borders are 4-D."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


def _delegated(module: nn.Module, channels_last: bool = False, **options: object) -> Delegated:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    inputs = (x.to(memory_format=torch.channels_last) if channels_last else x,)
    spec = generate_neutron_compile_spec("imxrt700", **options)  # type: ignore[arg-type]
    return delegate(quantize(module, [inputs]), inputs, spec)


@pytest.mark.parametrize(
    ("module", "channels_last", "npu", "count", "flags"),
    [
        (Small, False, True, 1, ([False], [False])),  # the input; the flatten is folded into the weights
        (Small, False, False, 0, ([True], [False])),
        (Small, True, True, 0, ([False], [False])),
        (Small, True, False, 0, ([False], [False])),
        (Image, False, True, 2, ([False], [False])),
        (Image, False, False, 0, ([True], [True])),
        (Image, True, True, 0, ([False], [False])),
    ],
)
def test_fewest_transposes(module: type, channels_last: bool, npu: bool, count: int, flags: tuple) -> None:
    delegated = _delegated(module(), channels_last, use_neutron_for_format_conversion=npu)
    lowered = delegated.partitions[0].lowered
    assert transposes(lowered.graph) == count
    assert (list(lowered.input_channels_last), list(lowered.output_channels_last)) == flags


def test_every_op_knows_where_it_came_from() -> None:
    delegated = _delegated(Small())
    lowered = delegated.partitions[0].lowered
    program = delegated.modules[0].original_module
    names = {n.name for n in program.graph.nodes}
    for op in lowered.graph.ops:
        assert set(op.origin) <= names, op
    traced = {name for op in lowered.graph.ops for name in op.origin}
    computing = {n.name for n in program.graph.nodes if "aten" in n.name and "view" not in n.name}
    assert computing <= traced


def test_intermediates_are_kept(tmp_path: Path) -> None:
    delegated = _delegated(Small(), intermediates_dir=str(tmp_path / "kept"))
    names = sorted(p.name for p in (tmp_path / "kept").iterdir())
    assert names == ["tag0_neutron.et.tflite", "tag0_pure.et.tflite"]
    pure = read((tmp_path / "kept" / names[1]).read_bytes())
    lowered = delegated.partitions[0].lowered
    assert [op.kind for op in pure.ops] == [op.kind for op in lowered.graph.ops]
    neutron = read((tmp_path / "kept" / names[0]).read_bytes())
    assert [op.custom_name for op in neutron.ops] == ["NeutronGraph"]


def test_lowering_the_same_program_twice_gives_the_same_graph() -> None:
    delegated = _delegated(Small())
    program = delegated.modules[0].original_module
    assert str(lower_program(program).graph) == str(lower_program(program).graph)


def test_per_channel_weights() -> None:
    torch.manual_seed(0)
    x = (torch.randn(1, 3, 8, 8),)
    quantized = quantize(Small(), [x], per_channel=True)
    delegated = delegate(quantized, x)
    lowered = delegated.partitions[0].lowered
    scales = [len(op.operand(1).quant.scale) for op in lowered.graph.ops if "CONV" in op.kind.name]  # type: ignore[union-attr]
    assert scales == [8, 8]
    got, want = delegated.run(x)[0], quantized(*x)
    assert torch.max(torch.abs(got - want)) <= 1.001 / 256
