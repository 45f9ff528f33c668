"""Kernel selection: one LiteRT op becomes the kernel calls that compute it, bit for bit.

`select(op, ref, pool)` is a function of the op, of where its tensors are (`ref`, asked for every activation and
never for a constant) and of the pool that takes its constants. It writes every byte of each output and reads only
its inputs, so that calls of different ops may be put in any order the data allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from openneutron.compiler.constants import ConstPool
from openneutron.compiler.microcode import KernelCall, Ref
from openneutron.diagnostics import Reject, fail
from openneutron.litert.ir import Builtin, Op, Tensor

RefOf = Callable[[Tensor], Ref]


@dataclass(frozen=True)
class Context:
    """What a selector is given besides the op."""

    ref: RefOf
    pool: ConstPool


Selector = Callable[[Op, Context], list[KernelCall]]
SELECTORS: dict[Builtin, Selector] = {}


def select(op: Op, ref: RefOf, pool: ConstPool) -> list[KernelCall]:
    """The kernel calls that compute `op`; an op that cannot be computed is a diagnostic."""
    refused = supports(op)
    if refused:
        fail("ON401", repr(op), refused.reason, refused.hint)
    return SELECTORS[op.kind](op, Context(ref, pool))


def supports(op: Op) -> Reject | None:
    """Why `select` would refuse this op, or None."""
    if op.kind not in SELECTORS:
        return Reject(
            "ON401",
            f"no kernel computes {op.kind.name}",
            "Supported: " + ", ".join(sorted(k.name for k in SELECTORS)),
        )
    return None


def kernel_scratch(op: Op) -> int:
    """Workspace bytes the calls of `op` need beyond their inputs and outputs: none so far.

    Kernels keep what they need in a few hundred bytes of stack; `select` asks for no temporary.
    """
    return 0
