"""Kernel selection: one LiteRT op becomes the kernel calls that compute it, bit for bit.

`select(op, ref, pool)` is a function of the op, of where its tensors are (`ref`, asked for activations only)
and of the pool that takes its constants. The calls write every byte of each output and read only the op's
inputs, so that calls of different ops may be put in any order the data allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openneutron.compiler.graph.legalize import legalize
from openneutron.compiler.microcode.format import MAX_DIM, MAX_PORTS, KernelCall, Ref, Region, out_of_range
from openneutron.compiler.select import convolution, elementwise, island, move, reduce
from openneutron.compiler.select.constants import ConstPool
from openneutron.compiler.select.context import Context, KernelRule, RefOf
from openneutron.diagnostics import Reject, fail
from openneutron.litert.ir import Builtin, Graph, Op, Tensor

RULES: dict[Builtin | str, KernelRule] = {
    **convolution.RULES,
    **elementwise.RULES,
    **island.RULES,
    **move.RULES,
    **reduce.RULES,
}


def select(
    op: Op, ref: RefOf, pool: ConstPool, pitch: Callable[[Tensor], int] = lambda tensor: 0
) -> list[KernelCall]:
    """The kernel calls that compute `op`; an op that cannot be computed is a diagnostic."""
    refused = supports(op)
    if refused:
        fail("ON401", repr(op), refused.reason, refused.hint)
    calls = RULES[op.key].calls(op, Context(ref, pool, pitch))
    if problem := _beyond(calls):
        fail("ON401", repr(op), problem, "Use smaller tensors or windows.")
    return calls


def _beyond(calls: Sequence[KernelCall]) -> str:
    """What in the calls is more than a kernel takes."""
    problems = (out_of_range(call) for call in calls)
    return next((problem for problem in problems if problem), "")


def refusal(graph: Graph) -> Reject | None:
    """Why an operator of a LiteRT graph is more than its kernel takes, or None; nothing is placed for it.

    Operators that have no kernel of their own are left out: they become tables, or the compiler refuses them.
    """
    for op in legalize(graph).ops:
        is_float = any(t is not None and t.dtype in ("float32", "bool") for t in op.inputs)
        if rule_of(op) is None or is_float or all(t is None or t.is_const for t in op.inputs):
            continue
        if (refused := supports(op)) is not None:
            return refused
        calls = RULES[op.key].calls(op, Context(lambda tensor: Ref(Region.SCRATCH), ConstPool()))
        if problem := _beyond(calls):
            return Reject("ON401", f"{op.kind.name}: {problem}")
    return refused_port(graph)


def refused_port(graph: Graph) -> Reject | None:
    """Why the inputs and outputs of a graph are more than the driver takes, or None."""
    for side, ports in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        if len(ports) > MAX_PORTS:
            return Reject("ON401", f"the graph has {len(ports)} {side}, the driver takes {MAX_PORTS}")
    for tensor in (*graph.inputs, *graph.outputs):
        if max(tensor.shape, default=0) > MAX_DIM:
            return Reject("ON401", f"{tensor} has a dimension of more than {MAX_DIM}")
        if len(tensor.shape) > 8:
            return Reject("ON401", f"{tensor} has more than 8 dimensions")
    return None


def supports(op: Op) -> Reject | None:
    """Why `select` would refuse this op, or None."""
    rule = rule_of(op)
    if rule is None:
        supported = ", ".join(sorted(kind.name for kind in RULES if isinstance(kind, Builtin)))
        name = f"the custom operator {op.custom_name}" if op.custom_name else op.kind.name
        return Reject("ON401", f"no kernel computes {name}", f"Supported: {supported}")
    problem = rule.problem(op)
    return Reject("ON401", f"{op.kind.name}: {problem}") if problem else None


def rule_of(op: Op) -> KernelRule | None:
    """The rule of an op: by its kind, or by the name of a custom operator, those of the compiler's own."""
    return RULES.get(op.key)
