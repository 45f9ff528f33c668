"""How a model is quantized, as one value: beside `CompileOptions`, which say how it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.export import ExportedProgram
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron.options import CompileOptions
from openneutron.quantize.annotation.sharing import NextState
from openneutron.quantize.export import export_model
from openneutron.quantize.loop import prepare
from openneutron.quantize.plan import BALANCED, AccuracyPlan, find_plan
from openneutron.quantize.refine import calibrate
from openneutron.quantize.samples import EXAMPLES, spread_over
from openneutron.recipes.mixed import FloatBudget
from openneutron.recipes.parts import make_quantizer
from openneutron.recipes.recipe import NEUTRON


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of `quantize_model` that say what is done, and those the result will be compiled with."""

    per_channel: bool | None = None
    accuracy: str | AccuracyPlan = BALANCED
    keep_float: Collection[str] = ()
    keep_float_budget: float | None = None
    remainder: bool = False
    recipe: str = NEUTRON.name
    core: str | None = None
    compiling: CompileOptions = field(default_factory=CompileOptions)

    @property
    def plan(self) -> AccuracyPlan:
        """What is done for accuracy."""
        return find_plan(self.accuracy)

    @property
    def budget(self) -> FloatBudget:
        """What may be spent on layers that stay float."""
        return FloatBudget(self.keep_float_budget, self.compiling, self.recipe, self.core)

    def quantizer(
        self,
        examples: Sequence[tuple[Any, ...]],
        qat: bool = False,
        states: Mapping[str, NextState] | None = None,
    ) -> Quantizer:
        """The recipe's quantizer; examples show it sizes."""
        return make_quantizer(
            self.recipe, self.compiling, qat, self.per_channel, self.keep_float, examples, states
        )


def choose_float(
    module: Any | ExportedProgram,
    samples: Sequence[tuple[Any, ...]],
    how: QuantizeOptions,
    progress: Callable[[float], None] = lambda part: None,
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The layers that are worth keeping float, for at most the budget's share of the estimated cycles more.

    For who quantizes the model anew with them; what they give and cost comes with them.
    """
    quantizer = how.quantizer(spread_over(samples, EXAMPLES))
    prepared = prepare(export_model(module, samples[0]), quantizer)
    prepared, refined = calibrate(prepared, samples, how.plan)
    kept = how.budget.spend(prepared, refined, progress)[1].kept_float
    assert kept is not None  # a budget was given
    return tuple(kept["layers"]), kept
