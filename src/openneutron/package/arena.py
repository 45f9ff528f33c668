"""ExecuTorch's memory planning with the delegates' arenas in it, and inputs and outputs inside of the arenas.

A program in size mode has its inputs and outputs in its scratch memory. Here that memory becomes one more
tensor that the delegate call hands over: ExecuTorch plans it like any other, so that it shares memory with
what is dead while the delegate runs, and the tensors that the call reads and writes lie where the delegate
wants them. Where that cannot be, because something else still needs a tensor, the delegate copies it.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
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
        """Add the arenas, then plan."""
        if self.alloc_graph_input and self.alloc_graph_output:
            _Arenas(graph_module, graph_signature).add()
        return super().run(graph_module, graph_signature)


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
        arena = TensorSpec(torch.uint8, torch.Size([payload.words.scratch_bytes]))
        tensors = [node.args[1 + port.argument] for port in payload.inputs]
        ends = [self._number[node]] * len(payload.inputs) + [len(self._number)] * len(payload.outputs)
        specs = [_spec_of(t) for t in tensors] + [outputs[port.argument] for port in payload.outputs]
        ports = (*payload.inputs, *payload.outputs)
        for spec, port, place, end in zip(specs, ports, payload.places, ends, strict=True):
            if spec is None or place is None or not self._may_move(spec, place, end):
                continue
            if port.format == AS_IS or _is_channels_last(spec):
                spec.storage_base, spec.storage_base_offset = arena, place
        fake = _as_tuple(node.meta["val"])
        with fake[0].fake_mode:
            memory = torch.empty(payload.words.scratch_bytes, dtype=torch.uint8)
        node.meta["spec"], node.meta["val"] = (*outputs, arena), (*fake, memory)

    def _may_move(self, spec: TensorSpec, place: int, end: int) -> bool:
        """Whether a tensor may lie in an arena: planned memory of its own, and not needed behind the call."""
        return (
            spec.storage_base is None
            and not spec.const
            and spec not in self._fixed
            and spec.shape_dynamism == TensorShapeDynamism.STATIC
            and self._last[spec] <= end
            and place % ALIGNMENT == 0
        )


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
