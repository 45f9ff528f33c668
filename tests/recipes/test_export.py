"""The recipes through executorch.export, and every conflict as one error."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from executorch.export import ExportRecipe, StageType, export, recipe_registry

from openneutron import (
    CompileOptions,
    CortexMRecipeType,
    IMXRT700RecipeType,
    NeutronRecipeType,
    OpenNeutronError,
    combine_recipes,
    compile_model,
    get_cortex_m_recipe,
    get_imxrt700_recipe,
    get_neutron_recipe,
)
from openneutron.run.program import load_program
from tests.recipes.networks import NETWORKS

TYPES = (*NeutronRecipeType, *CortexMRecipeType, *IMXRT700RecipeType)
NETWORK = NETWORKS["ratio"]
SAMPLES = [NETWORK.sample(seed) for seed in range(3)]


def train(prepared: torch.fx.GraphModule) -> None:
    optimizer = torch.optim.SGD(prepared.parameters(), lr=1e-4)
    for sample in SAMPLES:
        optimizer.zero_grad()
        prepared(*sample).square().mean().backward()
        optimizer.step()


@pytest.mark.slow  # each recipe lowers, the QAT ones train
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.value)
def test_recipe_gives_a_program_that_runs(kind):
    arguments = {"train_fn": train} if kind.name.endswith("QAT") else {}
    session = export(NETWORK.build(), SAMPLES, ExportRecipe.get_recipe(kind, **arguments))
    quantized = session.get_stage_artifacts()[StageType.QUANTIZE].data["forward"]
    (found,) = load_program(session.get_pte_buffer()).run(SAMPLES[0])
    wanted = quantized(*SAMPLES[0]).detach().numpy()
    step = float(quantized.graph.output_node().args[0][0].args[1])
    assert np.abs(found - wanted).max() <= 8 * step


@pytest.mark.slow  # two recipes lower
def test_combining_neutron_and_cortex_m_gives_both():
    options = CompileOptions(operators_not_to_delegate=("aten::div",))
    recipe = combine_recipes([get_neutron_recipe(options=options), get_cortex_m_recipe()], "both")
    session = export(NETWORK.build(), SAMPLES, recipe)
    (method,) = session.get_executorch_program().execution_plan
    names = {op.name for op in method.operators}
    assert "cortex_m::quantized_div" in names and {d.id for d in method.delegates} == {"NeutronBackend"}
    assert not any(name.startswith("quantized_decomposed") for name in names)


@pytest.mark.parametrize("first", ["executorch.export", "openneutron"])
def test_registered_whichever_is_imported_first(first):
    code = (
        f"import {first}, openneutron, executorch.export as e, sys;"
        "assert 'openneutron.pipeline' not in sys.modules;"
        "print({'neutron', 'cortex_m', 'npu_cpu', 'imxrt700'} <= set(e.recipe_registry.list_backends()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("True"), done.stderr


def test_each_type_is_supported():
    for kind in TYPES:
        assert kind in recipe_registry.get_supported_recipes(kind.get_backend_name())


def other(prepared: torch.fx.GraphModule) -> None:
    """A second training function."""


NPU_OPTIONS = CompileOptions(operators_not_to_delegate=("aten::add",))
CONFLICTS = {
    "two training functions": lambda: combine_recipes(
        [get_neutron_recipe(qat=True, train_fn=train), get_cortex_m_recipe(qat=True, train_fn=other)]
    ),
    "training and calibration": lambda: combine_recipes(
        [get_neutron_recipe(qat=True, train_fn=train), get_cortex_m_recipe()]
    ),
    "two sets of options": lambda: combine_recipes(
        [get_neutron_recipe(), get_neutron_recipe(options=NPU_OPTIONS)]
    ),
    "nothing to combine": lambda: combine_recipes([]),
    "one operator for both": lambda: get_imxrt700_recipe(on_npu=["aten::add"], on_cpu=["aten.add.Tensor"]),
    "demanded and excluded": lambda: get_imxrt700_recipe(on_npu=["aten::add"], options=NPU_OPTIONS),
    "no training function": lambda: get_imxrt700_recipe(qat=True),
    "training function for PTQ": lambda: get_imxrt700_recipe(train_fn=train),
    "calibration inputs for QAT": lambda: get_neutron_recipe(
        qat=True, train_fn=train, calibration_inputs_fn=lambda: SAMPLES
    ),
}


@pytest.mark.parametrize("make", CONFLICTS.values(), ids=CONFLICTS)
def test_a_conflict_is_one_error(make):
    with pytest.raises(OpenNeutronError) as caught:
        make()
    found = caught.value.diagnostic
    assert found.code == "ON110" and found.problem and found.hint


def test_unknown_names():
    with pytest.raises(OpenNeutronError, match="ON112"):
        get_imxrt700_recipe(core="cortex-m3x")
    with pytest.raises(OpenNeutronError, match=r"ON103(.|\n)*Did you mean 'core'"):
        ExportRecipe.get_recipe(IMXRT700RecipeType.IMXRT700_INT8_PTQ, cores="cortex-m33")
    with pytest.raises(OpenNeutronError, match="ON109"):
        compile_model(NETWORK.build(), SAMPLES[0], recipe="imxrt7000")


@pytest.mark.slow  # a recipe of both processors lowers
def test_an_operator_demanded_from_the_npu():
    recipe, network = get_imxrt700_recipe(on_npu=["aten::atan"]), NETWORKS["middle"]
    with pytest.raises(OpenNeutronError, match="ON111"):
        export(network.build(), [network.sample(seed) for seed in range(3)], recipe)
