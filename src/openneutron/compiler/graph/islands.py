"""Float islands: expressions of several int8 tensors, from DEQUANTIZE to QUANTIZE, as kernel programs.

LiteRT computes them in float tensors; here no such tensor exists but the results of reductions, which are
small. Every result that must exist (a quantized tensor, a reduction, a program's output) becomes one CUSTOM
"Island" op that computes it from what is in memory, element by element. Exact: each float operation is the
one of the reference kernel, which IEEE 754 defines; functions it does not define (exp, log, ...) are tables
of the reference's own results: by byte before the expression, or as the steps of a monotone function behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from openneutron.compiler.graph.registers import Expression, Source, TooLarge, Value, assemble
from openneutron.compiler.graph.shapes import axes_of
from openneutron.compiler.graph.tables import ByteFunction, arity, byte_functions, is_byte, values_of
from openneutron.compiler.graph.thresholds import Steps, steps_of
from openneutron.compiler.microcode.expression import Instruction, IslandOp, Reduction
from openneutron.litert.ir import Activation, Builtin, Graph, Op, Tensor, Trait, constant, kinds
from openneutron.litert.rewriter import Rewriter
from openneutron.litert.rules import ANY, rule

ISLAND = "Island"
PLAN = "plan"

_REDUCTIONS = {
    Builtin.MEAN: Reduction.SUM,
    Builtin.SUM: Reduction.SUM,
    Builtin.REDUCE_MAX: Reduction.MAXIMUM,
    Builtin.REDUCE_MIN: Reduction.MINIMUM,
}
_OF_ALL = {Builtin.REDUCE_MAX: Reduction.MAXIMUM_OF_ALL, Builtin.REDUCE_MIN: Reduction.MINIMUM_OF_ALL}
_DIRECT = {
    Builtin.ADD: IslandOp.ADD, Builtin.SUB: IslandOp.SUB, Builtin.MUL: IslandOp.MUL,
    Builtin.DIV: IslandOp.DIV, Builtin.MAXIMUM: IslandOp.MAXIMUM, Builtin.MINIMUM: IslandOp.MINIMUM,
    Builtin.SQUARED_DIFFERENCE: IslandOp.SQUARED_DIFFERENCE, Builtin.SQUARE: IslandOp.SQUARE,
    Builtin.SQRT: IslandOp.SQRT, Builtin.RSQRT: IslandOp.RSQRT, Builtin.ABS: IslandOp.ABS,
    Builtin.NEG: IslandOp.NEG, Builtin.FLOOR: IslandOp.FLOOR,
    Builtin.SIGN: IslandOp.SIGN, Builtin.LESS: IslandOp.LESS,
    Builtin.LESS_EQUAL: IslandOp.LESS_EQUAL, Builtin.EQUAL: IslandOp.EQUAL,
    Builtin.NOT_EQUAL: IslandOp.NOT_EQUAL, Builtin.LOGICAL_AND: IslandOp.AND,
    Builtin.LOGICAL_OR: IslandOp.OR, Builtin.LOGICAL_NOT: IslandOp.NOT,
}  # fmt: skip
_SWAPPED = {Builtin.GREATER: IslandOp.LESS, Builtin.GREATER_EQUAL: IslandOp.LESS_EQUAL}
# The bounds a clamp applies, the lower one first, as the reference does.
_CLAMPS: dict[Builtin, tuple[float | None, float | None]] = {
    Builtin.RELU: (0.0, None), Builtin.RELU6: (0.0, 6.0), Builtin.RELU_N1_TO_1: (-1.0, 1.0),
    Builtin.RELU_0_TO_1: (0.0, 1.0),
}  # fmt: skip
_ACTIVATIONS = {
    Activation.RELU: _CLAMPS[Builtin.RELU],
    Activation.RELU6: _CLAMPS[Builtin.RELU6],
    Activation.RELU_N1_TO_1: _CLAMPS[Builtin.RELU_N1_TO_1],
}
EXACT = frozenset(_DIRECT) | frozenset(_SWAPPED) | frozenset(_CLAMPS) | {Builtin.SELECT_V2}
"""What can stand anywhere in an expression."""
_TYPES = {Builtin.CAST, Builtin.DEQUANTIZE, Builtin.QUANTIZE}  # functions from one type to another
TRUTHS = (np.arange(256) != 0).astype(np.float32)
"""What the byte of a truth value stands for."""
FUNCTIONS = (kinds(Trait.UNARY) - EXACT - _TYPES) | {Builtin.POW}
"""Operators whose results are the C library's, or that no instruction of an island computes."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What an island's op computes."""

    shape: tuple[int, ...]  # of the expression, before a reduction
    sources: tuple[Source, ...]
    code: tuple[Instruction, ...]
    reduction: Reduction = Reduction.NONE
    axes: tuple[int, ...] = ()
    divisor: float = 1.0
    steps: Steps | None = None


_Planned = tuple[Plan, list[Tensor], tuple[str, ...]]
"""With the island's inputs and its provenance."""


def plan_of(op: Op) -> Plan:
    """What an island's op computes."""
    plan = op.options[PLAN]
    assert isinstance(plan, Plan)
    return plan


def _plans(graph: Graph) -> dict[Tensor, _Planned]:
    has_float = any(_is_float(t) for op in graph.ops for t in op.outputs)
    return _Former(graph).plans if has_float else {}


@rule(ANY, facts=_plans)
def form_islands(g: Rewriter, op: Op, plans: dict[Tensor, _Planned]) -> bool:
    """Float operators between int8 tensors become islands; what cannot be one stays as it is."""
    if not op.outputs or op.outputs[0] not in plans:
        return False
    plan, tensors, origin = plans[op.outputs[0]]
    g.add(Builtin.CUSTOM, tensors, op.output, origin, {PLAN: plan}, ISLAND)
    return True


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in ("float32", "bool") and not tensor.is_const


def _is_reduction(op: Op) -> bool:
    return op.kind in _REDUCTIONS and op.operand(0).dtype == "float32" and op.operand(1).is_const


def _is_quantize(op: Op) -> bool:
    return op.kind is Builtin.QUANTIZE and op.operand(0).dtype == "float32" and is_byte(op.output)


class _Former:
    """The plan of every island of a graph, by the tensor it makes, with its inputs and its provenance."""

    def __init__(self, graph: Graph):
        self.producers, self.readers, self.outputs = graph.producers(), graph.consumers(), set(graph.outputs)
        self.regions = byte_functions(graph)
        self.inside = {op for op in graph.ops if self._is_inside(op)}
        # What is in memory whatever happens here: inputs, and what other operators make.
        self.exists = {
            t
            for t in graph.tensors()
            if t.dtype in ("float32", "bool") and self.producers.get(t) not in self.inside
        }
        self.plans: dict[Tensor, _Planned] = {}
        roots = [op for op in graph.ops if self._is_root(op)]
        roots += self._narrow(graph)
        self.exists.update(op.output for op in roots if op.output.dtype == "float32")
        for op in roots:
            self._make(op)

    def _is_inside(self, op: Op) -> bool:
        """Whether an op is one of those an expression is made of, its results float or truth values."""
        float_out = len(op.outputs) == 1 and _is_float(op.output)
        computable = op.kind in EXACT or op.kind in FUNCTIONS or op.kind is Builtin.DEQUANTIZE
        return float_out and computable and len(op.inputs) == arity(op.kind)

    def _is_root(self, op: Op) -> bool:
        """Whether the result of an op must exist, and an island can make it."""
        if op not in self.inside:
            return _is_reduction(op) or (
                _is_quantize(op) and self.producers.get(op.operand(0)) in self.inside
            )
        readers = self.readers.get(op.output, ())
        return op.kind is not Builtin.DEQUANTIZE and (
            op.output in self.outputs
            or any(not (r in self.inside or _is_reduction(r) or _is_quantize(r)) for r in readers)
        )

    def _narrow(self, graph: Graph) -> list[Op]:
        """What broadcasting repeats is computed apart: once, and not again for each element."""
        narrow: dict[Op, None] = {}
        for op in graph.ops:
            for t in op.inputs if op in self.inside else ():
                maker = None if t is None else self.producers.get(t)
                if t is None or maker not in self.inside or t in self.regions:
                    continue
                if t.dtype == "float32" and 4 * t.elements <= op.output.elements:
                    narrow[maker] = None
        return list(narrow)

    def _make(self, op: Op) -> None:
        """Plan the island of an op; a part of it that is too large for one becomes another."""
        while op.output not in self.plans:
            expression = Expression()
            try:
                plan = self._plan(op, expression)
            except TooLarge as error:
                self.exists.add(error.tensor)
                self._make(self.producers[error.tensor])
                continue
            except NoIsland:
                return
            origin = tuple(dict.fromkeys(n for o in [*expression.ops, op] for n in o.origin))
            self.plans[op.output] = plan, expression.tensors, origin

    def _plan(self, op: Op, e: Expression) -> Plan:
        if op in self.inside:
            result = self._expand(e, op)
            return Plan(op.output.shape, tuple(e.sources), assemble(e, result))
        source = op.operand(0)
        if _is_reduction(op):
            axes = tuple(axes_of(op.operand(1), source.rank))
            count = math.prod(source.shape[a] for a in axes) if op.kind is Builtin.MEAN else 1
            code = assemble(e, self._value(e, source))
            reduction = _OF_ALL.get(op.kind) if len(axes) == source.rank else None
            reduction = reduction or _REDUCTIONS[op.kind]
            return Plan(source.shape, tuple(e.sources), code, reduction, axes, float(count))
        if source in self.exists:
            raise NoIsland  # QUANTIZE alone has a kernel of its own
        steps = None
        if self._has_function(source):
            source, steps = self._tail(op)
        result = self._value(e, source)
        if steps is not None and not steps.rising:
            result = e.add(IslandOp.NEG, result)
        return Plan(op.output.shape, tuple(e.sources), assemble(e, result), steps=steps)

    def _tail(self, op: Op) -> tuple[Tensor, Steps]:
        """Where an expression ends, and the steps of the functions behind it.

        What bounds their argument is taken with them: a function that overflows is not monotone in LiteRT.
        """
        chain, tensor = [op], op.operand(0)
        while not self._is_leaf(tensor):
            maker = self.producers[tensor]
            operands = {t for t in maker.inputs if t is not None and not (t.is_const and t.elements == 1)}
            if len(operands) != 1 or maker not in self.inside:
                break
            (before,) = operands
            if before.shape != tensor.shape:
                break
            chain, tensor = [maker, *chain], before
            if not self._has_function(tensor) and (steps := steps_of(tensor, chain)) is not None:
                return tensor, steps
        raise NoIsland

    def _has_function(self, tensor: Tensor) -> bool:
        """Whether an expression has a function that is no operation of IEEE 754."""
        if tensor.is_const or self._is_leaf(tensor):
            return False
        maker = self.producers[tensor]
        if maker.kind in FUNCTIONS:
            return True
        return any(self._has_function(t) for t in maker.inputs if t is not None)

    def _is_leaf(self, tensor: Tensor) -> bool:
        return tensor in self.exists or tensor in self.regions or tensor not in self.producers

    def _value(self, expression: Expression, tensor: Tensor) -> Value:
        """The value of a tensor in an expression: loaded where it is in memory or a byte's, else computed."""
        if (existing := expression.known.get(tensor)) is not None:
            return existing
        if tensor.is_const and tensor.elements == 1:
            value = expression.number(float(tensor.array.reshape(-1)[0]))
        elif tensor.is_const or tensor in self.exists:
            if tensor.dtype == "bool" and tensor.is_const:
                truth = constant(f"{tensor.name}_float", tensor.array.astype(np.float32))
                value = expression.load(truth, tensor.shape)
            elif tensor.dtype == "bool":  # a mask that is an input, or one that was moved
                value = expression.load(tensor, tensor.shape, TRUTHS)
            elif tensor.dtype == "float32":
                value = expression.load(tensor, tensor.shape)
            else:
                raise NoIsland
        elif (region := self.regions.get(tensor)) is not None and region.source.elements == tensor.elements:
            value = self._byte(expression, tensor, region)
        elif (op := self.producers.get(tensor)) is not None and op in self.inside:
            value = self._expand(expression, op)
        else:
            raise NoIsland
        expression.known[tensor] = value
        return value

    def _byte(self, expression: Expression, tensor: Tensor, region: ByteFunction) -> Value:
        expression.ops += region.ops
        if len(region.ops) == 1 and region.source.dtype == "int8":  # no more than DEQUANTIZE: no table
            return expression.load(region.source, tensor.shape)
        table = values_of(region)
        if table is None:
            raise NoIsland
        return expression.load(region.source, tensor.shape, table.astype(np.float32))

    def _expand(self, expression: Expression, op: Op) -> Value:
        """The value an op computes from those of its operands."""
        expression.ops.append(op)
        args = [self._value(expression, op.operand(i)) for i in range(len(op.inputs))]
        if op.kind is Builtin.SELECT_V2:
            return expression.add(IslandOp.SELECT, args[1], args[2], condition=args[0], tensor=op.output)
        if op.kind in _CLAMPS:
            return self._clamp(expression, args[0], _CLAMPS[op.kind], op.output)
        if op.kind in _SWAPPED:
            return expression.add(_SWAPPED[op.kind], args[1], args[0], tensor=op.output)
        if op.kind not in _DIRECT:
            raise NoIsland
        value = expression.add(_DIRECT[op.kind], *args, tensor=op.output)
        activation = Activation(op.options.get("fusedActivationFunction", 0))
        return self._clamp(expression, value, _ACTIVATIONS.get(activation, (None, None)), op.output)

    def _clamp(
        self, e: Expression, value: Value, bounds: tuple[float | None, float | None], tensor: Tensor
    ) -> Value:
        low, high = bounds
        value = value if low is None else e.add(IslandOp.MAXIMUM, e.number(low), value, tensor=tensor)
        return value if high is None else e.add(IslandOp.MINIMUM, e.number(high), value, tensor=tensor)


class NoIsland(Exception):
    """This is no island: its operators stay, and `check_supported` says why they cannot be computed."""
