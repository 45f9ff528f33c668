"""OpenNeutron: the open eIQ Neutron backend for ExecuTorch. This module is the public API and nothing else.

Names are imported when first used: `import openneutron` loads neither torch nor ExecuTorch.
"""

# First: it decides where all others are found, `__future__` too.
import openneutron.environment.safe_path

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING, Any

from openneutron.environment.registration import register_when_loaded
from openneutron.environment.versions import require_executorch
from openneutron.fast_export.quick_imports import import_quickly

__version__ = "0.2.0"

_HOME = {
    "NeutronQuantizer": "quantize.quantizer",
    "calibrate_and_quantize": "quantize.loop",
    "NeutronPartitioner": "package.backend",  # registers the backend with ExecuTorch
    "NeutronBackend": "package.backend",
    "ArenaPlanning": "package.arena",
    "NeutronTargetSpec": "targets.spec",
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
    "NXPRecipeType": "recipes.provider",
    "NeutronRecipeConfig": "recipes.nxp",
    "CortexMRecipeType": "recipes.provider",
    "NpuCpuRecipeType": "recipes.provider",
    "IMXRT700RecipeType": "recipes.provider",
    "get_neutron_recipe": "recipes.build",
    "get_cortex_m_recipe": "recipes.build",
    "get_npu_cpu_recipe": "recipes.build",
    "get_imxrt700_recipe": "recipes.build",
    "combine_recipes": "recipes.combine",
    "load_program": "run.program",
    "sweep": "commands.searching.sweep",
    # Names of ExecuTorch's NXP backend, see docs/migrating.md
    "NeutronHWVersion": "targets.spec",
    "NeutronEdgePassManager": "passes.nxp_names",
    "RemoveAdditionalQDQClustersPass": "passes.nxp_names",
    "RemoveIOQuantOpsPass": "passes.nxp_names",
    "core_aten_ops_exception_list": "passes.nxp_names",
}

_LIGHT = ("targets", "options", "diagnostics")  # these need no ExecuTorch

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'openneutron' has no attribute '{name}'")
    if not _HOME[name].startswith(_LIGHT):
        require_executorch()
    return getattr(import_module(f"openneutron.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__


import_quickly()
register_when_loaded()  # the recipes, with executorch.export, whichever of the two is imported first


if TYPE_CHECKING:
    from openneutron.commands.searching.sweep import sweep
    from openneutron.diagnostics import Diagnostic, OpenNeutronError, Reject
    from openneutron.options import (
        CompileOptions,
        CustomDelegationOptions,
        NeutronCompileSpecBuilder,
        generate_neutron_compile_spec,
    )
    from openneutron.package.arena import ArenaPlanning
    from openneutron.package.backend import NeutronBackend, NeutronPartitioner
    from openneutron.passes.nxp_names import (
        NeutronEdgePassManager,
        RemoveAdditionalQDQClustersPass,
        RemoveIOQuantOpsPass,
        core_aten_ops_exception_list,
    )
    from openneutron.pipeline import compile_model, convert_qat, prepare_qat, quantize_model
    from openneutron.quantize.loop import calibrate_and_quantize
    from openneutron.quantize.quantizer import NeutronQuantizer
    from openneutron.recipes.build import (
        get_cortex_m_recipe,
        get_imxrt700_recipe,
        get_neutron_recipe,
        get_npu_cpu_recipe,
    )
    from openneutron.recipes.combine import combine_recipes
    from openneutron.recipes.nxp import NeutronRecipeConfig
    from openneutron.recipes.types import (
        CortexMRecipeType,
        IMXRT700RecipeType,
        NeutronRecipeType,
        NpuCpuRecipeType,
        NXPRecipeType,
    )
    from openneutron.run.program import load_program
    from openneutron.targets.spec import NeutronHWVersion, NeutronTargetSpec
