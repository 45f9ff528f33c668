"""Test support: a program whose inputs and outputs are memory of the caller, as microcontrollers like it."""

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass

from openneutron import NeutronPartitioner, quantize_model


def unplanned_program() -> bytes:
    """A convolution, lowered by ExecuTorch's own functions."""
    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 16, 16),)
    quantized = quantize_model(torch.nn.Conv2d(3, 8, 3).eval(), [inputs])
    exported = torch.export.export(quantized, inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[NeutronPartitioner()])
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    return bytes(edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).buffer)
