"""Test support: a module through quantization and partitioning, its delegates run by LiteRT's kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from openneutron import NeutronPartitioner, NeutronQuantizer
from openneutron.fast_export.norm_patterns import norm_patterns
from openneutron.litert.ir import Graph
from openneutron.litert.reference import Reference
from openneutron.lower.convert import Lowered, lower_program
from openneutron.ops.spec import Case

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
    """A quantized module, its lowered program and its partitioner."""

    quantized: torch.fx.GraphModule
    manager: EdgeProgramManager
    partitioner: NeutronPartitioner

    @property
    def modules(self) -> list[LoweredBackendModule]:
        graph = self.manager.exported_program().graph_module
        return [m for m in graph.children() if isinstance(m, LoweredBackendModule)]

    def lowered(self) -> list[Lowered]:
        options = self.partitioner.options
        return [
            lower_program(m.original_module, options.converter, options.use_neutron_for_format_conversion)
            for m in self.modules
        ]

    def run(self, inputs: Inputs) -> Any:
        """The lowered program, its delegates computed by LiteRT."""
        program = self.manager.exported_program()
        arguments = [_constant_of(program, spec) for spec in program.graph_signature.input_specs]
        users = iter(inputs)
        arguments = [next(users) if a is None else a for a in arguments]
        return _Interpreter(program.graph_module, self.lowered(), self.modules).run(*arguments)


def _constant_of(program: Any, spec: Any) -> torch.Tensor | None:
    if spec.target is None:
        return None
    found = program.state_dict.get(spec.target, program.constants.get(spec.target))
    assert found is not None
    return found


class _Interpreter(torch.fx.Interpreter):
    def __init__(
        self, module: torch.fx.GraphModule, lowered: list[Lowered], modules: list[LoweredBackendModule]
    ):
        super().__init__(module)
        self.delegates = {id(m): (low, m) for low, m in zip(lowered, modules, strict=True)}

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is executorch_call_delegate:
            lowered, module = self.delegates[id(args[0])]
            return run_delegate(lowered, module, args[1:])
        return super().call_function(target, args, kwargs)


def run_delegate(
    lowered: Lowered,
    module: LoweredBackendModule,
    inputs: Sequence[torch.Tensor],
    reference: Reference | None = None,
) -> list[torch.Tensor]:
    """One delegate as the runtime would run it: raw memory in and out. A loaded reference saves time."""
    arrays = []
    for x, tensor, flag in zip(inputs, lowered.graph.given, lowered.input_channels_last, strict=True):
        memory = x.permute(x.dim_order()).contiguous().numpy()
        memory = np.moveaxis(memory, 1, -1) if flag else memory
        arrays.append(np.ascontiguousarray(memory).reshape(tensor.shape))
    results = (reference or Reference(lowered.graph)).run(arrays)
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
    """Lower with NeutronPartitioner as a user would."""
    partitioner = NeutronPartitioner(compile_spec, **kwargs)
    manager = to_edge_transform_and_lower(
        torch.export.export(quantized, inputs), partitioner=[partitioner],
        compile_config=EdgeCompileConfig(_check_ir_validity=True),
    )  # fmt: skip
    return Delegated(quantized, manager, partitioner)


def compute_nodes(manager: EdgeProgramManager) -> list[str]:
    """Operators left outside delegates, quantize and dequantize steps aside."""
    from openneutron.partition.clusters import is_compute

    graph = manager.exported_program().graph
    return [n.name for n in graph.nodes if is_compute(n) and n.target is not executorch_call_delegate]


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
