"""Combining recipes, every conflict an error: `ExportRecipe.combine` alone keeps the first of some fields.

Neutron's recipe and Cortex-M's become the one for both: two quantizers side by side would both claim
an operator, so that one that knows both takes their place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from executorch.export import ExportRecipe, LoweringRecipe, QuantizationRecipe

from openneutron.cortex_m.combined import CombinedQuantizer
from openneutron.cortex_m.lowering import edge_compile_config
from openneutron.cortex_m.quantizer import CortexMInt8Quantizer
from openneutron.diagnostics import fail
from openneutron.package.backend import NeutronPartitioner
from openneutron.quantize.quantizer import NeutronQuantizer
from openneutron.recipes.build import MixedPrecision
from openneutron.recipes.recipe import NPU_CPU


def combine_recipes(recipes: Sequence[ExportRecipe], name: str | None = None) -> ExportRecipe:
    """One recipe of several; what they do not agree on is an error, never dropped."""
    if not recipes:
        fail("ON110", "combine_recipes", "there are no recipes to combine", "Give at least one.")
    quantizations = [r.quantization_recipe for r in recipes if r.quantization_recipe is not None]
    lowerings = [r.lowering_recipe for r in recipes if r.lowering_recipe is not None]
    _agree("training functions", (q.train_fn for q in quantizations), "Give train_fn to one of the recipes.")
    _agree("calibration inputs", (q.calibration_inputs_fn for q in quantizations), "Give them to one recipe.")
    _agree("modes of quantization", (q.is_qat for q in quantizations), "Make all INT8_PTQ or all INT8_QAT.")
    _agree("batch sizes", (q.dynamic_batch_size for q in quantizations), "Set dynamic_batch_size in all.")
    _agree("backend configurations", (r.executorch_backend_config for r in recipes), "Give it once.")
    options = [p.options for p in _partitioners(lowerings) if isinstance(p, NeutronPartitioner)]
    _agree("sets of options for Neutron", options, "Give both recipes the same CompileOptions.")
    if _is_combination(quantizations):
        recipes = _joined(recipes)
    try:
        return ExportRecipe.combine(list(recipes), recipe_name=name)
    except ValueError as error:
        fail("ON110", "combine_recipes", str(error), "Make the recipes agree.")


def _agree(what: str, values: Iterable[Any], hint: str) -> None:
    answers: list[Any] = []
    for value in values:
        if value is not None and value not in answers:
            answers.append(value)
    if len(answers) > 1:
        fail("ON110", "combine_recipes", f"the recipes have {len(answers)} different {what}", hint)


def _partitioners(lowerings: Iterable[LoweringRecipe]) -> list[Any]:
    partitioners: list[Any] = []
    for lowering in lowerings:
        given = lowering.partitioners or []
        partitioners += [p for ps in given.values() for p in ps] if isinstance(given, dict) else given
    return partitioners


def _is_combination(quantizations: Iterable[QuantizationRecipe]) -> bool:
    kinds = {type(q) for recipe in quantizations for q in recipe.quantizers or ()}
    return {NeutronQuantizer, CortexMInt8Quantizer} <= kinds


def _joined(recipes: Sequence[ExportRecipe]) -> list[ExportRecipe]:
    """Neutron's recipe with the quantizer for both, and of Cortex-M's what the other does not have."""
    result = []
    for recipe in recipes:
        quantization, lowering = recipe.quantization_recipe, recipe.lowering_recipe
        first = quantization is not None and quantization.quantizers and quantization.quantizers[0]
        if isinstance(first, NeutronQuantizer):
            options = next(
                p.options
                for p in _partitioners(r.lowering_recipe for r in recipes if r.lowering_recipe)
                if isinstance(p, NeutronPartitioner)
            )
            both = CombinedQuantizer(options, first.is_qat, per_channel=first.per_channel)
            before = [
                replace(p, quantizer=both, how=replace(p.how, recipe=NPU_CPU.name))
                if isinstance(p, MixedPrecision)
                else p
                for p in quantization.pre_prepare_passes or ()
            ]
            quantization = replace(
                quantization, quantizers=[both, *quantization.quantizers[1:]], pre_prepare_passes=before
            )
            lowering = lowering and replace(lowering, edge_compile_config=edge_compile_config())
        elif isinstance(first, CortexMInt8Quantizer):
            train, samples = (
                [getattr(r.quantization_recipe, field) for r in recipes if r.quantization_recipe]
                for field in ("train_fn", "calibration_inputs_fn")
            )
            # The other recipe's quantizer and passes do it all; only functions it lacks are brought along.
            keep = quantization.train_fn if train.count(quantization.train_fn) == 1 else None
            inputs = quantization.calibration_inputs_fn
            inputs = inputs if samples.count(inputs) == 1 else None
            quantization = QuantizationRecipe(
                is_qat=first.is_qat,
                train_fn=keep,
                calibration_inputs_fn=inputs,
                dynamic_batch_size=quantization.dynamic_batch_size,
            )
        result.append(replace(recipe, quantization_recipe=quantization, lowering_recipe=lowering))
    return result
