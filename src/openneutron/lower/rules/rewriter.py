"""A graph being rewritten: who makes and who reads each tensor stays known through every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from openneutron.litert.build import Names
from openneutron.litert.ir import Builtin, Graph, Op, Tensor


class Rewriter:
    """Rules change ops in place and never insert any, so the order of execution stays legal by construction.

    The ops are copies: the graph given is never changed. Tensors are shared and never changed.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self.outputs = list(graph.outputs)
        self.names = Names(t.name for t in graph.tensors())
        self._ops = {
            replace(op, inputs=list(op.inputs), outputs=list(op.outputs), options=dict(op.options)): None
            for op in graph.ops
        }
        self._makers: dict[Tensor, Op] = {t: op for op in self._ops for t in op.outputs}
        self._readers: dict[Tensor, dict[Op, None]] = {}
        self._origins: Counter[str] = Counter()
        self.constants: dict[tuple[Any, ...], Tensor] = {}
        for op in self._ops:
            self._enter(op)

    @property
    def ops(self) -> list[Op]:
        """The ops in execution order."""
        return list(self._ops)

    def graph(self) -> Graph:
        """The graph as it stands. Its ops are copies again: later rewriting does not change it."""
        ops = [replace(op, inputs=list(op.inputs), outputs=list(op.outputs)) for op in self._ops]
        return Graph(list(self._graph.inputs), list(self.outputs), ops, self._graph.name)

    # -- questions

    def alive(self, op: Op) -> bool:
        """Whether the op is still part of the graph."""
        return op in self._ops

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
    ) -> None:
        """Change an op in place. `merged` are the ops whose work it does from now on, itself among them."""
        self._leave(op)
        op.kind = op.kind if kind is None else kind
        op.inputs = op.inputs if inputs is None else list(inputs)
        op.options = op.options if options is None else options
        op.origin = tuple(dict.fromkeys(name for other in merged or (op,) for name in other.origin))
        if output is not None:
            if self._makers.get(op.output) is op:
                del self._makers[op.output]
            op.outputs = [output]
        self._enter(op)

    def remove(self, op: Op) -> None:
        """Take an op out; what it made must no longer be wanted."""
        self._leave(op)
        del self._ops[op]
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
        assert (old.shape, old.dtype, old.quant) == (new.shape, new.dtype, new.quant), (
            f"{old!r} is not {new!r}"
        )
        if not self.can_replace(old, new):
            return False
        maker = self._makers.get(new)
        readers = [r for r in (self.readers(old) or self.readers(new)) if r is not op]
        heir = maker or next(iter(readers), None)
        self.remove(op)
        if self.is_output(old):
            assert maker is not None
            self._redirect(new, old)
            maker.outputs = [old if t is new else t for t in maker.outputs]
            del self._makers[new]
            self._makers[old] = maker
        else:
            self._redirect(old, new)
        lost = tuple(name for name in op.origin if not self._origins[name])
        if heir is not None and lost:
            self._leave(heir)
            heir.origin = tuple(dict.fromkeys(heir.origin + lost))
            self._enter(heir)
        return True

    def _redirect(self, old: Tensor, new: Tensor) -> None:
        for reader in self.readers(old):
            self.update(reader, inputs=[new if t is old else t for t in reader.inputs])

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
