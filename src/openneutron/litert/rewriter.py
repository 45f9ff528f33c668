"""A graph being rewritten: who makes and who reads each tensor stays known through every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openneutron.litert.build import Names
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor, constant


class Rewriter:
    """Rules change ops in place, remove them, or put new ones in front of the one they look at.

    So the order of execution stays legal by construction. The ops are copies: the graph given is never
    changed. Tensors are shared and never changed.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self.outputs = list(graph.outputs)
        self.names = Names(t.name for t in graph.tensors())
        self._ops = {op.copy(): None for op in graph.ops}
        self._alive = set(self._ops)
        self._added: dict[Op, list[Op]] = {}  # in front of which op, until the order is asked for
        self._at: Op | None = None
        self._makers: dict[Tensor, Op] = {t: op for op in self._ops for t in op.outputs}
        self._readers: dict[Tensor, dict[Op, None]] = {}
        self._instead: dict[Tensor, Tensor] = {}
        self._origins: Counter[str] = Counter()
        self.constants: dict[tuple[Any, ...], Tensor] = {}
        for op in self._ops:
            self._enter(op)

    @property
    def ops(self) -> list[Op]:
        """The ops in execution order."""
        if self._added or len(self._alive) != len(self._ops):
            order = [new for op in self._ops for new in (*self._added.get(op, ()), op)]
            self._ops = {op: None for op in order if op in self._alive}
            self._added = {}
        return list(self._ops)

    def graph(self) -> Graph:
        """The graph as it stands. Its ops are copies again: later rewriting does not change it."""
        ops = [op.copy() for op in self.ops]
        return Graph(list(self._graph.inputs), list(self.outputs), ops, self._graph.name, self._graph.states)

    def apply(self, rule: Callable[..., bool], op: Op, *facts: Any) -> bool:
        """Let a rule look at an op; False if it did nothing, or if the op is gone already."""
        if op not in self._alive:
            return False
        self._at = op
        fired = rule(self, op, *facts)
        if fired and op in self._alive and not any(self._makers.get(t) is op for t in op.outputs):
            self.remove(op)  # what the rule added makes its results
        return fired

    # -- questions

    def maker(self, tensor: Tensor, *kinds: Builtin) -> Op | None:
        """The op that makes a tensor, if it is of one of these kinds (of any, if none is named)."""
        op = self._makers.get(tensor)
        return op if op is not None and (not kinds or op.kind in kinds) else None

    def readers(self, tensor: Tensor) -> list[Op]:
        """The ops that read a tensor."""
        return list(self._readers.get(tensor, ()))

    def is_output(self, tensor: Tensor) -> bool:
        """Whether the graph returns the tensor."""
        return any(t is tensor for t in self.outputs)

    def only_for(self, tensor: Tensor, reader: Op) -> bool:
        """Whether nobody but this op sees the tensor."""
        return not self.is_output(tensor) and self.readers(tensor) == [reader]

    def current(self, tensor: Tensor) -> Tensor:
        """What is read by now in place of a tensor of the graph given."""
        while tensor in self._instead:
            tensor = self._instead[tensor]
        return tensor

    # -- changes

    def update(
        self,
        op: Op,
        *,
        kind: Builtin | None = None,
        inputs: Sequence[Tensor | None] | None = None,
        output: Tensor | None = None,
        options: dict[str, Any] | None = None,
        merged: Sequence[Op] = (),
        custom_name: str = "",
    ) -> None:
        """Change an op in place. `merged` are the ops whose work it does from now on, itself among them."""
        self._leave(op)
        op.kind = op.kind if kind is None else kind
        op.inputs = op.inputs if inputs is None else list(inputs)
        op.options = op.options if options is None else options
        op.custom_name = custom_name or op.custom_name
        op.origin = tuple(dict.fromkeys(name for other in merged or (op,) for name in other.origin))
        if output is not None:
            if self._makers.get(op.output) is op:
                del self._makers[op.output]
            op.outputs = [output]
        self._enter(op)

    def remove(self, op: Op) -> None:
        """Take an op out; what it made must no longer be wanted."""
        self._leave(op)
        self._alive.discard(op)
        for t in op.outputs:
            if self._makers.get(t) is op:
                del self._makers[t]

    def can_replace(self, old: Tensor, new: Tensor) -> bool:
        """Whether every use of `old` could be one of `new`.

        Each graph output keeps its own tensor: it can give way only to one that is not an input or output.
        """
        return not self.is_output(old) or (new in self._makers and not self.is_output(new))

    def bypass(self, op: Op, new: Tensor) -> bool:
        """Let all read `new` in place of what the op makes, and remove the op; False if that cannot be."""
        old = op.output
        assert old.is_like(new), f"{old!r} is not {new!r}"
        if not self.can_replace(old, new):
            return False
        maker = self._makers.get(new)
        readers = [r for r in (self.readers(old) or self.readers(new)) if r is not op]
        heir = maker or next(iter(readers), None)
        self.remove(op)
        if self.is_output(old):
            assert maker is not None
            self.redirect(new, old)
            maker.outputs = [old if t is new else t for t in maker.outputs]
            del self._makers[new]
            self._makers[old] = maker
        else:
            self.redirect(old, new)
        lost = tuple(name for name in op.origin if not self._origins[name])
        if heir is not None and lost:
            self._leave(heir)
            heir.origin = tuple(dict.fromkeys(heir.origin + lost))
            self._enter(heir)
        return True

    def redirect(self, old: Tensor, new: Tensor) -> None:
        """Let all ops that read `old` read `new`."""
        self._instead[old] = new
        for reader in self.readers(old):
            self.update(reader, inputs=[new if t is old else t for t in reader.inputs])

    def replace(self, old: Tensor, new: Tensor) -> None:
        """Let all read `new` in place of `old`, and the graph return it."""
        self.redirect(old, new)
        self.outputs = [new if t is old else t for t in self.outputs]

    # -- new ones, in front of the op that the rule looks at

    def tensor(self, hint: str, shape: Sequence[int], dtype: str, quant: Quant | None) -> Tensor:
        """A new tensor with a free name."""
        return Tensor(self.names.fresh(hint), tuple(int(d) for d in shape), dtype, quant)

    def constant(self, hint: str, data: np.ndarray, quant: Quant | None = None) -> Tensor:
        """A new constant with a free name."""
        return constant(self.names.fresh(hint), data, quant)

    def ints(self, hint: str, values: Sequence[int]) -> Tensor:
        """A new one-dimensional int32 constant: how LiteRT passes permutations, axes and shapes."""
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
        """A new op with one output, which may be one of the op's that the rule looks at; the output."""
        assert self._at is not None, "ops are added by rules"
        op = Op(kind, list(inputs), [output], dict(options or {}), origin, custom_name)
        self._added.setdefault(self._at, []).append(op)
        self._alive.add(op)
        self._enter(op)
        return output

    def reshape(self, source: Tensor, output: Tensor, origin: tuple[str, ...]) -> Tensor:
        """A new RESHAPE into `output`."""
        shape = self.ints(f"{output.name}_shape", output.shape)
        return self.add(Builtin.RESHAPE, [source, shape], output, origin, {"newShape": output.shape})

    def slice(self, source: Tensor, begin: Sequence[int], output: Tensor, origin: tuple[str, ...]) -> Tensor:
        """A new SLICE into `output`, whose shape is the size."""
        begins = self.ints(f"{output.name}_begin", begin)
        sizes = self.ints(f"{output.name}_size", output.shape)
        return self.add(Builtin.SLICE, [source, begins, sizes], output, origin)

    def _enter(self, op: Op) -> None:
        self._origins.update(op.origin)
        for t in op.inputs:
            if t is not None:
                self._readers.setdefault(t, {})[op] = None
        for t in op.outputs:
            self._makers[t] = op

    def _leave(self, op: Op) -> None:
        self._origins.subtract(op.origin)
        for t in op.inputs:
            if t is not None:
                self._readers[t].pop(op, None)


def drop_dead_ops(graph: Graph) -> Graph:
    """The graph without the ops whose outputs nobody reads."""
    needed = set(graph.outputs)
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            needed.update(t for t in op.inputs if t is not None)
            ops.append(op)
    return Graph(graph.inputs, graph.outputs, ops[::-1], graph.name, graph.states)
