"""Rewriting LiteRT graphs: ops are taken in order, kept, replaced or dropped; the graph given stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openneutron.litert.build import Names
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor, constant


class Rewriter:
    """A graph being rebuilt from another one. Ops are copied, never changed; tensors are shared."""

    def __init__(self, graph: Graph):
        self.source = graph
        self.ops: list[Op] = []
        self._names = Names(t.name for t in graph.tensors())
        self._instead: dict[Tensor, Tensor] = {}

    def current(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor of the source graph by now."""
        while tensor in self._instead:
            tensor = self._instead[tensor]
        return tensor

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Readers of `old` read `new` from here on."""
        assert old is not new
        self._instead[old] = new

    def tensor(self, hint: str, shape: Sequence[int], dtype: str, quant: Quant | None) -> Tensor:
        """A new tensor with a free name."""
        return Tensor(self._names.fresh(hint), tuple(int(d) for d in shape), dtype, quant)

    def constant(self, hint: str, data: np.ndarray, quant: Quant | None = None) -> Tensor:
        """A new constant with a free name."""
        return constant(self._names.fresh(hint), data, quant)

    def ints(self, hint: str, values: Sequence[int]) -> Tensor:
        """A new one-dimensional int32 constant."""
        return self.constant(hint, np.array(values, np.int32))

    def add(
        self,
        kind: Builtin,
        inputs: Sequence[Tensor | None],
        output: Tensor,
        origin: tuple[str, ...],
        options: dict[str, Any] | None = None,
        custom_name: str = "",
    ) -> Tensor:
        """Append an op with one output; the output."""
        self.ops.append(Op(kind, list(inputs), [output], dict(options or {}), origin, custom_name))
        return output

    def reshape(self, source: Tensor, output: Tensor, origin: tuple[str, ...]) -> Tensor:
        """Append a RESHAPE into `output`."""
        shape = self.ints(f"{output.name}_shape", output.shape)
        return self.add(Builtin.RESHAPE, [source, shape], output, origin, {"newShape": output.shape})

    def slice(self, source: Tensor, begin: Sequence[int], output: Tensor, origin: tuple[str, ...]) -> Tensor:
        """Append a SLICE into `output`, whose shape is the size."""
        begins = self.ints(f"{output.name}_begin", begin)
        sizes = self.ints(f"{output.name}_size", output.shape)
        return self.add(Builtin.SLICE, [source, begins, sizes], output, origin)

    def keep(self, op: Op) -> None:
        """Append the op as it is, reading what stands for its inputs."""
        inputs = [None if t is None else self.current(t) for t in op.inputs]
        self.ops.append(Op(op.kind, inputs, list(op.outputs), dict(op.options), op.origin, op.custom_name))

    def finish(self) -> Graph:
        """The new graph, without ops that nothing reads, verified."""
        outputs = [self.current(t) for t in self.source.outputs]
        return drop_dead_ops(Graph(list(self.source.inputs), outputs, self.ops, self.source.name)).verify()


Rule = Callable[[Op, Rewriter], bool]
"""Emits the replacement of an op and says True, or leaves it alone and says False."""


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Apply a rule to every op in order."""
    rewriter = Rewriter(graph)
    for op in graph.ops:
        current = Op(
            op.kind,
            [None if t is None else rewriter.current(t) for t in op.inputs],
            op.outputs,
            op.options,
            op.origin,
            op.custom_name,
        )
        if not rule(current, rewriter):
            rewriter.keep(current)
    return rewriter.finish()


def drop_dead_ops(graph: Graph) -> Graph:
    """The graph without the ops whose outputs nobody reads."""
    needed = set(graph.outputs)
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            needed.update(t for t in op.inputs if t is not None)
            ops.append(op)
    return Graph(graph.inputs, graph.outputs, ops[::-1], graph.name)
