"""Writing the graph anew in the versions chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openneutron.litert.build import Names, ints
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor, constant
from openneutron.litert.perm import Perm, moves_nothing, permute
from openneutron.lower.layout.agnostic import (
    layout_operands,
    reads_either,
    relayout,
    turn_from,
    turned_flat_order,
)
from openneutron.lower.layout.orient import Plan
from openneutron.lower.layout.problem import Variable, composed, is_permutation, makes_either, spared_by


def emit(plan: Plan, labels: dict[Variable, int]) -> Graph:
    """The graph with each op computed in the version its label says, and conversions where still needed."""
    return _Emitter(plan, labels).emit()


class _Emitter:
    """Tensors of the old graph are kept wherever they still exist: its inputs and outputs always."""

    def __init__(self, plan: Plan, labels: dict[Variable, int]):
        self.plan = plan
        self.labels = labels
        self.names = Names(t.name for t in plan.graph.tensors())
        self.ops: list[Op] = []
        self.made: dict[tuple[Tensor, int], Tensor] = {(t, plan.version[t]): t for t in plan.graph.inputs}
        # The tensor of each version: a graph output if there is one, so that outputs keep their names.
        outputs = [t for t in plan.graph.outputs if not t.is_const]
        self.known: dict[tuple[Tensor, int], Tensor] = {}
        for t in (*plan.graph.inputs, *outputs, *plan.version):
            self.known.setdefault((plan.value[t], plan.version[t]), t)
        self.origins: dict[Tensor, tuple[str, ...]] = {}
        for op in plan.graph.ops:
            if op in plan.conversions:
                value = plan.value[op.output]
                self.origins[value] = tuple(dict.fromkeys(self.origins.get(value, ()) + op.origin))
        # FULLY_CONNECTED op -> the order that its columns, and its rows, take on.
        self.columns: dict[Op, np.ndarray] = {}
        self.rows: dict[Op, np.ndarray] = {}
        for unflatten, writer in plan.rows.items():
            version = plan.version[unflatten.output]
            if self._label(unflatten, version) != version:
                self.rows[writer] = turned_flat_order(unflatten.output.shape, version)

    def emit(self) -> Graph:
        for op in self.plan.graph.ops:
            if op not in self.plan.conversions:
                self.ops.append(self._rewritten(op))
        for t in self.plan.graph.outputs:
            if not t.is_const:
                self._deliver(t)
        self._keep_origins()
        return replace(self.plan.graph, ops=self.ops)

    def _keep_origins(self) -> None:
        """Where no op is left of a source node that only converted, what made the value answers for it."""
        present = {name for op in self.ops for name in op.origin}
        makers = {t: op for op in self.ops for t in op.outputs}
        for value, names in self.origins.items():
            lost = tuple(name for name in names if name not in present)
            versions = [self.made[value, v] for v in (0, 1) if (value, v) in self.made]
            readers = [op for op in self.ops if lost and any(t in op.inputs for t in versions)]
            heir = next((makers[t] for t in versions if t in makers), next(iter(readers), None))
            if lost and heir is not None:
                heir.origin += lost

    # -- ops

    def _rewritten(self, op: Op) -> Op:
        plan = self.plan
        if op in plan.agnostic:
            return self._agnostic(op)
        if op in plan.columns:
            return self._flattened(op)
        if op in plan.rows:
            output = self._make(op.output, self._label(op, plan.version[op.output]))
            return self._reshape(self._in_version(op.operand(0), 0), output, op.origin)
        if is_permutation(op):
            return self._permuted(op)
        if reads_either(op, plan.version.get(op.operand(0), 0)):
            return self._reduced(op)
        inputs = [t if t is None or t.is_const else self._in_version(t, plan.version[t]) for t in op.inputs]
        outputs = [self._make(t, plan.version[t]) for t in op.outputs]
        if op in self.columns or op in self.rows:
            inputs[1:3] = [t if t is None else self._reordered(op, t) for t in inputs[1:3]]
        return replace(op, inputs=inputs, outputs=outputs)

    def _agnostic(self, op: Op) -> Op:
        written = self.plan.written_in(op)
        version = self._label(op, written)
        follow = layout_operands(op)
        inputs = list(op.inputs)
        for index, t in enumerate(op.inputs):
            if t is not None and not t.is_const:
                inputs[index] = self._in_version(t, version) if t in follow else self._at_hand(t)[0]
        output = self._make(op.output, version)
        if version == written:
            return replace(op, inputs=inputs, outputs=[output])
        return relayout(op, turn_from(written), inputs, output, self.names)

    def _flattened(self, op: Op) -> Op:
        source = op.operand(0)
        tensor, version = self._at_hand(source)
        if version != self.plan.version[source]:
            order = turned_flat_order(source.shape, self.plan.version[source])
            self.columns.update(dict.fromkeys(self.plan.columns[op], order))
        return self._reshape(tensor, self._make(op.output, 0), op.origin)

    def _reordered(self, op: Op, parameter: Tensor) -> Tensor:
        """Weights or bias of a FULLY_CONNECTED op, in the order of what it reads and writes."""
        if op not in self.rows and parameter.rank != 2:
            return parameter  # only the columns change, and a bias has none
        data, quant = parameter.array, parameter.quant
        if op in self.columns and data.ndim == 2:
            data = data[:, self.columns[op]]
        if op in self.rows:
            order = self.rows[op]
            data = data[order]
            if quant is not None and not quant.is_per_tensor:
                zeros = tuple(quant.zero_point[i] for i in order)
                quant = Quant(tuple(quant.scale[i] for i in order), zeros, quant.axis)
        return constant(self.names.fresh(parameter.name), data, quant)

    def _permuted(self, op: Op) -> Op:
        """A permutation that stays: it reads what is there, or the version that spares it the work."""
        source, written = op.operand(0), self.plan.version[op.output]
        spared = spared_by(self.plan, op)
        if spared is None:
            tensor, read = self._at_hand(source)
        else:
            tensor, read = self._in_version(source, spared), spared
        write = self._label(op, written) if makes_either(self.plan, op) else written
        target = self._make(op.output, write)
        return self._transpose(tensor, composed(self.plan, op, read, write), target, op.origin)

    def _reduced(self, op: Op) -> Op:
        """A reduction whose result is the same from either version: it reads the one that is there."""
        source = op.operand(0)
        tensor, read = self._at_hand(source)
        inputs: list[Tensor | None] = [tensor, op.operand(1)]
        output = self._make(op.output, self.plan.version[op.output])
        written = self.plan.version[source]
        if read == written:
            return replace(op, inputs=inputs, outputs=[output])
        return relayout(op, turn_from(written), inputs, output, self.names)

    def _transpose(self, source: Tensor, perm: Perm, target: Tensor, origin: tuple[str, ...]) -> Op:
        if moves_nothing(source.shape, perm):
            return self._reshape(source, target, origin)
        order = ints(perm, self.names.fresh(f"{target.name}_perm"))
        return Op(Builtin.TRANSPOSE, [source, order], [target], {}, origin)

    def _reshape(self, source: Tensor, target: Tensor, origin: tuple[str, ...]) -> Op:
        shape = ints(target.shape, self.names.fresh(f"{target.name}_shape"))
        return Op(Builtin.RESHAPE, [source, shape], [target], {"newShape": target.shape}, origin)

    # -- tensors

    def _label(self, op: Op, default: int) -> int:
        """The version chosen for an op; one that no cost depends on stays as it is."""
        return self.labels.get(op, default)

    def _make(self, t: Tensor, version: int) -> Tensor:
        """The tensor for a result, in this version."""
        key = (t, version if t.rank > 2 else 0)
        self.made[key] = self._tensor(key)
        return self.made[key]

    def _tensor(self, key: tuple[Tensor, int]) -> Tensor:
        if key not in self.known:
            value, version = key
            shape = permute(value.shape, turn_from(1 - version)(value.rank))
            name = self.names.fresh(f"{value.name}_{'channels_last' if version else 'as_is'}")
            self.known[key] = Tensor(name, shape, value.dtype, value.quant)
        return self.known[key]

    def _at_hand(self, t: Tensor) -> tuple[Tensor, int]:
        """The operand in a version that has been made, and which: the one of the old graph, if both are."""
        value, version = self.plan.value[t], self.plan.version[t]
        if (value, version) not in self.made:
            version = 1 - version
        return self.made[value, version], version

    def _in_version(self, t: Tensor, version: int) -> Tensor:
        """The operand in this version, converted if need be."""
        value = self.plan.value[t]
        key = (value, version if t.rank > 2 else 0)
        if key not in self.made:
            source, target = self.made[value, 1 - version], self._tensor(key)
            perm = turn_from(1 - version)(value.rank)
            self.ops.append(self._transpose(source, perm, target, self.origins.get(value, ())))
            self.made[key] = target
        return self.made[key]

    def _deliver(self, t: Tensor) -> None:
        """See that a graph output is made; one that equals an input or another output is a copy of it."""
        source = self._in_version(t, self.plan.version[t])
        if source is not t and not any(t in op.outputs for op in self.ops):
            self.ops.append(self._reshape(source, t, self.origins.get(self.plan.value[t], ())))
