"""A program that is nothing but one delegate: how a LiteRT model becomes a .pte."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule

from openneutron.converter.protocol import Partition
from openneutron.litert.ir import Tensor
from openneutron.partition.partitioner import BACKEND_ID


class _Signature(torch.nn.Module):
    """Takes and returns tensors of given shapes and types; what it computes is nobody's concern."""

    def __init__(self, outputs: list[Tensor]):
        super().__init__()
        self._outputs = [(t.shape, getattr(torch, t.dtype)) for t in outputs]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in self._outputs)


class _Call(torch.nn.Module):
    def __init__(self, lowered: LoweredBackendModule):
        super().__init__()
        self.lowered = lowered

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.lowered(*inputs)


def embed(partition: Partition, payload: bytes, specs: list[CompileSpec]) -> EdgeProgramManager:
    """An Edge program that calls the delegate with its own inputs and returns its outputs."""
    graph = partition.lowered.graph
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=False)
    inputs = tuple(torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in graph.given)
    signature = to_edge(torch.export.export(_Signature(graph.returned), inputs), compile_config=config)
    lowered = LoweredBackendModule(signature.exported_program(), BACKEND_ID, payload, specs)
    lowered.meta = {"_delegate_info_meta": partition}
    edge = to_edge(torch.export.export(_Call(lowered), inputs), compile_config=config)
    for module in edge.exported_program().graph_module.children():
        if isinstance(module, LoweredBackendModule):
            module.meta = lowered.meta
    return edge
