"""ExecuTorch's memory planning with the delegates' arenas in it, and inputs and outputs inside of the arenas.

A program in size mode has its inputs and outputs in its scratch memory. Here that memory becomes one more
tensor that the delegate call hands over: ExecuTorch plans it like any other, so that it shares memory with
what is dead while the delegate runs, and the tensors that the call reads and writes lie where the delegate
wants them. Where that cannot be, because something else still needs a tensor, the delegate copies it. Where
the CPU does nothing but quantize inputs and dequantize outputs, their float forms lie there too, beside the
ports: an input before the delegate runs, an output after.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.memory import alloc
from executorch.exir.memory_planning import get_node_tensor_specs
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.schema import TensorShapeDynamism
from executorch.exir.tensor import TensorSpec
from torch.export import ExportGraphSignature
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from openneutron.compiler.microcode.format import ALIGNMENT
from openneutron.package.payload import AS_IS, parse
from openneutron.partition.partitioner import BACKEND_ID


class ArenaPlanning(MemoryPlanningPass):
    """ExecuTorch's memory planning pass, which also plans the arenas that hold inputs or outputs."""

    def run(
        self, graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None
    ) -> PassResult:
        """Describe tensors as kernels write them and add the arenas, then plan."""
        _describe_rows(graph_module)
        if self.alloc_graph_input and self.alloc_graph_output:
            _Arenas(graph_module, graph_signature).add()
        return super().run(graph_module, graph_signature)


def _describe_rows(module: GraphModule) -> None:
    """Say of the places that are not zero how ExecuTorch's kernel writes them: one after the other.

    PyTorch has their columns one after the other, and ExecuTorch infers that for its own kernel.
    """
    for node in module.graph.nodes:
        if str(node.target) == "aten.nonzero.out":
            for spec in _specs(node):
                spec.dim_order = tuple(range(len(spec.shape)))


class _Arenas:
    """The arenas of one method."""

    def __init__(self, module: GraphModule, signature: ExportGraphSignature | None):
        self._module = module
        nodes = list(module.graph.nodes)
        self._last: dict[TensorSpec, int] = {}  # the last node that has a tensor to do with
        for index, node in enumerate(nodes):
            for other in (node, *node.all_input_nodes):
                self._last.update((spec, index) for spec in _specs(other))
        self._number = {node: index for index, node in enumerate(nodes)}
        calls = [n for n in nodes if n.op == "call_function" and n.target not in (alloc, operator.getitem)]
        delegates = [n for n in calls if n.target is executorch_call_delegate]
        self._only_converts = len(delegates) == 1 and all(n in delegates or _is_conversion(n) for n in calls)
        mutable = signature.inputs_to_buffers if signature is not None else {}
        self._fixed = {s for n in nodes if n.op == "placeholder" and n.target in mutable for s in _specs(n)}

    def add(self) -> None:
        """Give every call of a delegate that wants one its arena."""
        for node in self._module.graph.nodes:
            if node.target is executorch_call_delegate:
                lowered = getattr(self._module, node.args[0].target)
                if lowered.backend_id == BACKEND_ID:
                    self._lend(node, lowered.processed_bytes)

    def _lend(self, node: Node, processed: bytes) -> None:
        payload = parse(processed)
        if not payload.is_open or not any(place is not None for place in payload.places):
            return
        outputs = _as_tuple(node.meta["spec"])
        if any(spec is None for spec in outputs):
            return
        tensors = [node.args[1 + port.argument] for port in payload.inputs]
        ends = [self._number[node]] * len(payload.inputs) + [len(self._number)] * len(payload.outputs)
        specs = [_spec_of(t) for t in tensors] + [outputs[port.argument] for port in payload.outputs]
        ports = (*payload.inputs, *payload.outputs)
        moved: dict[TensorSpec, int] = {}
        for spec, port, place, end in zip(specs, ports, payload.places, ends, strict=True):
            if spec is None or place is None or place % ALIGNMENT or not self._may_move(spec, end):
                continue
            if port.format == AS_IS or _is_channels_last(spec):
                moved[spec] = place
        if self._only_converts:
            for side, floats in (
                (specs[: len(tensors)], self._floats_of),
                (specs[len(tensors) :], self._floats_made),
            ):
                held = {spec: moved[spec] for spec in side if spec in moved}
                moved |= _beside(held, [f for spec in held for f in floats(spec)])
        nbytes = max(payload.words.scratch_bytes, *(at + _padded(spec) for spec, at in moved.items()), 0)
        arena = TensorSpec(torch.uint8, torch.Size([nbytes]))
        for spec, place in moved.items():
            spec.storage_base, spec.storage_base_offset = arena, place
        fake = _as_tuple(node.meta["val"])
        with fake[0].fake_mode:
            memory = torch.empty(nbytes, dtype=torch.uint8)
        node.meta["spec"], node.meta["val"] = (*outputs, arena), (*fake, memory)

    def _floats_of(self, spec: TensorSpec) -> list[TensorSpec]:
        """Inputs of the program that are quantized to a tensor and read by nothing else."""
        steps = [n for n in self._number if _is_conversion(n) and spec in _specs(n)]
        floats = [
            (step, source) for step in steps for source in step.all_input_nodes if source.op == "placeholder"
        ]
        return [s for step, source in floats for s in _specs(source) if self._may_move(s, self._number[step])]

    def _floats_made(self, spec: TensorSpec) -> list[TensorSpec]:
        """What is dequantized from a tensor."""
        steps = [
            n for n in self._number if _is_conversion(n) and any(spec in _specs(i) for i in n.all_input_nodes)
        ]
        return [s for step in steps for s in _specs(step) if self._may_move(s, len(self._number))]

    def _may_move(self, spec: TensorSpec, end: int) -> bool:
        """Whether a tensor may lie in an arena: planned memory of its own, and not needed behind a node."""
        return (
            spec.storage_base is None
            and not spec.const
            and spec not in self._fixed
            and spec.shape_dynamism == TensorShapeDynamism.STATIC
            and self._last[spec] <= end
        )


def _is_conversion(node: Node) -> bool:
    return node.op == "call_function" and "quantize_per_tensor" in str(node.target)


def _padded(spec: TensorSpec) -> int:
    return -(-spec.nbytes() // ALIGNMENT) * ALIGNMENT


def _beside(held: dict[TensorSpec, int], others: list[TensorSpec]) -> dict[TensorSpec, int]:
    """Places for more tensors, each in the first gap that those with a place leave."""
    taken, result = dict(held), {}
    for spec in dict.fromkeys(others):
        at = 0
        for other, begin in sorted(taken.items(), key=lambda item: item[1]):
            if begin - at >= _padded(spec):
                break
            at = max(at, begin + _padded(other))
        taken[spec] = result[spec] = at
    return result


def _specs(node: Node) -> list[TensorSpec]:
    return [spec for spec in get_node_tensor_specs(node) if spec is not None]


def _spec_of(argument: Any) -> TensorSpec | None:
    spec = argument.meta.get("spec") if isinstance(argument, Node) else None
    return spec if isinstance(spec, TensorSpec) else None


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _is_channels_last(spec: TensorSpec) -> bool:
    """Whether the tensor's memory is as the NPU has it: then the delegate does not transpose it."""
    return len(spec.shape) > 2 and list(spec.dim_order)[1] != 1
