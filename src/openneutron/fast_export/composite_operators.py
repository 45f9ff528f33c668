"""Composite operators, which torch computes by others: listed anew only if one came, overridden only if met.

To decompose a program torch goes through all operators of all packages once for each package, and gives some
600 composite ones other kernels, to take them away again. Most of the graphs that ExecuTorch decomposes here,
those around the delegates, have no composite operator; many have nothing to decompose at all.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch._higher_order_ops.executorch_call_delegate import executorch_call_delegate
from torch._ops import OpOverload, _OpNamespace
from torch.export import ExportedProgram, decomp_utils, exported_program
from torch.fx import GraphModule, Node

from openneutron.fast_export.shortcuts import COMPOSITE_OPERATORS, Replaced
from openneutron.fx import copy_graph, op_name

_COMPOSITE = "CompositeImplicitAutograd"
_DELEGATES = (executorch_call_delegate, getitem)
_list: Any = exported_program._collect_all_valid_cia_ops  # type: ignore[attr-defined]
_decompose: Any = exported_program._decompose_exported_program
_listed: dict[object, set[OpOverload]] = {}


def _list_once() -> set[OpOverload]:
    """The composite operators of all packages, as long as none registers another."""
    packages = {name: getattr(torch.ops, name) for name in torch.ops._dir}
    sizes = [(name, len(each._dir)) for name, each in packages.items() if isinstance(each, _OpNamespace)]
    key = (*torch._C._dispatch_get_registrations_for_dispatch_key(_COMPOSITE), *sizes)
    if key not in _listed:
        _listed.clear()
        _listed[key] = _list()
    return _listed[key]


def _decompose_with_few(
    program: ExportedProgram,
    *,
    cia_to_decomp: dict[OpOverload, Callable[..., Any]],
    python_decomp_table: dict[OpOverload, Callable[..., Any]],
    **others: Any,
) -> ExportedProgram:
    """A decomposition; composite operators are overridden only if the graph's calls may lead to one.

    Delegates and the quantize and dequantize steps at their borders come out of it as they went in.
    """
    graphs = (m.graph for m in program.graph_module.modules() if isinstance(m, GraphModule))
    calls = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    if all(_is_border(node) for node in calls):
        return copy_graph(program)
    if all(_is_plain(node, python_decomp_table) for node in calls):
        cia_to_decomp = {}
    return _decompose(program, cia_to_decomp=cia_to_decomp, python_decomp_table=python_decomp_table, **others)


def _is_border(node: Node) -> bool:
    """A call of a delegate, a pick of its results, or a quantize or dequantize step."""
    return op_name(node).startswith("quantized_decomposed.") or node.target in _DELEGATES


def _is_plain(node: Node, decomposed: dict[OpOverload, Callable[..., Any]]) -> bool:
    """A call that is neither composite nor decomposed, so that no other operator comes of it."""
    if not isinstance(target := node.target, OpOverload):
        return target in _DELEGATES
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), _COMPOSITE)
    python = torch._C.DispatchKey.CompositeImplicitAutograd in target.py_kernels
    return not composite and not python and target not in decomposed


# Inside, programs are decomposed without looking at composite operators that they do not have.
composite_operators = Replaced(
    COMPOSITE_OPERATORS,
    (
        exported_program,
        {
            "_collect_all_valid_cia_ops": _list_once,
            "_decompose_exported_program": _decompose_with_few,
        },
    ),
    (decomp_utils, {"_collect_all_valid_cia_ops": _list_once}),
)
