"""Per-layer errors: where one begins, where it is inherited, and that what is suggested does help."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from openneutron.accuracy.compare import compare_model, try_suggestions
from openneutron.accuracy.suggest import GOOD_DB, error_rows
from openneutron.diagnostics import OpenNeutronError
from openneutron.pipeline import quantize_model
from openneutron.recipes.quantize_options import QuantizeOptions

SHAPE = (1, 4, 8, 8)
FAST = QuantizeOptions(per_channel=False, accuracy="fast")


def samples(count: int, scale: float = 1.0, seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(SHAPE, generator=generator) * scale,) for _ in range(count)]


class TwoConvs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


class Spread(TwoConvs):
    """One channel of the first layer has a large weight, the others many small ones that matter as much."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.first.weight.copy_(0.01 + 0.001 * torch.randn(self.first.weight.shape))
            self.first.weight[0] = 0
            self.first.weight[0, 0, 1, 1] = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.abs())


class Dead(TwoConvs):
    """A huge weight for an input that is always zero: it takes the range, whatever the number of scales."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.first.weight[:, 0] = 60.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.cat([(x[:, :1] - 1000.0).clamp(min=0.0), x[:, 1:]], 1))


def rows_of(module: nn.Module, data, calibration, **kwargs):
    rows = compare_model(module.eval(), data, calibration, replace(FAST, **kwargs)).layers
    return rows, {row.layer: row for row in rows}


@pytest.mark.slow  # suggestions are tried: each quantizes and runs the network
def test_nothing_is_suggested_where_nothing_is_wrong():
    rows, named = rows_of(TwoConvs(), samples(2, seed=9), samples(8))
    assert {"relu", "relu_1"} <= named.keys()
    assert all(row.sqnr_db > GOOD_DB and row.suggestion is None for row in rows)
    for row in rows:
        assert row.own_sqnr_db >= row.sqnr_db - 1  # what is inherited does not make it better
        assert row.edge == {"relu": "aten_relu_default", "relu_1": "aten_relu_default_1"}[row.layer]
    # A first layer inherits the rounding of the inputs only, the second all of the first.
    assert named["relu_1"].own_sqnr_db > named["relu_1"].sqnr_db


@pytest.mark.slow  # suggestions are tried: each quantizes and runs the network
def test_channels_of_different_size():
    data, calibration = samples(2, seed=9), samples(8)
    rows, named = rows_of(Spread(), data, calibration)
    assert [row.sqnr_db for row in rows] == sorted(row.sqnr_db for row in rows)
    assert named["relu"].suggestion.kind == "per-channel" and named["relu"].sqnr_db < 25
    spread = [row for row in rows if row.suggestion and row.suggestion.kind == "per-channel"]
    assert spread and spread[0].channel_spread > 50
    trials = dict(try_suggestions(Spread().eval(), data, calibration, rows, 1, FAST))
    assert trials["--per-channel"] > trials["as it is"] + 3
    mended = {
        r.layer: r
        for r in compare_model(Spread().eval(), data, calibration, replace(FAST, per_channel=True)).layers
    }
    for row in spread:  # what the trial promised is what per-channel weights give
        tried, real = row.per_channel_sqnr_db, mended[row.layer].weight_sqnr_db
        assert tried == pytest.approx(real, abs=0.5)


@pytest.mark.slow  # suggestions are tried: each quantizes and runs the network
def test_samples_outside_the_calibrated_range():
    data, calibration = samples(2, scale=8.0, seed=9), samples(8, scale=0.5)
    rows, _ = rows_of(TwoConvs(), data, calibration)
    kinds = {row.layer: row.suggestion.kind for row in rows if row.suggestion}
    assert "calibration" in kinds.values()
    row = next(r for r in rows if r.suggestion and r.suggestion.kind == "calibration")
    assert row.clipped > 0.01 and row.reached[1] > row.range[1] and "clipped" in row.suggestion.text
    trials = try_suggestions(TwoConvs().eval(), data, calibration, rows, 1, FAST)
    assert [name for name, _ in trials][1].startswith("these samples")
    assert trials[1][1] > trials[0][1] + 3


@pytest.mark.slow  # suggestions are tried: each quantizes and runs the network
def test_a_layer_that_only_float_mends_and_what_inherits_its_error():
    data, calibration = samples(2, seed=9), samples(8)
    rows, named = rows_of(Dead(), data, calibration)
    first, second = named["relu"], named["relu_1"]
    assert first.suggestion.kind == "float" and "--keep-float relu" in first.suggestion.text
    assert second.suggestion.kind == "inherited" and "mend relu (" in second.suggestion.text
    assert second.own_sqnr_db > GOOD_DB
    trials = dict(try_suggestions(Dead().eval(), data, calibration, rows, 1, FAST))
    assert trials["--keep-float relu"] > trials["as it is"] + 6
    kept = compare_model(Dead().eval(), data, calibration, replace(FAST, keep_float=["relu"])).layers
    (relu,) = [row for row in kept if row.layer == "relu"]  # still rounded, where the next layer reads it
    assert relu.simulator_lsb is None and relu.own_sqnr_db > first.own_sqnr_db + 10

    errors = error_rows(rows)
    assert [row["name"] for row in errors] == [row.layer for row in rows]
    (relu,) = [row for row in errors if row["name"] == "relu"]
    assert relu["node"] == "aten_relu_default" and relu["sqnr_db"] == first.sqnr_db
    assert relu["suggestion"] == first.suggestion.text
    assert all(math.isfinite(row["max_abs"]) and -1 <= row["cosine"] <= 1.0001 for row in errors)


class Chain(nn.Module):
    """More layers than are compared at once, and names that earlier graphs use for other nodes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.layer_norm(x, (8,))
        for step in range(5):
            y = torch.sigmoid(y) + x * (0.01 + step)  # of two tensors: no function, which would be one layer
        return y.mean((2, 3))


class Resized(nn.Module):
    """Both resizings share their operand's parameters; one of them computes new values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = nn.functional.interpolate(x * 1.5, scale_factor=2.0, mode="nearest")
        return nn.functional.interpolate(near, scale_factor=2.0, mode="bilinear")


def test_a_layer_that_interpolates_has_an_error_of_its_own():
    found, _ = rows_of(Resized(), samples(2), samples(4, seed=1))
    rows = {row.op.split(".")[1]: row for row in found}
    assert math.isinf(rows["upsample_nearest2d"].own_sqnr_db)
    assert math.isfinite(rows["upsample_bilinear2d"].own_sqnr_db)


def test_many_layers_are_told_apart(monkeypatch):
    monkeypatch.setattr("openneutron.accuracy.compare._MOST_LAYERS", 4)
    rows, _ = rows_of(Chain(), samples(1, seed=9), samples(2))
    # What is computed without rounding in between has no int8 value of its own; the rest has one.
    steps = [row.simulator_lsb for row in rows if row.simulator_lsb is not None]
    assert len(rows) > 15 and len(steps) > 10
    # Values of another layer would be far off, or of another shape.
    assert max(steps) <= 8
    edges = [row.edge for row in rows]
    assert None not in edges and len(set(edges)) == len(edges)


def test_a_layer_that_is_not_there():
    with pytest.raises(OpenNeutronError, match=r"ON104.*no layer 'rleu'.*\n.*Did you mean 'relu'"):
        quantize_model(TwoConvs().eval(), samples(1), keep_float=["rleu"])


class Magnitude(nn.Module):
    """A spectrum: the root of a sum of squares makes much of small errors; and a second, good output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Conv2d(4, 8, 1, bias=False), nn.Conv2d(4, 8, 1, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.left(x), self.right(x)
        return torch.sqrt(a.pow(2) + b.pow(2) + 1e-6), a


def test_outputs_are_told_apart_and_what_amplifies_is_named(monkeypatch):
    # As for a converter without islands: with them the squares are not rounded, and nothing is amplified.
    monkeypatch.setattr("openneutron.quantize.annotation.annotate.find_groups", lambda *given: {})
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(1, 4, 8, 8, generator=generator) * scale,) for scale in [0.02] * 8 + [0.5]]
    data.append(data[-1])  # what samples have in common is no range that others may exceed
    found = compare_model(Magnitude().eval(), data, data, FAST)
    root, linear = found.outputs
    assert (root.node, linear.node) == ("sqrt", "conv2d") and root.sqnr_db < linear.sqnr_db - 6
    assert len(root.worst) == 3 and root.worst[0][0] < 8 and root.worst[0][1] < root.sqnr_db
    suggested = {row.layer: row.suggestion for row in found.layers if row.suggestion}
    assert "aten.sqrt.default amplifies" in suggested["sqrt"].text and suggested["sqrt"].kind == "float"
    assert {"pow_1", "pow_2", "sqrt"} <= {*suggested["sqrt"].layers} and "conv2d" not in suggested
    assert not any("0.0% of its values are clipped" in s.text for s in suggested.values())
