"""For which core a program's cortex_m operators were compiled.

A .pte does not say it. But the scratch memory that CMSIS-NN wants differs between the cores, and was planned
for one of them: ExecuTorch's own functions say how much each core wants for a call, and the program how much
there is. Of a linear layer, a core with MVE wants sums of the weights that the others have no use for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openneutron.diagnostics import fail
from openneutron.firmware.cores import CORES

_TENSOR, _LINEAR = "Tensor", "cortex_m::quantized_linear"


@dataclass(frozen=True)
class _Call:
    """A call that differs between cores, the node it was lowered from, and what the program has for it."""

    operator: str
    node: Any
    has: list[int]  # bytes of scratch; for a linear layer, how many precomputed sums there are

    def wants(self, backend: Any) -> list[int]:
        """What a core's kind of CMSIS-NN wants instead."""
        from executorch.backends.cortex_m.library import cmsis_nn
        from executorch.backends.cortex_m.passes.scratch_buffer_sizes import required_cmsis_nn_buffer_sizes

        if self.operator == _LINEAR:
            return [int(self.node.meta["val"].shape[-1])] if backend == cmsis_nn.Backend.MVE else [0]
        return list(required_cmsis_nn_buffer_sizes(self.node, backend))


def check_core(data: bytes, core: str, where: str) -> None:
    """Refuse a program that was compiled for another core."""
    from executorch.backends.cortex_m.target_config import CortexM, CortexMTargetConfig

    fitting = {c.target_string: c.backend for c in (CortexMTargetConfig(cpu) for cpu in CortexM)}
    for call in _calls(data):
        wants = {name: call.wants(backend) for name, backend in fitting.items()}
        left = {name: backend for name, backend in fitting.items() if wants[name] == call.has}
        if core not in left:
            what = "precomputed sums" if call.operator == _LINEAR else "bytes of scratch"
            problem = f"{call.operator} has {_list(call.has)} {what}, {core} wants {_list(wants[core])}"
            other = next((name for name in CORES if name in left), None)
            fail("ON710", where, f"compiled for {other or 'another core'}: {problem}",
                 f"Compile it with --core {core}"
                 + (f", or build firmware with --core {other}." if other else "."))  # fmt: skip
        fitting = left


def _list(sizes: list[int]) -> str:
    return " and ".join(str(size) for size in sizes)


# ExecuTorch has no types here that mypy could follow.
def _calls(data: bytes) -> Iterator[_Call]:
    import torch
    from executorch.backends.cortex_m.passes import scratch_buffer_sizes
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.dialects._ops import ops as exir_ops

    targets = {_name(t): t for t in scratch_buffer_sizes._target_to_buffer_sizes_registry}
    targets[_LINEAR] = exir_ops.edge.cortex_m.quantized_linear.default
    for plan in deserialize_pte_binary(data).program.execution_plan:
        for call in (i.instr_args for chain in plan.chains for i in chain.instructions):
            name = plan.operators[call.op_index].name if type(call).__name__ == "KernelCall" else ""
            if name not in targets:
                continue
            graph, target = torch.fx.Graph(), targets[name]
            arguments = [_argument(plan, graph, number) for number in call.args]
            names = [argument.name for argument in target._schema.arguments]
            node = graph.call_function(target, tuple(arguments[: len(names)]))
            node.meta["val"] = arguments[len(names)].meta["val"]  # the output follows
            buffers = [
                a for a, n in zip(arguments, names, strict=False) if "scratch" in n or n == "kernel_sum"
            ]
            yield _Call(name, node, [0 if a is None else int(a.meta["val"].numel()) for a in buffers])


def _name(target: Any) -> str:
    return str(target._schema.name)


def _argument(plan: Any, graph: Any, number: int) -> Any:
    import torch

    value = plan.values[number].val
    kind = type(value).__name__
    if kind == _TENSOR:
        node = graph.placeholder(f"value_{number}_{len(graph.nodes)}")
        node.meta["val"] = torch.empty(tuple(value.sizes), dtype=torch.int8, device="meta")
        return node
    if kind == "IntList":
        return [plan.values[i].val.int_val for i in value.items]
    for field in ("int_val", "double_val", "bool_val"):
        if hasattr(value, field):
            return getattr(value, field)
    return None
