"""Providers for ExecuTorch's recipe registry, one for each family of recipes.

They are registered when this module is imported, so it loads nothing but ExecuTorch's registry: what makes a
recipe is imported when one is asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from executorch.export import BackendRecipeProvider, ExportRecipe, RecipeType, recipe_registry

from openneutron.diagnostics import fail, nearest
from openneutron.recipes.types import (
    CortexMRecipeType,
    IMXRT700RecipeType,
    NeutronRecipeType,
    NpuCpuRecipeType,
    NXPRecipeType,
)


class Provider(BackendRecipeProvider):
    """Makes the recipes of one type; an argument it does not know is an error."""

    def __init__(self, kind: type[RecipeType], function: str):
        self._kind = kind
        self._function = function

    @property
    def backend_name(self) -> str:
        """The name it is registered by."""
        return self._kind.get_backend_name()

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Its recipes: for calibration and for training."""
        return list(self._kind.__members__.values())

    def create_recipe(self, recipe_type: RecipeType, **kwargs: Any) -> ExportRecipe | None:
        """The recipe, or None if it is not one of this provider's."""
        if recipe_type not in self.get_supported_recipes():
            return None
        make = getattr(import_module("openneutron.recipes.build"), self._function)
        parameters = set(inspect.signature(make).parameters) - {"qat"}
        for name in kwargs:
            if name not in parameters:
                where, problem = str(recipe_type.value), f"there is no argument '{name}'"
                fail("ON103", where, problem, nearest(name, parameters))
        recipe: ExportRecipe = make(qat=recipe_type.name.endswith("QAT"), **kwargs)
        return recipe


class NXPProvider(Provider):
    """The recipes of ExecuTorch's NXP backend; newer releases register their own, which are left alone."""

    def create_recipe(self, recipe_type: RecipeType, **kwargs: Any) -> ExportRecipe | None:
        """The recipe, or None if it is not one of this provider's."""
        if recipe_type not in self.get_supported_recipes():
            return None
        make = getattr(import_module("openneutron.recipes.nxp"), self._function)
        recipe: ExportRecipe = make(recipe_type, **kwargs)
        return recipe


PROVIDERS = (
    Provider(NeutronRecipeType, "get_neutron_recipe"),
    Provider(CortexMRecipeType, "get_cortex_m_recipe"),
    Provider(NpuCpuRecipeType, "get_npu_cpu_recipe"),
    Provider(IMXRT700RecipeType, "get_npu_cpu_recipe"),
    NXPProvider(NXPRecipeType, "get_nxp_recipe"),
)


def register() -> None:
    """Make the recipes known to ExecuTorch; doing it twice changes nothing."""
    taken = set(recipe_registry.list_backends())
    for provider in PROVIDERS:
        if isinstance(provider, NXPProvider) and provider.backend_name in taken:
            continue
        recipe_registry.register_backend_recipe_provider(provider)


register()
