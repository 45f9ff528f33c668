"""The recipes of ExecuTorch's NXP backend by their names."""

from __future__ import annotations

import pytest
import torch
from executorch.export import ExportRecipe, export

from openneutron import CustomDelegationOptions, NeutronRecipeConfig, NXPRecipeType, load_program
from openneutron.diagnostics import OpenNeutronError


def recipe(kind=NXPRecipeType.INT8_PTQ_NEUTRON, **fields):
    return ExportRecipe.get_recipe(kind, neutron_recipe_config=NeutronRecipeConfig((1, 2, 6, 6), **fields))


def test_int8_at_both_ends_and_run_by_the_simulator():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU()).eval()
    inputs = (torch.randn(1, 2, 6, 6),)
    session = export(module, [inputs], recipe(remove_quant_io_ops=True))
    program = load_program(session.get_pte_buffer())
    (spec,) = program.method().inputs
    assert "int8" in str(spec) and [d.backend for d in program.method().delegates] == ["NeutronBackend"]


def test_fields_reach_the_recipe():
    options = CustomDelegationOptions(allow_no_op_partitions=True)
    made = recipe(
        custom_delegation_options=options,
        operators_not_to_delegate=["aten::relu"],
        get_quantizer_fn=lambda: "mine",
    )
    (partitioner,) = made.lowering_recipe.partitioners
    assert made.name == "nxp_int8_ptq_neutron" and made.quantization_recipe.quantizers == ["mine"]
    assert partitioner.custom_delegation_options == options
    assert partitioner.options.operators_not_to_delegate == ("aten::relu",)


def test_without_delegation_everything_stays_on_the_cpu():
    made = recipe(NXPRecipeType.INT8_PTQ_NO_DELEGATE)
    assert made.lowering_recipe.partitioners is None and made.aten_transform_passes is None
    made = recipe(NXPRecipeType.INT8_QAT_NO_DELEGATE, train_fn=lambda model: None)
    assert made.quantization_recipe.is_qat


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "is missing"),
        ({"neutron_recipe_config": {}}, "must be a NeutronRecipeConfig"),
        ({"neutron_recipe_confg": NeutronRecipeConfig()}, "neutron_recipe_config"),
        ({"neutron_recipe_config": NeutronRecipeConfig(target="imxrt7000")}, "imxrt700"),
    ],
)
def test_wrong_arguments_are_said(arguments, says):
    with pytest.raises(OpenNeutronError, match=says):
        ExportRecipe.get_recipe(NXPRecipeType.INT8_PTQ_NEUTRON, **arguments)


def test_training_needs_a_function():
    with pytest.raises(OpenNeutronError, match="train_fn"):
        recipe(NXPRecipeType.INT8_QAT_NEUTRON)
