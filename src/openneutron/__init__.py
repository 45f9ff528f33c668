"""OpenNeutron: the open eIQ Neutron backend for ExecuTorch. This module is the public API and nothing else.

Names are imported when first used: `import openneutron` loads neither torch nor ExecuTorch.
"""

from __future__ import annotations

import openneutron._safe_path  # first: it decides where all others are found

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING, Any

from openneutron._registration import register_when_loaded
from openneutron.compat import require_executorch

__version__ = "0.2.0"

_HOME = {
    "NeutronQuantizer": "quantize.quantizer",
    "calibrate_and_quantize": "quantize.loop",
    "NeutronPartitioner": "package.backend",  # registers the backend with ExecuTorch
    "NeutronBackend": "package.backend",
    "ArenaPlanning": "package.arena",
    "NeutronTargetSpec": "target",
    "CompileOptions": "options",
    "CustomDelegationOptions": "options",
    "NeutronCompileSpecBuilder": "options",
    "generate_neutron_compile_spec": "options",
    "Diagnostic": "diagnostics",
    "OpenNeutronError": "diagnostics",
    "Reject": "diagnostics",
    "compile_model": "pipeline",
    "quantize_model": "pipeline",
    "prepare_qat": "pipeline",
    "convert_qat": "pipeline",
    "NeutronRecipeType": "recipes.provider",
    "CortexMRecipeType": "recipes.provider",
    "IMXRT700RecipeType": "recipes.provider",
    "get_neutron_recipe": "recipes.build",
    "get_cortex_m_recipe": "recipes.build",
    "get_imxrt700_recipe": "recipes.build",
    "combine_recipes": "recipes.combine",
    "load_program": "run.program",
    "sweep": "commands.sweep",
    # Names of ExecuTorch's NXP backend, see docs/migrating.md
    "NeutronHWVersion": "target",
    "NeutronEdgePassManager": "drop_in",
    "RemoveAdditionalQDQClustersPass": "drop_in",
    "RemoveIOQuantOpsPass": "drop_in",
    "core_aten_ops_exception_list": "drop_in",
}

_LIGHT = ("target", "options", "diagnostics")  # these need no ExecuTorch

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'openneutron' has no attribute '{name}'")
    if not _HOME[name].startswith(_LIGHT):
        require_executorch()
    return getattr(import_module(f"openneutron.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__


register_when_loaded()  # the recipes, with executorch.export, whichever of the two is imported first


if TYPE_CHECKING:
    from openneutron.commands.sweep import sweep
    from openneutron.diagnostics import Diagnostic, OpenNeutronError, Reject
    from openneutron.drop_in import (
        NeutronEdgePassManager,
        RemoveAdditionalQDQClustersPass,
        RemoveIOQuantOpsPass,
        core_aten_ops_exception_list,
    )
    from openneutron.options import (
        CompileOptions,
        CustomDelegationOptions,
        NeutronCompileSpecBuilder,
        generate_neutron_compile_spec,
    )
    from openneutron.package.arena import ArenaPlanning
    from openneutron.package.backend import NeutronBackend, NeutronPartitioner
    from openneutron.pipeline import compile_model, convert_qat, prepare_qat, quantize_model
    from openneutron.quantize.loop import calibrate_and_quantize
    from openneutron.quantize.quantizer import NeutronQuantizer
    from openneutron.recipes.build import get_cortex_m_recipe, get_imxrt700_recipe, get_neutron_recipe
    from openneutron.recipes.combine import combine_recipes
    from openneutron.recipes.types import CortexMRecipeType, IMXRT700RecipeType, NeutronRecipeType
    from openneutron.run.program import load_program
    from openneutron.target import NeutronHWVersion, NeutronTargetSpec
