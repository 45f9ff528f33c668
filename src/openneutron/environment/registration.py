"""The recipes are made known to `executorch.export`, whichever of the two is imported first.

Its registry reads no entry points, and importing it with `import openneutron` would load torch for every
`--help`; `tests/recipes/test_export.py` fails without the hook.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from openneutron.environment.import_hooks import AsItsOwn, watch_imports

_REGISTRY = "executorch.export"
_PROVIDER = "openneutron.recipes.provider"


def register_when_loaded() -> None:
    """Register the recipes with ExecuTorch as soon as its registry is there."""
    if _REGISTRY in sys.modules:
        import_module(_PROVIDER)
    else:
        watch_imports({_REGISTRY: _Registering})


class _Registering(AsItsOwn):
    """Then registers the recipes."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        import_module(_PROVIDER)
