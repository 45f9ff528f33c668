"""Kernel selection: one LiteRT op becomes the kernel calls that compute it, bit for bit.

`select(op, ref, pool)` is a function of the op, of where its tensors are (`ref`, asked for activations only)
and of the pool that takes its constants. The calls write every byte of each output and read only the op's
inputs, so that calls of different ops may be put in any order the data allows.
"""

from __future__ import annotations

from collections.abc import Callable

from openneutron.compiler.emit import select_conv, select_elementwise, select_move, select_reduce
from openneutron.compiler.emit.constants import ConstPool
from openneutron.compiler.emit.selection import Context, RefOf, Rule
from openneutron.compiler.microcode.format import KernelCall
from openneutron.diagnostics import Reject, fail
from openneutron.litert.ir import Builtin, Op, Tensor

RULES: dict[Builtin | str, Rule] = {
    **select_conv.RULES,
    **select_elementwise.RULES,
    **select_move.RULES,
    **select_reduce.RULES,
}


def select(
    op: Op, ref: RefOf, pool: ConstPool, pitch: Callable[[Tensor], int] = lambda tensor: 0
) -> list[KernelCall]:
    """The kernel calls that compute `op`; an op that cannot be computed is a diagnostic."""
    refused = supports(op)
    if refused:
        fail("ON401", repr(op), refused.reason, refused.hint)
    return RULES[_key(op)].calls(op, Context(ref, pool, pitch))


def supports(op: Op) -> Reject | None:
    """Why `select` would refuse this op, or None."""
    rule = rule_of(op)
    if rule is None:
        known = ", ".join(sorted(kind.name for kind in RULES if isinstance(kind, Builtin)))
        name = f"the custom operator {op.custom_name}" if op.custom_name else op.kind.name
        return Reject("ON401", f"no kernel computes {name}", f"Supported: {known}")
    problem = rule.problem(op)
    return Reject("ON401", f"{op.kind.name}: {problem}") if problem else None


def rule_of(op: Op) -> Rule | None:
    """The rule of an op: by its kind, or by the name of a custom operator, those of the compiler's own."""
    return RULES.get(_key(op))


def _key(op: Op) -> Builtin | str:
    return op.custom_name if op.kind is Builtin.CUSTOM else op.kind
