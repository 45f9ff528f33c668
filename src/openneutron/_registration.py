"""Making the recipes known to `executorch.export` without importing it: now if it is loaded, else then.

A hook in the import system, because the plain things do not do: ExecuTorch's registry reads no entry points,
and importing it with `import openneutron` would load torch for every `--help`. Whoever imports both, in
either order, finds the recipes; `tests/recipes/test_export.py` fails without the hook.
"""

from __future__ import annotations

import sys
from importlib import import_module, util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_REGISTRY = "executorch.export"
_PROVIDER = "openneutron.recipes.provider"


def register_when_loaded() -> None:
    """Register the recipes with ExecuTorch as soon as its registry is there."""
    if _REGISTRY in sys.modules:
        import_module(_PROVIDER)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch(MetaPathFinder):
    """Waits for the import of ExecuTorch's registry; every other import passes by."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Loads a module as its own loader does, then registers the recipes."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        import_module(_PROVIDER)
