"""What int8 loses of an output is said, whatever the figure of the whole is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from openneutron.pipeline import quantize_model
from openneutron.quantize.prepared_model.part_errors import _ranges
from openneutron.quantize.refine import Refined
from openneutron.report.summary import accuracy_warning

SHAPE = (1, 4, 8, 8)


def refined(module: nn.Module, count: int = 12, **options) -> Refined:
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(SHAPE, generator=generator),) for _ in range(count)]
    found: list[Refined] = []
    quantize_model(module.eval(), samples, watch=found.append, per_channel=True, **options)
    return found[0]


class Head(nn.Module):
    """One convolution gives boxes in pixels and scores below 1, as the heads of many detectors do."""

    def __init__(self, size: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 6, 1)
        with torch.no_grad():
            self.head.weight[:4] *= size
            self.head.bias[:4] *= size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def test_channels_that_one_scale_cannot_hold_are_lost():
    found = refined(Head(3000.0))
    small = [part for part in found.parts if part.channels == (4, 5)]
    assert found.quality.output_db > 20  # the whole looks well, by a cautious figure of three samples
    assert len(found.parts) == 2 and small and small[0].is_lost and small[0].constant
    assert small[0].layer == small[0].part  # the head itself: what it reads is good
    text = accuracy_warning(found.as_dict())
    assert "channels 4 to 5 is constant on 12 samples kept back" in text and small[0].layer in text


def test_nothing_is_said_where_nothing_is_lost():
    found = refined(Head(1.0))
    assert not any(part.is_lost for part in found.parts) and accuracy_warning(found.as_dict()) == ""


class TwoOutputs(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return torch.cat([y[:, :4].flatten(1), y[:, 4:].flatten(1)], 1), y.mean((2, 3))


def test_the_parts_of_a_concatenation_are_measured_by_themselves():
    """What joins different sizes stays in float; each part has a figure of its own."""
    found = refined(TwoOutputs(3000.0))
    assert {part.output for part in found.parts} == {0, 1} and len(found.parts) >= 3


class ClassAndScores(Head):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = super().forward(x).mean((2, 3))
        return y.argmax(1), y


def test_an_output_of_integers_has_no_error_and_shifts_no_other_outputs():
    """What samples that were fitted to say is of the outputs that have an error, not of all."""
    found = refined(ClassAndScores(1.0), 40)
    (part,) = found.parts
    assert part.output == 1 and found.quality.elsewhere.shift_db[0] != 0
    assert part.sqnr_db == pytest.approx(found.quality.output_db)


@pytest.mark.parametrize("accuracy", ["fast", "balanced"])
@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_any_number_of_samples(accuracy, count):
    found = refined(Head(1.0), count, accuracy=accuracy)
    figures = found.as_dict()
    if count == 1:
        assert figures["samples"] == 0 and not found.parts
    else:
        assert figures["samples"] == count and figures["folded"]
        assert all(math.isfinite(part["sqnr_db"]) for part in figures["parts"])


def test_channels_are_named_as_a_person_would():
    assert _ranges((0, 1, 2, 5)) == "0 to 2, 5"
    assert _ranges(tuple(range(0, 20, 2))) == "0, 2, 4, 6 and 6 more"
