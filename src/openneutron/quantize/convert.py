"""From a calibrated model to a quantized one, without what only training needs.

Where there is a batch norm, torchao's conversion exports the hundred patterns of a layer with one that
training may have left, some 12 seconds long. A calibrated model has none: what could be folded was folded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.ao.quantization.fx.utils import assert_and_get_unique_device
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e
from torchao.utils import _assert_and_get_unique_device

_BATCH_NORM = torch.ops.aten.batch_norm.default


def _normalized(*args: Any, **kwargs: Any) -> torch.Tensor:
    """A batch norm under a name that torchao does not know."""
    return _BATCH_NORM(*args, **kwargs)


def convert_calibrated(prepared: GraphModule) -> GraphModule:
    """torchao's `convert_pt2e` for a model that was calibrated, not trained."""
    converted = show_norms(convert_pt2e(hide_norms(prepared)))
    forget_devices()
    return converted


def forget_devices() -> None:
    """Let go of models: torch and torchao keep each that was asked for its device as long as they live."""
    assert_and_get_unique_device.cache_clear()
    _assert_and_get_unique_device.cache_clear()


def hide_norms(model: GraphModule) -> GraphModule:
    """Call batch norms by a name that torchao does not know; `show_norms` takes it back."""
    return _renamed(model, _BATCH_NORM, _normalized)


def show_norms(model: GraphModule) -> GraphModule:
    """Call batch norms by their own name again."""
    return _renamed(model, _normalized, _BATCH_NORM)


def _renamed(model: GraphModule, old: Any, new: Any) -> GraphModule:
    found = model.graph.find_nodes(op="call_function", target=old)
    for node in found:
        node.target = new
    if found:
        model.recompile()
    return model
