"""Channels of different size: the float function stays, rounding costs less, the program little more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from openneutron.options import CompileOptions
from openneutron.package.program import NPU_KINDS
from openneutron.pipeline import compile_model
from openneutron.quantize.channel_scaling.channel_groups import group_channels, seen_in_places
from openneutron.quantize.channel_scaling.choose import observe
from openneutron.quantize.export import export_model
from openneutron.quantize.loop import prepare
from openneutron.quantize.prepared_model.copies import copied
from openneutron.quantize.prepared_model.effect import GroupedFunction, functions_of, tell_functions
from openneutron.quantize.prepared_model.model import behind, observers
from openneutron.quantize.prepared_model.quality import float_run, quality, quantized_run
from openneutron.recipes.mixed import _units
from openneutron.recipes.parts import make_quantizer


def scaled(layer: nn.Conv2d, seed: int) -> nn.Conv2d:
    """A layer whose output channels differ up to a hundred times in size."""
    factor = 10 ** torch.rand(layer.out_channels, generator=torch.Generator().manual_seed(seed)).mul(2)
    with torch.no_grad():
        layer.weight *= factor.reshape(-1, 1, 1, 1)
        assert layer.bias is not None
        layer.bias *= factor
    return layer


class Block(nn.Module):
    """A separable block with a function behind each convolution, as mobile networks have them."""

    def __init__(self, function: nn.Module, width: int = 24):
        super().__init__()
        self.function = function
        self.expand = scaled(nn.Conv2d(3, width, 1), 0)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.project = nn.Conv2d(width, 8, 1)
        with torch.no_grad():  # what is small is multiplied by more, or nobody would notice it
            self.depthwise.weight /= self.expand.weight.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.function(self.depthwise(self.function(self.expand(x)))))


class Affine(nn.Module):
    """A function and numbers around it, as PP-OCR has it."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.25 * (x * (x + 3).clamp(0, 6) / 6) + 0.125


FUNCTIONS = {"hardswish": nn.Hardswish(), "silu": nn.SiLU(), "gelu": nn.GELU(), "affine": Affine()}
SHAPE = (1, 3, 16, 16)


def samples(count: int, shape: tuple[int, ...] = SHAPE) -> list[tuple[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(shape, generator=generator),) for _ in range(count)]


def prepared(module: nn.Module, converter: str = "open"):
    torch.manual_seed(0)
    quantizer = make_quantizer("neutron", CompileOptions(converter=converter))
    return prepare(export_model(module.eval(), samples(1)[0]), quantizer)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_float_function_stays_and_rounding_costs_less(name):
    torch.manual_seed(0)
    plain = prepared(Block(FUNCTIONS[name]))
    given, held = samples(12)[:8], samples(12)[8:]
    grouped = copied(plain)
    assert group_channels(grouped, seen_in_places(grouped, given), 0.5)
    exact = float_run(plain, held)
    assert quality(exact, float_run(grouped, held)).sqnr_db > 100
    for model in (plain, grouped):
        tell_functions(model)
        observe(model, given)
    before, after = (quality(exact, quantized_run(model, held)).sqnr_db for model in (plain, grouped))
    assert after > before + 3
    assert any(isinstance(f, GroupedFunction) for f in functions_of(grouped).values())
    again = copied(plain)  # observed by now: only what is scaled sees other values
    scaled = group_channels(again, seen_in_places(again, given), 0.5)
    tell_functions(again)
    observe(again, given, only=frozenset().union(*scaled))
    for one, other in zip(observers(again).values(), observers(grouped).values(), strict=True):
        scales = one.calculate_qparams()[0], other.calculate_qparams()[0]
        torch.testing.assert_close(*scales, rtol=1e-3, atol=0)


def test_functions_of_groups_stay_in_float_together():
    """One alone would change nothing: the tensor is rounded as a whole before and behind."""
    model = prepared(Block(nn.Hardswish()))
    assert group_channels(model, seen_in_places(model, samples(8)), 0.5)
    units = [set(unit) for unit in _units(model)]
    found = [f for f in functions_of(model).values() if isinstance(f, GroupedFunction)]
    assert found
    for function in found:
        pieces = [behind(part.start) for _, part in function.parts]
        made = {behind(piece.args[0]).name for piece in pieces}
        assert any({function.end.name, *(part.end.name for _, part in function.parts)} <= u for u in units)
        assert len(pieces) > 1 and any({*made, *(piece.name for piece in pieces)} <= u for u in units)


class Read(nn.Module):
    """A block whose channels something reads that knows them by their place."""

    def __init__(self, how: str):
        super().__init__()
        self.block = Block(nn.Hardswish())
        self.how = how

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        block = self.block
        y = block.function(block.expand(x))
        if self.how == "output":
            return block.project(block.function(block.depthwise(y))), y
        if self.how == "softmax":
            return block.project(y) + y.softmax(1)[:, :8]
        if self.how == "constant":
            return block.project(block.function(block.depthwise(y)) * torch.arange(24.0).reshape(1, 24, 1, 1))
        return block.project(block.function(block.depthwise(y)).flip(1))


@pytest.mark.parametrize("how", ["output", "softmax", "constant", "flip"])
def test_whatever_else_reads_channels_they_mean_the_same(how):
    plain = prepared(Read(how))
    grouped = copied(plain)
    group_channels(grouped, seen_in_places(grouped, samples(8)), 0.75)
    assert quality(float_run(plain, samples(3)), float_run(grouped, samples(3))).sqnr_db > 100


def test_another_converter_gets_no_groups():
    plain = prepared(Block(nn.Hardswish()), "eiq")
    before = len(plain.graph.nodes)
    group_channels(plain, seen_in_places(plain, samples(4)), 0.5)
    assert len(plain.graph.nodes) == before


@pytest.mark.parametrize("optimise", ["performance", "size"])
def test_groups_are_compiled_and_cost_little(optimise):
    torch.manual_seed(0)
    block, shape = Block(nn.Hardswish()), (1, 3, 48, 48)
    given, options = samples(12, shape), CompileOptions(optimise=optimise)
    fast, scaled = (
        compile_model(block, given[0], calibration=given, accuracy=accuracy, options=options)
        for accuracy in ("fast", "equalize")
    )
    assert len(scaled.partitions) == 1 and not scaled.rejected
    assert "TABLE_RUNS" in scaled.kernels
    assert scaled.cycles(*NPU_KINDS) <= 1.02 * fast.cycles(*NPU_KINDS) + 10_000
