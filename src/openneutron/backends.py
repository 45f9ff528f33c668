"""The recipes by name: which of the two backends quantizes and computes. Plain values, no heavy import."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.diagnostics import fail, nearest

DEFAULT_CORE = "cortex-m33"  # the CPU of an i.MX RT700


@dataclass(frozen=True)
class Recipe:
    """What a program is made of."""

    name: str
    neutron: bool
    cortex_m: bool
    help: str


NEUTRON = Recipe("neutron", True, False, "the NPU, the rest in float")
CORTEX_M = Recipe("cortex-m", False, True, "the CPU alone, in int8")
IMXRT700 = Recipe("imxrt700", True, True, "the NPU, the rest in int8 on the CPU")
RECIPES = {recipe.name: recipe for recipe in (NEUTRON, CORTEX_M, IMXRT700)}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; an unknown one is an error with a suggestion."""
    if name not in RECIPES:
        fail("ON109", "recipe", f"there is no recipe '{name}'", nearest(name, RECIPES))
    return RECIPES[name]
