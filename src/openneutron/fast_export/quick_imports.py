"""What ExecuTorch loads and does not need: 138 KB of YAML read slowly, and torch's compiler Inductor.

The Edge dialect reads its YAML with libyaml, which takes 0.04 s in place of half a second; a pass of
torch.export's that ExecuTorch imports brings in Inductor only when there is something for it to do.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from openneutron.environment.import_hooks import AsItsOwn, watch_imports
from openneutron.fast_export.shortcuts import IMPORTS, is_taken

_EDGE = "executorch.exir.dialects.edge._ops"
_FUNCTIONALIZED = "torch.export._remove_auto_functionalized_pass"
_INDUCTOR = "torch._inductor.fx_passes.post_grad"


def import_quickly() -> None:
    """Let both be loaded so, whenever that will be."""
    if is_taken(IMPORTS):
        watch_imports({_EDGE: _WithLibyaml, _FUNCTIONALIZED: _WithoutInductor})


class _WithLibyaml(AsItsOwn):
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


class _WithoutInductor(AsItsOwn):
    """Without Inductor, which is a second of every start: it is imported when a graph has what it removes."""

    def exec_module(self, module: ModuleType) -> None:
        if _INDUCTOR in sys.modules:
            super().exec_module(module)
            return

        def decompose_auto_functionalized(graph: Any) -> Any:
            if any("auto_functionalized" in str(node.target) for node in graph.nodes):
                return import_module(_INDUCTOR).decompose_auto_functionalized(graph)
            return None

        stand_in = ModuleType(_INDUCTOR)
        vars(stand_in)["decompose_auto_functionalized"] = decompose_auto_functionalized
        sys.modules[_INDUCTOR] = stand_in
        try:
            super().exec_module(module)
        finally:
            del sys.modules[_INDUCTOR]
