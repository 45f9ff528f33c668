"""Names of ExecuTorch's NXP backend that its example script and tests import; what they do is OpenNeutron's.

docs/migrating.md says where they are found there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.pass_manager import PassManager
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

from openneutron.ops import TABLE
from openneutron.passes.base import run_passes
from openneutron.passes.edge import REQUANTIZATION_PASSES, io_passes, run_edge_passes
from openneutron.passes.functional import restore_names


def _overload(name: str) -> OpOverload | None:
    """The operator of a name such as `aten.prelu.default`."""
    space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet, None), overload, None)


# What Edge may keep though it is no core operator, since the operator table has it: for EdgeCompileConfig's
# _core_aten_ops_exception_list.
core_aten_ops_exception_list = [
    op
    for spec in TABLE
    for op in map(_overload, spec.names)
    if op is not None and torch.Tag.core not in op.tags
]


class NeutronEdgePassManager(PassManager):
    """Passes on an Edge program: OpenNeutron's own, which run before partitioning, or those that are given.

    For `to_edge_transform_and_lower(transform_passes=...)` and `EdgeProgramManager.transform`.
    """

    def __init__(self, passes: Sequence[Any] | None = None):
        super().__init__([run_edge_passes] if passes is None else list(passes))


class RemoveAdditionalQDQClustersPass:
    """Removes quantize and dequantize steps that undo one another, after the partitions have been taken."""

    def __call__(self, graph_module: GraphModule) -> PassResult:
        """Run on one method."""
        restore_names(graph_module)
        return PassResult(run_passes(graph_module, REQUANTIZATION_PASSES), True)


class RemoveIOQuantOpsPass:
    """Makes the inputs and outputs of a program int8: the steps at its borders go."""

    def __init__(self, edge_program_manager: EdgeProgramManager):
        self._manager = edge_program_manager

    def __call__(self, graph_module: GraphModule) -> PassResult:
        """Run on the method `forward`; the parameters that a caller needs are recorded in the program."""
        for step in io_passes(self._manager, "forward"):
            graph_module = step(graph_module).graph_module
        return PassResult(graph_module, True)
