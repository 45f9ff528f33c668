"""Test support: a module through quantization and partitioning, its delegates run by LiteRT's kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from openneutron import NeutronPartitioner, NeutronQuantizer
from openneutron.converter.protocol import Partition
from openneutron.fast_export.norm_patterns import norm_patterns
from openneutron.litert.ir import Graph
from openneutron.litert.reference import Reference
from openneutron.lower.convert import Lowered
from openneutron.ops.spec import Case
from openneutron.package.before_edge import take_partitions
from openneutron.package.program import delegates
from openneutron.quantize.export import export_model

Inputs = tuple[torch.Tensor, ...]


class Wrapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any):
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


class Bundle(torch.nn.Module):
    """Several cases side by side, so that one export serves them all."""

    def __init__(self, cases: Sequence[Case]):
        super().__init__()
        torch.manual_seed(0)
        made = [case.make(torch) for case in cases]
        self.parts = torch.nn.ModuleList([m if isinstance(m, torch.nn.Module) else Wrapped(m) for m in made])
        self.arity = [len(case.shapes) for case in cases]

    def forward(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        outputs, at = [], 0
        for part, count in zip(self.parts, self.arity, strict=True):
            outputs.append(part(*inputs[at : at + count]))
            at += count
        return tuple(outputs)


def make_inputs(cases: Sequence[Case], seed: int = 0, channels_last: bool = False) -> Inputs:
    """Random inputs of the cases' shapes."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for case, shape in ((c, s) for c in cases for s in c.shapes):
        x = (
            torch.rand(shape, generator=generator) * 4 + 1e-3
            if case.positive
            else torch.randn(shape, generator=generator)
        )
        inputs.append(x.to(memory_format=torch.channels_last) if channels_last and x.ndim == 4 else x)
    return tuple(inputs)


def quantize(
    module: torch.nn.Module, batches: Sequence[Inputs], *, qat: bool = False, **kwargs: Any
) -> torch.fx.GraphModule:
    """Int8 by PT2E: calibrated, or trained for a few steps of nothing."""
    exported = torch.export.export(module.train() if qat else module.eval(), batches[0]).module()
    quantizer = NeutronQuantizer(is_qat=qat, **kwargs)
    with norm_patterns():
        prepared = (prepare_qat_pt2e if qat else prepare_pt2e)(exported, quantizer)
        for batch in batches:
            prepared(*batch)
        if qat:
            move_exported_model_to_eval(prepared)
        return convert_pt2e(prepared)


@dataclass
class Delegated:
    """A quantized module, its program with the delegates in it, and its partitioner."""

    quantized: torch.fx.GraphModule
    program: ExportedProgram
    partitioner: NeutronPartitioner

    @property
    def modules(self) -> list[LoweredBackendModule]:
        return delegates(self.program.graph_module)

    @property
    def partitions(self) -> list[Partition]:
        return [module.meta["_delegate_info_meta"] for module in self.modules]

    @cached_property
    def reference(self) -> ReferenceProgram:
        """The lowered program, its delegates computed by LiteRT."""
        return ReferenceProgram(self.program, self.partitions)

    def run(self, inputs: Inputs) -> Any:
        """What the lowered program gives."""
        return self.reference.results(inputs)


class ReferenceProgram(torch.fx.Interpreter):
    """A lowered program, its delegates computed by LiteRT's reference kernels and the rest by PyTorch."""

    def __init__(self, exported: ExportedProgram, partitions: Sequence[Partition]):
        super().__init__(exported.graph_module)
        specs = exported.graph_signature.input_specs
        self.constants = [_constant_of(exported, spec) for spec in specs]  # None where the user's inputs go
        self.delegates = {
            id(module): (partition.lowered, module, Reference(partition.litert))
            for module, partition in zip(delegates(exported.graph_module), partitions, strict=True)
        }

    def results(self, inputs: Inputs) -> Any:
        """The program's outputs for its user's inputs."""
        users = iter(inputs)
        with torch.no_grad():
            return self.run(*(next(users) if value is None else value for value in self.constants))

    def outputs(self, inputs: Inputs) -> list[np.ndarray]:
        """The outputs as a runtime gives them."""
        return [value.numpy() for value in self.results(inputs)]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is executorch_call_delegate:
            lowered, module, reference = self.delegates[id(args[0])]
            return run_delegate(lowered, module, args[1:], reference)
        return super().call_function(target, args, kwargs)


def _constant_of(program: ExportedProgram, spec: Any) -> torch.Tensor | None:
    if spec.target is None:
        return None
    found = program.state_dict.get(spec.target, program.constants.get(spec.target))
    assert found is not None
    return found


def run_delegate(
    lowered: Lowered,
    module: LoweredBackendModule,
    inputs: Sequence[torch.Tensor],
    reference: Reference,
) -> list[torch.Tensor]:
    """One delegate as the runtime would run it: raw memory in and out."""
    arrays = []
    for x, tensor, flag in zip(inputs, lowered.graph.given, lowered.input_channels_last, strict=True):
        memory = x.permute(x.dim_order()).contiguous().numpy()
        memory = np.moveaxis(memory, 1, -1) if flag else memory
        arrays.append(np.ascontiguousarray(memory).reshape(tensor.shape))
    results = reference.run(arrays)
    outputs = []
    nodes = module.original_module.graph.output_node().args[0]
    for array, node, flag in zip(results, nodes, lowered.output_channels_last, strict=True):
        like = node.meta["val"]
        order = list(like.dim_order())
        memory = np.moveaxis(array, -1, 1) if flag else array
        physical = torch.from_numpy(np.ascontiguousarray(memory)).reshape([like.shape[d] for d in order])
        out = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        out.copy_(physical.permute([order.index(d) for d in range(like.ndim)]))
        outputs.append(out)
    return outputs


def delegate(
    quantized: torch.fx.GraphModule, inputs: Inputs, compile_spec: Any = None, **kwargs: Any
) -> Delegated:
    """Lower with NeutronPartitioner by way of ExecuTorch's Edge dialect, as its users do."""
    partitioner = NeutronPartitioner(compile_spec, **kwargs)
    manager = to_edge_transform_and_lower(
        torch.export.export(quantized, inputs), partitioner=[partitioner],
        compile_config=EdgeCompileConfig(_check_ir_validity=True),
    )  # fmt: skip
    return Delegated(quantized, manager.exported_program(), partitioner)


def take(quantized: torch.fx.GraphModule, inputs: Inputs, **kwargs: Any) -> Delegated:
    """Lower as `compile_model` does, with partitions taken before Edge: a fifth of the time."""
    partitioner = NeutronPartitioner(**kwargs)
    return Delegated(quantized, take_partitions(export_model(quantized, inputs), partitioner), partitioner)


def compute_nodes(program: ExportedProgram) -> list[str]:
    """Operators left outside delegates, quantize and dequantize steps aside."""
    from openneutron.partition.clusters import is_compute

    return [n.name for n in program.graph.nodes if is_compute(n) and n.target is not executorch_call_delegate]


def transposes(graph: Graph) -> int:
    """How many TRANSPOSE ops a LiteRT graph has."""
    return sum(op.kind.name == "TRANSPOSE" for op in graph.ops)


def output_steps(quantized: torch.fx.GraphModule) -> list[float]:
    """The step of each output's quantization, which comes straight from a dequantize; 1 of integers."""
    outputs = quantized.graph.output_node().args[0]
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    values = [node.meta.get("val") for node in outputs]  # dequantize steps that torchao puts in have none
    integers = [value is not None and not value.is_floating_point() for value in values]
    for node, is_integer in zip(outputs, integers, strict=True):
        assert is_integer or "dequantize_per_tensor" in str(node.target), f"{node} is not quantized"
    return [1.0 if i else float(node.args[1]) for node, i in zip(outputs, integers, strict=True)]


class _Seen(Exception):
    """Ends a lowering once the partitioner has seen the program."""


class _Looking(NeutronPartitioner):
    def partition(self, exported_program: Any) -> Any:
        super().partition(exported_program)
        raise _Seen


def look(
    quantized: torch.fx.GraphModule, inputs: Inputs, compile_spec: Any = None, **kwargs: Any
) -> NeutronPartitioner:
    """The partitioner after it has seen the program; nothing is converted, so no converter is needed."""
    partitioner = _Looking(compile_spec, **kwargs)
    with contextlib.suppress(_Seen):
        to_edge_transform_and_lower(torch.export.export(quantized, inputs), partitioner=[partitioner])
    return partitioner
