"""Hooks on imports: what is done when another package's module is loaded, without loading it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Hooks = dict[str, Callable[[Loader], Loader]]


def watch_imports(hooks: Hooks) -> None:
    """Load the modules of these names with the loaders made for them, whenever that will be."""
    sys.meta_path.insert(0, _Watch(hooks))


class _Watch(MetaPathFinder):
    """Waits for the import of some modules; every other import passes by."""

    def __init__(self, loaders: Hooks):
        self._loaders = {name: loader for name, loader in loaders.items() if name not in sys.modules}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        loader = self._loaders.pop(fullname, None)  # from here on it is found as others are
        if loader is None:
            return None
        spec = util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = loader(spec.loader)
        return spec


class AsItsOwn(Loader):
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
