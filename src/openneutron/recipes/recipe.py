"""The recipes by name: which of the two backends quantizes and computes. Plain values, no heavy import."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.diagnostics import fail, nearest


@dataclass(frozen=True)
class Recipe:
    """What a program is made of."""

    name: str
    neutron: bool
    cortex_m: bool
    help: str


NEUTRON = Recipe("neutron", True, False, "the NPU, the rest in float")
CORTEX_M = Recipe("cortex-m", False, True, "the CPU alone, in int8")
NPU_CPU = Recipe("npu+cpu", True, True, "the NPU, the rest in int8 on the CPU")
RECIPES = {recipe.name: recipe for recipe in (NEUTRON, CORTEX_M, NPU_CPU)}
ALIASES = {"imxrt700": NPU_CPU.name}  # as it was called when one chip was supported


def find_recipe(name: str) -> Recipe:
    """The recipe of that name or alias; an unknown one is an error with a suggestion."""
    name = ALIASES.get(name, name)
    if name not in RECIPES:
        fail("ON109", "recipe", f"there is no recipe '{name}'", nearest(name, RECIPES))
    return RECIPES[name]
