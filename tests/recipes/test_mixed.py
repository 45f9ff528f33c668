"""Mixed precision: what is kept float pays at the outputs, and stays within the budget."""

from __future__ import annotations

import pytest
import torch
from executorch.export import StageType, export
from torch import nn

from openneutron import combine_recipes, get_cortex_m_recipe, get_neutron_recipe
from openneutron.diagnostics import OpenNeutronError
from openneutron.pipeline import compile_model, quantize_model


class Squeezed(nn.Module):
    """One row of weights is far larger than the others, which a scale per tensor rounds away."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)
        self.last = nn.Linear(10, 10)
        with torch.no_grad():
            self.first.weight *= 3
            self.second.weight[0] *= 300
            self.last.weight[:, 0] /= 300

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x)).mean((2, 3))
        return self.last(torch.tanh(self.second(x) / 50) * 50)


def samples(count: int = 8) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(1, 3, 16, 16, generator=generator),) for _ in range(count)]


def test_what_pays_is_kept_float_and_the_program_stays_within_the_budget():
    found = []
    data = samples()
    quantized = quantize_model(
        Squeezed().eval(),
        data,
        per_channel=False,
        accuracy="fast",
        keep_float_budget=0.5,
        watch=found.append,
    )
    kept = found[0].kept_float
    assert kept["layers"] and kept["after_db"] > kept["before_db"] + 3
    assert kept["cycles_after"] <= kept["cycles_before"] * 1.5
    assert compile_model(quantized, data[0]).cycles() == kept["cycles_after"]
    budget = compile_model(
        Squeezed().eval(),
        data[0],
        calibration=data,
        per_channel=False,
        accuracy="fast",
        keep_float_budget=0.5,
    )
    assert budget.cycles() == kept["cycles_after"]


def _error(recipe) -> float:
    session = export(Squeezed().eval(), samples(1), recipe)
    quantized = session.get_stage_artifacts()[StageType.QUANTIZE].data["forward"]
    assert session.get_pte_buffer()
    with torch.no_grad():
        return float(sum((quantized(*x) - Squeezed()(*x)).square().sum() for x in samples()))


# Slow: the combined recipe lowers as well.
@pytest.mark.parametrize("combined", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_recipe_of_executorch_keeps_layers_float(combined):
    def error(budget: float) -> float:
        recipe = get_neutron_recipe(
            per_channel=False, accuracy="fast", keep_float_budget=budget, calibration_inputs_fn=samples
        )
        return _error(combine_recipes([recipe, get_cortex_m_recipe(accuracy="fast")]) if combined else recipe)

    assert error(0.5) < 0.5 * error(0.0)


def test_a_recipe_without_calibration_inputs_has_no_budget():
    with pytest.raises(OpenNeutronError, match="calibration_inputs_fn"):
        get_neutron_recipe(keep_float_budget=0.05)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"keep_float_budget": -1.0}, "a share of the cycles"),
        ({"qat": True, "train_fn": print}, "not for training"),
    ],
)
def test_a_budget_that_means_nothing_is_an_error(more, message):
    with pytest.raises(OpenNeutronError, match=message):
        quantize_model(Squeezed().eval(), samples(1), **{"keep_float_budget": 0.05, **more})
