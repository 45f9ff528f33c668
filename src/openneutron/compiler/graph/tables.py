"""Unary functions of bytes as tables of 256 entries, computed by the oracle.

A byte has 256 values, so whatever element-wise operators do to it, float ones in the middle
included, one table does. The table is what the reference interpreter yields for all 256 values: exact by
construction. In the compiler's graphs such an op is CUSTOM "Table" with inputs (source, table).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from openneutron.litert.ir import Builtin, Graph, Op, Tensor, Trait, constant
from openneutron.litert.reference import run_reference

TABLE = "Table"
IDENTITY = np.arange(256, dtype=np.uint8)
_BYTES = ("int8", "uint8")


def is_table(op: Op) -> bool:
    """Whether the op is a table of the compiler's."""
    return op.kind is Builtin.CUSTOM and op.custom_name == TABLE


def is_byte(tensor: Tensor) -> bool:
    """Whether the tensor's elements have 256 values, with one meaning for the whole tensor."""
    return tensor.dtype in _BYTES and (tensor.quant is None or tensor.quant.is_per_tensor)


def arity(kind: Builtin) -> int:
    """How many operands an element-wise operator has; 0 for any other."""
    traits = (Trait.UNARY, Trait.BINARY, Trait.TERNARY)
    return next((count for count, trait in enumerate(traits, 1) if kind.has(trait)), 0)


def elementwise_operands(op: Op) -> list[Tensor]:
    """The tensors an op is an element-wise function of, constant numbers aside; none if it is no such op."""
    count = arity(op.kind)
    if not count or len(op.inputs) != count:
        return []
    present = [t for t in op.inputs if t is not None]
    if any(t.elements != 1 if t.is_const else t.elements != op.output.elements for t in present):
        return []
    return list(dict.fromkeys(t for t in present if not t.is_const))


@dataclass(frozen=True)
class ByteFunction:
    """Element-wise ops, in order, that together are a function of one byte tensor."""

    source: Tensor
    ops: tuple[Op, ...]


def byte_functions(graph: Graph) -> dict[Tensor, ByteFunction]:
    """For each tensor that is a function of one byte tensor, that tensor and the ops between.

    A region begins anew at a byte tensor with several readers or that is an output: it exists anyway, and
    nothing is computed twice. x * sigmoid(x) is a region of x whether its middle is float or int8.
    """
    readers = graph.consumers()
    outputs = set(graph.outputs)
    regions: dict[Tensor, ByteFunction] = {}

    def upto(tensor: Tensor) -> ByteFunction | None:
        kept = is_byte(tensor) and (tensor in outputs or len(readers.get(tensor, ())) > 1)
        if tensor in regions and not kept:
            return regions[tensor]
        return ByteFunction(tensor, ()) if is_byte(tensor) else None

    position = {op: index for index, op in enumerate(graph.ops)}
    for op in graph.ops:
        functions = [upto(t) for t in elementwise_operands(op)]
        whole = [r for r in functions if r is not None]
        if whole and len(whole) == len(functions) and len({r.source for r in whole}) == 1:
            ops = {o for r in whole for o in r.ops}
            regions[op.output] = ByteFunction(whole[0].source, (*sorted(ops, key=position.__getitem__), op))
    return regions


def table_of(region: ByteFunction) -> np.ndarray | None:
    """The table of a region from byte to byte, indexed by the value's bits; None if the oracle refuses."""
    assert is_byte(region.ops[-1].output)
    values = values_of(region)
    return None if values is None else values.view(np.uint8)


def values_of(region: ByteFunction) -> np.ndarray | None:
    """What a region yields for each byte, in the type of its result; None if the oracle refuses."""
    source = region.source
    assert is_byte(source)
    start = Tensor("x", (256,), source.dtype, source.quant)
    standing = {source: start}
    ops: list[Op] = []
    try:
        for number, op in enumerate(region.ops):
            inputs = [
                t if t is None else standing.get(t) or _scalar(t, f"c{number}_{index}")
                for index, t in enumerate(op.inputs)
            ]
            output = Tensor(f"y{number}", (256,), op.output.dtype, op.output.quant)
            standing[op.output] = output
            ops.append(Op(op.kind, inputs, [output], op.options))
    except ValueError:  # a constant that is not one number
        return None
    graph = Graph([start], [ops[-1].output], ops)
    return _answer(_Question(str(graph), graph))


@dataclass(frozen=True)
class _Question:
    """A graph of one byte in all its values; equal graphs are spelled equally."""

    spelled: str
    graph: Graph = field(compare=False)


@lru_cache(maxsize=4096)
def _answer(question: _Question) -> np.ndarray | None:
    """What the oracle says; steps of a recurrent network ask the same again and again."""
    graph = question.graph
    try:
        (values,) = run_reference(graph, [IDENTITY.view(graph.inputs[0].dtype)])
    except (RuntimeError, ValueError):  # nothing the reference kernels take: no table, the op stays
        return None
    values.flags.writeable = False
    return values


def _scalar(tensor: Tensor, name: str) -> Tensor:
    return constant(name, tensor.array.reshape(1), tensor.quant)


def clamp_table(low: int, high: int) -> np.ndarray:
    """The table that clamps int8 values."""
    return np.clip(IDENTITY.view(np.int8), low, high).view(np.uint8)
