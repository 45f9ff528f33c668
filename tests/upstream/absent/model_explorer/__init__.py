"""Stands in for `ai-edge-model-explorer`, which ExecuTorch's tests draw graphs with: an empty drawing.

Version 0.1.34 of the package has no longer the module that ExecuTorch 1.5.1 imports from it.
"""

from __future__ import annotations

from types import SimpleNamespace

from model_explorer.config import ModelExplorerConfig as config

consts = SimpleNamespace(DEFAULT_SETTINGS={})


def visualize_from_config(*_args, **_kwargs):
    """Show nothing."""


__all__ = ["config", "consts", "visualize_from_config"]
