"""What is done when a module of ExecuTorch is loaded, without loading it: a hook in the import system.

The recipes are made known to `executorch.export`: its registry reads no entry points, and importing it with
`import openneutron` would load torch for every `--help`. Whoever imports both, in either order, finds them;
`tests/recipes/test_export.py` fails without the hook. And the Edge dialect reads its 138 KB of YAML with
libyaml, which takes 0.04 s in place of half a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module, util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_REGISTRY = "executorch.export"
_PROVIDER = "openneutron.recipes.provider"


_EDGE = "executorch.exir.dialects.edge._ops"


def register_when_loaded() -> None:
    """Register the recipes with ExecuTorch as soon as its registry is there; read its operators quickly."""
    if _REGISTRY in sys.modules:
        import_module(_PROVIDER)
    if not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch({_REGISTRY: _Registering, _EDGE: _Quick}))


class _Watch(MetaPathFinder):
    """Waits for the import of some modules; every other import passes by."""

    def __init__(self, loaders: dict[str, Callable[[Loader], Loader]]):
        self._loaders = {name: loader for name, loader in loaders.items() if name not in sys.modules}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        loader = self._loaders.pop(fullname, None)  # from here on it is found as others are
        if loader is None:
            return None
        spec = util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = loader(spec.loader)
        return spec


class _AsItsOwn(Loader):
    """Loads a module as its own loader does."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        self._loader.exec_module(module)


class _Registering(_AsItsOwn):
    """Then registers the recipes."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        import_module(_PROVIDER)


class _Quick(_AsItsOwn):
    """With libyaml, where it is installed; the module is left with what it would have had."""

    def exec_module(self, module: ModuleType) -> None:
        try:
            slow: Any = import_module("ruamel.yaml")
            quick: Any = import_module("yaml")
            loader = quick.CSafeLoader
        except (ImportError, AttributeError):
            super().exec_module(module)
            return

        class Reader:
            def __init__(self, typ: str):
                assert typ == "safe"

            def load(self, text: str) -> Any:
                return quick.load(text, Loader=loader)

        original = slow.YAML
        slow.YAML = Reader
        try:
            super().exec_module(module)
        finally:
            slow.YAML = original
        vars(module)["YAML"] = original
