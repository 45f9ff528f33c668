"""The core a program's CPU part is compiled for."""

from __future__ import annotations

from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig

from openneutron.diagnostics import fail, nearest


def find_core(name: str) -> CortexMTargetConfig:
    """The configuration of that core; an unknown one is an error with a suggestion."""
    names = [CortexMTargetConfig(cpu).target_string for cpu in CortexM]
    if name not in names:
        fail("ON112", "core", f"there is no core '{name}'", nearest(name, names))
    return CortexMTargetConfig.from_target_string(name)
