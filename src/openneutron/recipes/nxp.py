"""The recipes of ExecuTorch's NXP backend by their names, made of OpenNeutron's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from executorch.export import ExportRecipe

from openneutron.diagnostics import fail, nearest
from openneutron.options import CompileOptions, CustomDelegationOptions
from openneutron.passes.nxp_names import RemoveIOQuantOpsPass
from openneutron.recipes.build import Train, get_neutron_recipe
from openneutron.recipes.types import NXPRecipeType
from openneutron.targets.table import DEFAULT_TARGET

CONFIG = "neutron_recipe_config"  # the argument that has all of it


@dataclass
class NeutronRecipeConfig:
    """What all recipes of `NXPRecipeType` are asked with; the fields are ExecuTorch's NXP backend's."""

    input_spec: Any = None
    """Shapes of the inputs. Not needed here: the example inputs that are exported have them."""
    target: str = DEFAULT_TARGET
    operators_not_to_delegate: list[str] | None = None
    intermediates_dir: str | None = None
    get_quantizer_fn: Callable[[], Any] | None = None
    """Makes a quantizer other than `NeutronQuantizer`."""
    custom_delegation_options: CustomDelegationOptions | None = None
    remove_quant_io_ops: bool = False
    """Inputs and outputs are int8."""
    use_quant_state_dict: bool = True
    """Not needed here: a program carries its constants."""
    use_neutron_for_format_conversion: bool = True
    fetch_constants_to_sram: bool = False
    dump_kernel_selection_code: bool = False
    use_profiling: bool = False
    train_fn: Train | None = None
    """Trains the prepared model; for QAT, which fails without it. Others leave it alone."""


_OPTIONS = tuple({f.name for f in fields(CompileOptions)} & {f.name for f in fields(NeutronRecipeConfig)})


def get_nxp_recipe(kind: NXPRecipeType, **arguments: Any) -> ExportRecipe:
    """The recipe of a type; its one argument is `neutron_recipe_config`."""
    for name in arguments:
        if name != CONFIG:
            fail("ON103", str(kind.value), f"there is no argument '{name}'", nearest(name, [CONFIG]))
    config = arguments.get(CONFIG)
    if not isinstance(config, NeutronRecipeConfig):
        what = (
            "is missing" if config is None else f"must be a NeutronRecipeConfig (got {type(config).__name__})"
        )
        fail("ON104", f"{kind.value}: {CONFIG}", what, "from openneutron import NeutronRecipeConfig")
    qat, delegate = "QAT" in kind.name, "NO_DELEGATE" not in kind.name
    given = {name: getattr(config, name) for name in _OPTIONS}
    options = CompileOptions(config=config.target, **given)
    recipe = get_neutron_recipe(qat=qat, options=options, train_fn=config.train_fn if qat else None)
    recipe.name = str(kind.value)
    quantization, lowering = recipe.quantization_recipe, recipe.lowering_recipe
    assert quantization is not None and lowering is not None and lowering.partitioners
    if config.get_quantizer_fn is not None:
        quantization.quantizers = [config.get_quantizer_fn()]
    if config.custom_delegation_options is not None:
        lowering.partitioners[0].custom_delegation_options = config.custom_delegation_options
    if config.remove_quant_io_ops:
        steps = lowering.edge_manager_transform_passes or []
        lowering.edge_manager_transform_passes = [lambda manager: [RemoveIOQuantOpsPass(manager)], *steps]
    if not delegate:
        recipe.aten_transform_passes = lowering.partitioners = None
    return recipe
