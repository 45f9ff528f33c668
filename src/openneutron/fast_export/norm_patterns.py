"""Patterns of batch norms behind convolutions: exported once, and only for the convolutions that there are.

For a model that was trained torchao exports 96 small networks: four kinds of convolution, each with and
without a bias, scales per channel, and so on, as what to look for and what to put in its place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.nn import functional as F
from torchao.quantization.pt2e import qat_utils

from openneutron.fast_export.shortcuts import NORM_PATTERNS, Replaced

_ATEN = torch.ops.aten
_CALLS = {
    F.conv1d: (_ATEN.conv1d.default, _ATEN.conv1d.padding),
    F.conv2d: (_ATEN.conv2d.default, _ATEN.conv2d.padding),
    F.conv_transpose1d: (_ATEN.conv_transpose1d.default,),
    F.conv_transpose2d: (_ATEN.conv_transpose2d.input,),
}
_exported: dict[Hashable, GraphModule] = {}


def _export_once(pattern: Any, inputs: tuple[Any, ...], is_cuda: bool = False, **more: Any) -> GraphModule:
    key = (_described(pattern.fn), *map(_described, inputs), is_cuda)
    key += tuple((name, _described(value)) for name, value in more.items())
    if key not in _exported:
        _exported[key] = _export(pattern, inputs, is_cuda, **more)
    return copy.deepcopy(_exported[key])


def _fold_if_there(m: GraphModule, conv_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> GraphModule:
    if any(m.graph.find_nodes(op="call_function", target=call) for call in _CALLS[conv_fn]):
        return _fold(m, conv_fn, *args, **kwargs)
    # What it does to a graph in which it finds nothing.
    m.graph.eliminate_dead_code()
    _torchao._duplicate_dequantize_node(m)
    _torchao._remove_extra_dequantize(m)
    m.delete_all_unused_submodules()
    m.graph.eliminate_dead_code()
    m.recompile()
    return m


def _described(value: Any) -> Hashable:
    """What an export depends on: of a tensor not its values, of a function what it has from around it."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    if code := getattr(value, "__code__", None):
        return (code, *(_described(cell.cell_contents) for cell in value.__closure__ or ()))
    return value


_torchao: Any = qat_utils
_export, _fold = _torchao._get_aten_graph_module_for_pattern, _torchao._fold_conv_bn_qat_helper
# Inside, torchao prepares or converts a model for training with few exports of patterns.
norm_patterns = Replaced(
    NORM_PATTERNS,
    (
        qat_utils,
        {"_get_aten_graph_module_for_pattern": _export_once, "_fold_conv_bn_qat_helper": _fold_if_there},
    ),
)
