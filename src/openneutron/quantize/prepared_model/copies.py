"""Copies of a prepared model for trials, made quickly: recurrent networks have a thousand observers."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

from torch.fx import GraphModule
from torchao.quantization.pt2e import DerivedObserverOrFakeQuantize, FixedQParamsObserver

from openneutron.fast_export.code_on_demand import share_code
from openneutron.quantize.prepared_model.model import observers


def copied(prepared: GraphModule) -> GraphModule:
    """The model with a graph and observers of its own; constants are shared until they are replaced."""
    inside = {id(tensor) for observer in observers(prepared).values() for tensor in _tensors(observer)}
    shared = (tensor for tensor in _tensors(prepared) if id(tensor) not in inside)
    made = copy.deepcopy(prepared, {id(tensor): tensor for tensor in shared})
    share_code(prepared, made)
    return made


def _tensors(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def join_stateless(prepared: GraphModule) -> GraphModule:
    """Let observers that see nothing be one where they say the same: fixed parameters, and derived ones."""
    first: dict[Hashable, Any] = {}
    for name, observer in observers(prepared).items():
        if (key := _said(observer)) is not None:
            prepared._modules[name] = first.setdefault(key, observer)
    return prepared


def _said(observer: Any) -> Hashable | None:
    """What the parameters of an observer without a state follow from."""
    if type(observer) not in (FixedQParamsObserver, DerivedObserverOrFakeQuantize):
        return None
    common = (type(observer), observer.dtype, observer.quant_min, observer.quant_max, observer.qscheme)
    if type(observer) is FixedQParamsObserver:
        return *common, float(observer.scale), int(observer.zero_point)
    return *common, tuple(map(id, observer.obs_or_fqs)), observer.derive_qparams_fn, observer.ch_axis
