"""Lowering in float: the operator table's own lowerings, on a builder that leaves quantization out.

A lowering says which LiteRT operators compute an ATen operator. That is the same in float, with the integers'
parameters left away, so there is no second table: only what LiteRT computes in float alone is added here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openneutron.litert.build import Builder, Spec
from openneutron.litert.ir import Activation, Builtin, Quant, Tensor
from openneutron.ops.common import activation_of
from openneutron.ops.spec import Call, Lowering, Value

ANY = Quant.per_tensor(1.0)  # stands where a lowering asks for parameters; it reaches no tensor


class RealValue(Value):
    """A value in float; its parameters mean nothing."""

    def real(self) -> np.ndarray:
        """The values of a constant, in double precision."""
        return self.array().astype(np.float64)


class RealBuilder(Builder):
    """Appends to the graph of another builder, in float32 wherever int8 is asked for."""

    quantized = False

    def __init__(self, base: Builder):
        self.__dict__ = base.__dict__  # one graph, one set of names, one origin

    def const(self, array: np.ndarray, quant: Quant | None = None, name: str | None = None) -> Tensor:
        """A constant; integers with parameters become the numbers that they stand for."""
        values = np.asarray(array)
        if quant is not None and values.dtype.kind in "iu":
            scale, zero = quant.scale[0], quant.zero_point[0]
            values = (values.astype(np.float64) - zero) * scale
        if quant is not None or values.dtype == np.float64:
            values = values.astype(np.float32)
        return super().const(values, None, name)

    def multi_op(
        self,
        kind: Builtin,
        inputs: Sequence[Tensor | None],
        results: Sequence[Spec],
        *,
        dtype: str = "int8",
        options: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> list[Tensor]:
        """An op, in float for int8."""
        plain: list[Spec] = [(shape, None) for shape, _ in results]
        kind_of = "float32" if dtype == "int8" else dtype
        return super().multi_op(kind, inputs, plain, dtype=kind_of, options=options, name=name)

    def requantize(self, tensor: Tensor, quant: Quant, name: str | None = None) -> Tensor:
        """Nothing."""
        return tensor

    def quantize(self, tensor: Tensor, quant: Quant, name: str | None = None) -> Tensor:
        """Nothing."""
        return tensor

    def dequantize(self, tensor: Tensor, name: str | None = None) -> Tensor:
        """Nothing."""
        return tensor


Lower = Callable[[Lowering, Call], Tensor]


def _elementwise(kind: Builtin, b: Builder, *operands: Tensor | float, dtype: str = "float32") -> Tensor:
    rank = max(o.rank for o in operands if isinstance(o, Tensor))
    tensors = [o if isinstance(o, Tensor) else b.number(o, rank) for o in operands]
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    options = {}
    if kind in (Builtin.ADD, Builtin.SUB, Builtin.MUL, Builtin.DIV):
        options["fusedActivationFunction"] = Activation.NONE
    return b.op(kind, tensors, shape, dtype=dtype, options=options)


def _operand(at: Lowering, value: Any) -> Tensor | float:
    return at(value) if isinstance(value, Value) else float(value)


def _binary(kind: Builtin) -> Lower:
    def lower(at: Lowering, call: Call) -> Tensor:
        names = list(call.args)
        left, right = (_operand(at, call[n]) for n in names[:2])
        if call.get("alpha", 1) != 1:
            right = _elementwise(Builtin.MUL, at.build, right, float(call["alpha"]))
        y = _elementwise(kind, at.build, left, right)
        return at.build.reshape(y, call.out.shape)

    return lower


def _clamp(at: Lowering, call: Call) -> Tensor:
    bounds = {"aten.clamp_min": ("min",), "aten.clamp_max": ("max",)}
    y = at(call.input)
    low = call.get("min", call.get("min_val", -1.0 if "hardtanh" in call.op else None))
    high = call.get("max", call.get("max_val", 1.0 if "hardtanh" in call.op else None))
    for name, only in bounds.items():
        if call.op.startswith(name):
            low, high = (low if "min" in only else None), (high if "max" in only else None)
    kind = activation_of(low, high)
    if kind is not None:  # other tools for LiteRT files know these better than a pair of bounds
        return _elementwise(Builtin[kind.name], at.build, y)
    if low is not None:
        y = _elementwise(Builtin.MAXIMUM, at.build, y, float(low))
    return y if high is None else _elementwise(Builtin.MINIMUM, at.build, y, float(high))


def _batch_norm(at: Lowering, call: Call) -> Tensor:
    mean, variance = call["running_mean"].real(), call["running_var"].real()
    weight = call["weight"].real() if call.get("weight") is not None else np.ones_like(mean)
    bias = call["bias"].real() if call.get("bias") is not None else np.zeros_like(mean)
    scale = weight / np.sqrt(variance + float(call["eps"]))
    shape = (1, -1) + (1,) * (call.input.rank - 2)
    b = at.build
    scaled = _elementwise(Builtin.MUL, b, at(call.input), b.const(scale.reshape(shape).astype(np.float32)))
    return _elementwise(
        Builtin.ADD, b, scaled, b.const((bias - mean * scale).reshape(shape).astype(np.float32))
    )


def _layer_norm(at: Lowering, call: Call) -> Tensor:
    b, x = at.build, at(call.input)
    rank, count = call.input.rank, len(call["normalized_shape"])
    axes = b.ints(range(rank - count, rank))
    kept = (*x.shape[: rank - count], *[1] * count)
    mean = b.op(Builtin.MEAN, [x, axes], kept, options={"keepDims": True})
    centred = _elementwise(Builtin.SUB, b, x, mean)
    square = _elementwise(Builtin.MUL, b, centred, centred)
    variance = b.op(Builtin.MEAN, [square, axes], kept, options={"keepDims": True})
    inverse = _elementwise(Builtin.RSQRT, b, _elementwise(Builtin.ADD, b, variance, float(call["eps"])))
    y = _elementwise(Builtin.MUL, b, centred, inverse)
    for name, kind in (("weight", Builtin.MUL), ("bias", Builtin.ADD)):
        if call.get(name) is not None:
            y = _elementwise(kind, b, y, at(call[name]))
    return y


def _gather(at: Lowering, call: Call) -> Tensor:
    """index_select, and embedding, which is one along the first axis."""
    b = at.build
    source, index = (
        (call["weight"], call["indices"]) if "embedding" in call.op else (call["self"], call["index"])
    )
    axis = 0 if "embedding" in call.op else int(call["dim"]) % source.rank
    if index.is_const:
        places = b.const(index.array().astype(np.int32))
    else:
        places = b.op(Builtin.CAST, [at(index)], index.shape, dtype="int32",
                      options={"inDataType": 4, "outDataType": 2})  # fmt: skip
    table = at(source)
    return b.op(Builtin.GATHER, [table, places], call.out.shape, dtype=table.dtype,
                options={"axis": axis, "batchDims": 0})  # fmt: skip


def _cast(at: Lowering, call: Call) -> Tensor:
    x = at(call.input)
    if x.dtype == call.out.dtype:
        return x
    number = {"float32": 0, "int32": 2, "int64": 4, "bool": 6, "int8": 9, "uint8": 3, "int16": 7}
    if x.dtype not in number or call.out.dtype not in number:
        raise KeyError(call.op)
    options = {"inDataType": number[x.dtype], "outDataType": number[call.out.dtype]}
    return at.build.op(Builtin.CAST, [x], x.shape, dtype=call.out.dtype,
                       options=options)  # fmt: skip


# By the name of the operator without its overload. These come first: the table's lowerings of them count in
# integers, or need constants that float does not.
REAL: dict[str, Lower] = {
    "aten.add": _binary(Builtin.ADD),
    "aten.sub": _binary(Builtin.SUB),
    "aten.mul": _binary(Builtin.MUL),
    "aten.div": _binary(Builtin.DIV),
    "aten.maximum": _binary(Builtin.MAXIMUM),
    "aten.minimum": _binary(Builtin.MINIMUM),
    "aten.pow": _binary(Builtin.POW),
    "aten.clamp": _clamp,
    "aten.clamp_min": _clamp,
    "aten.clamp_max": _clamp,
    "aten.hardtanh": _clamp,
    "aten.neg": lambda at, call: _elementwise(Builtin.NEG, at.build, at(call.input)),
    "aten.batch_norm": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.native_layer_norm": _layer_norm,
    "aten.layer_norm": _layer_norm,
    "aten.index_select": _gather,
    "aten.embedding": _gather,
    "aten._to_copy": _cast,
    "aten.to": _cast,
}


def real_lowering(op: str) -> Lower | None:
    """How an operator is written in float only; None: as the table says."""
    return REAL.get(".".join(op.split(".")[:2]))
