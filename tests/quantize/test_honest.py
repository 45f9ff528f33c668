"""What is chosen and shown by samples kept back: beyond chance, and unseen also by the choice."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from openneutron.pipeline import compile_model, quantize_model
from openneutron.quantize.prepared_model.quality import Quality, chosen_by_others, compared
from openneutron.quantize.refine import folds_of, kept_back


def found(*errors: float) -> Quality:
    """A quality with one output, of power 1 in every sample, and these errors."""
    rows = tuple(((1.0, error),) for error in errors)
    return Quality(rows, rows, None)


def test_one_sample_does_not_decide():
    """Seven samples get worse, the one that makes most of the error gets better: that is chance."""
    before, after = found(0.5, *[0.001] * 7), found(0.05, *[0.0013] * 7)
    assert after.together_db > before.together_db + 5
    assert not after.is_better_than(before, 0.1)


def test_what_is_better_for_most_but_loses_the_large_errors_is_not_better():
    before, after = found(0.05, 0.05, *[0.001] * 6), found(0.5, 0.5, *[0.0003] * 6)
    assert after.sqnr_db > before.sqnr_db
    assert not after.is_better_than(before, 0.1)


def test_one_sample_that_is_thrown_far_off_does_not_hide_what_the_others_gain():
    before, after = found(*[0.01] * 8), found(0.2, *[0.004] * 7)
    assert after.together_db < before.together_db
    assert after.is_better_than(before, 0.1)


def test_a_small_gain_of_every_sample_is_one():
    before = found(0.5, 0.02, 0.001, 0.003, 0.2, 0.0004)
    after = found(*[row[0][1] * 0.9 for row in before.outputs])
    assert after.is_better_than(before, 0.1)
    assert not before.is_better_than(after, 0.1)
    assert not after.is_better_than(after, 0.0)


def test_an_exact_model_is_better_than_any():
    assert found(0.0, 0.0).is_better_than(found(0.1, 0.1), 3.0)
    assert not found(0.0, 0.0).is_better_than(found(0.0, 0.0), 0.0)


def test_the_figure_shown_is_not_the_one_that_was_chosen_by():
    """Of many methods that do nothing but shake the errors, the best looks better than it is."""
    differences = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        chosen = shown = found(*[0.01] * 8)
        for _ in range(30):
            trial = found(*(0.01 * torch.exp(torch.randn(8, generator=generator))).tolist())
            shown = chosen_by_others(shown, chosen, trial, 0.1)
            chosen = trial if trial.is_better_than(chosen, 0.1) else chosen
        differences.append(chosen.together_db - shown.together_db)
    assert min(differences) >= 0 and sum(differences) / len(differences) > 1


def test_parts_of_one_picture_are_fitted_to_or_kept_back_and_not_both():
    """Samples come as four parts of every picture, or as steps of a recording."""
    generator = torch.Generator().manual_seed(0)
    for count in (16, 32, 48, 64):
        pictures = torch.randperm(count // 4, generator=generator).float()
        samples = [
            (pictures[i // 4] + 0.1 * torch.randn(3, 8, 8, generator=generator),) for i in range(count)
        ]
        fitted, held = kept_back(samples)
        sides = [{int((pictures - s[0].mean()).abs().argmin()) for s in side} for side in (fitted, held)]
        assert not sides[0] & sides[1]
        assert len(held) == count // 4 and len(fitted) + len(held) == count


def test_samples_that_have_nothing_in_common_are_kept_back_from_everywhere():
    generator = torch.Generator().manual_seed(0)
    samples = [
        (torch.randn(1, generator=generator) + torch.randn(64, generator=generator),) for _ in range(40)
    ]
    fitted, held = kept_back(samples)
    places = [next(i for i, s in enumerate(samples) if s is h) for h in held]
    assert [place // 4 for place in places] == list(range(10)) and len(fitted) == 30
    assert len({place % 4 for place in places}) == 4  # of data that repeat, as one of each class does, all
    assert kept_back([(1,), (2.0,)])[0] == [(1,), (2.0,)]  # numbers, and next to none of them


def test_every_sample_of_a_few_is_kept_back_once_and_neighbours_that_are_alike_together():
    generator = torch.Generator().manual_seed(0)
    for count in (2, 3, 7, 15, 30):
        samples = [(torch.randn(64, generator=generator),) for _ in range(count)]
        parts = folds_of(samples)
        assert sorted(i for part in parts for i in part) == list(range(count))
        assert len(parts) == min(4, count) and max(map(len, parts)) - min(map(len, parts)) <= 1
    alike = [(i // 4 + 0.1 * torch.randn(64, generator=generator),) for i in range(24)]
    assert [part[-1] - part[0] for part in folds_of(alike)] == [5] * 4


def test_how_much_few_samples_leave_uncertain_is_told():
    assert found(*[0.01] * 8).uncertain_db == pytest.approx(0.0, abs=1e-6)
    assert found(*[0.01] * 7, 0.2).uncertain_db > 2
    assert found(0.01).uncertain_db == 0.0
    errors = [0.0001, 0.001, 0.01, 0.1]
    few, many = found(*errors), found(*errors * 8)
    assert few.uncertain_db > 2 * many.uncertain_db > 1


def test_easy_samples_are_told_by_the_others():
    """Of those fitted to two have errors that none of those kept back has."""
    easy = found(0.001, 0.002, 0.004, 0.0005)
    mixed = found(0.001, 0.002, 0.004, 0.0005, 0.002, 0.001, 0.3, 0.2)
    assert compared(easy, mixed).output_db < easy.output_db - 5
    assert compared(easy, mixed).samples == 4  # the figure is of those kept back


def test_what_fitting_makes_better_is_not_taken_for_the_rest():
    """The same samples with a hundredth of the error, since the model was fitted to them."""
    held = found(0.1, 0.2, 0.4, 0.05)
    fitted = found(*(row[0][1] / 100 for row in held.outputs * 3))
    assert compared(held, fitted).output_db == pytest.approx(held.output_db, abs=0.1)


class Uneven(nn.Module):
    """Some of its samples are far larger than others: few of them say little of the rest."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 3), nn.SiLU(), nn.Conv2d(6, 6, 3), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).mean((2, 3))


def test_what_is_said_of_a_few_samples_is_what_others_find():
    differences = []
    for seed in range(4):
        generator, told = torch.Generator().manual_seed(seed), []
        sizes = torch.randn(72, generator=generator).mul(0.3).exp()
        data = [(s * torch.randn(1, 1, 8, 8, generator=generator),) for s in sizes]
        model = Uneven(seed).eval()
        quantized = quantize_model(model, data[:8], watch=told.append, keep_float_budget=0)
        with torch.no_grad():
            pairs = [(model(*x).double(), quantized(*x).double()) for x in data[8:]]
        noise, signal = (sum(float(t.square().sum()) for t in side)
                         for side in ([a - b for a, b in pairs], [a for a, _ in pairs]))  # fmt: skip
        differences.append(told[0].quality.output_db - 10 * math.log10(signal / noise))
        assert told[0].folded and told[0].quality.samples == 8
        assert differences[-1] < 2 * told[0].quality.uncertain_db
    assert sum(differences) / 4 < 4  # two samples kept back, in place of each once, say 20 too much


class Cancelling(nn.Module):
    """Its answer is a small difference of large numbers, which eight bits cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3))
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(self.features(x).mean((2, 3)))
        y = torch.flip(x, (1,))
        return (x + 30.0 * y) * (x - y) - 30.0 * (x - y) * y


def inputs(count: int = 16) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 3, 32, 32, generator=generator) * (1 + i % 3),) for i in range(count)]


def test_an_output_far_from_float_is_helped_without_being_asked():
    told = []
    model, data = Cancelling().eval(), inputs()
    quantized = quantize_model(model, data, watch=told.append)
    kept = told[0].as_dict()["kept_float"]
    assert kept is not None and kept["layers"] and not kept["asked"]
    assert kept["before_db"] < 20 and kept["after_db"] > kept["before_db"] + 3
    assert kept["cycles_after"] <= 1.05 * kept["cycles_before"]
    assert compile_model(quantized, data[0]).cycles() == kept["cycles_after"]
    quantize_model(model, data, watch=told.append, keep_float_budget=0)
    assert told[1].kept_float is None
    assert told[0].quality.output_db > told[1].quality.output_db + 3


def test_a_good_model_stays_in_int8():
    told = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 4)).eval()
    quantize_model(model, inputs(48), watch=told.append)
    assert told[0].quality.output_db > 20 and not told[0].folded and told[0].kept_float is None
