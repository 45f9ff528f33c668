"""Unary functions of bytes as tables of 256 entries, computed by the oracle.

A byte has 256 values, so whatever a chain of element-wise operators does to it, float ones in the middle
included, one table does. The table is what the reference interpreter yields for all 256 values: exact by
construction. In the compiler's graphs such an op is CUSTOM "Table" with inputs (source, table).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openneutron.litert.ir import Builtin, Graph, Op, Tensor, constant
from openneutron.litert.reference import run_reference

TABLE = "Table"
IDENTITY = np.arange(256, dtype=np.uint8)
_BYTES = ("int8", "uint8")

_UNARY = frozenset({
    Builtin.ABS, Builtin.COS, Builtin.DEQUANTIZE, Builtin.ELU, Builtin.EXP, Builtin.GELU, Builtin.HARD_SWISH,
    Builtin.LEAKY_RELU, Builtin.LOG, Builtin.LOGISTIC, Builtin.NEG, Builtin.QUANTIZE, Builtin.RELU,
    Builtin.RELU6, Builtin.RELU_0_TO_1, Builtin.RELU_N1_TO_1, Builtin.RSQRT, Builtin.SIGN, Builtin.SIN,
    Builtin.SQRT, Builtin.SQUARE, Builtin.TANH,
})  # fmt: skip
# Unary when the other operand is one constant number.
_BINARY = frozenset({
    Builtin.ADD, Builtin.SUB, Builtin.MUL, Builtin.DIV, Builtin.MAXIMUM, Builtin.MINIMUM, Builtin.POW,
    Builtin.PRELU, Builtin.SQUARED_DIFFERENCE,
})  # fmt: skip


def is_table(op: Op) -> bool:
    """Whether the op is a table of the compiler's."""
    return op.kind is Builtin.CUSTOM and op.custom_name == TABLE


def is_byte(tensor: Tensor) -> bool:
    """Whether the tensor's elements have 256 values, with one meaning for the whole tensor."""
    return tensor.dtype in _BYTES and (tensor.quant is None or tensor.quant.is_per_tensor)


def unary_operand(op: Op) -> Tensor | None:
    """The tensor an op is an element-wise function of, constants aside; None if it is not of that kind."""
    if op.kind in _UNARY and len(op.inputs) == 1:
        source = op.operand(0)
    elif op.kind in _BINARY and len(op.inputs) == 2:
        values = [t for t in op.inputs if t is not None and not t.is_const]
        if len(values) != 1 or any(t.elements != 1 for t in op.inputs if t is not None and t.is_const):
            return None
        source = values[0]
    else:
        return None
    return None if source.is_const or source.elements != op.output.elements else source


def table_of(chain: Sequence[Op]) -> np.ndarray | None:
    """The table, indexed by the value's bits, of a chain from byte to byte; None if the oracle refuses it."""
    source = unary_operand(chain[0])
    assert source is not None and is_byte(source) and is_byte(chain[-1].output)
    start = Tensor("x", (256,), source.dtype, source.quant)
    standing = {source: start}
    ops: list[Op] = []
    for number, op in enumerate(chain):
        inputs = [t if t is None else standing.get(t) or _scalar(t, number) for t in op.inputs]
        output = Tensor(f"y{number}", (256,), op.output.dtype, op.output.quant)
        standing[op.output] = output
        ops.append(Op(op.kind, inputs, [output], op.options))
    graph = Graph([start], [ops[-1].output], ops)
    try:
        (values,) = run_reference(graph, [IDENTITY.view(source.dtype)])
    except (RuntimeError, ValueError):  # not a type the reference kernels take: no table, the op stays
        return None
    return values.view(np.uint8)


def _scalar(tensor: Tensor, number: int) -> Tensor:
    return constant(f"c{number}", tensor.array.reshape(1), tensor.quant)


def clamp_table(low: int, high: int) -> np.ndarray:
    """The table that clamps int8 values."""
    return np.clip(IDENTITY.view(np.int8), low, high).view(np.uint8)
