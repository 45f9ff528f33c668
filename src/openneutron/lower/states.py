"""How what a graph remembers lies in memory: nobody outside sees it, so that it may be channels last."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from openneutron.litert.build import Names, ints
from openneutron.litert.ir import Builtin, Graph, Op, State, Tensor
from openneutron.litert.perm import permute, to_first, to_last
from openneutron.lower.layout import transposed_bytes
from openneutron.lower.rules import finish


def finish_with_states(graph: Graph) -> Graph:
    """The finished graph, with those states channels last for which the fewest bytes are transposed."""
    best = finish(graph)
    maps = [state.name for state, tensor, _ in graph.state_tensors() if tensor.rank in (3, 4)]
    groups = [maps, *([name] for name in maps)] if len(maps) > 1 else [maps] if maps else []
    chosen: set[str] = set()
    for group in groups:
        if not transposed_bytes(best):
            break
        trial = finish(channels_last(graph, chosen | set(group)))
        if _cost(trial) < _cost(best):
            best, chosen = trial, chosen | set(group)
    return best


def _cost(graph: Graph) -> tuple[int, int]:
    return transposed_bytes(graph), len(graph.ops)


def channels_last(graph: Graph, names: Collection[str]) -> Graph:
    """The same function with these states stored channels last: converted where they are read and written."""
    fresh = Names(t.name for t in graph.tensors())
    inputs, outputs = list(graph.given), list(graph.returned)
    before: list[Op] = []
    after: list[Op] = []
    states: list[State] = []
    for state, old, new in graph.state_tensors():
        if state.name in names:
            last, first = to_last(old.rank), to_first(old.rank)
            stored = replace(old, name=fresh.fresh(f"{old.name}_stored"), shape=permute(old.shape, last))
            written = replace(stored, name=fresh.fresh(f"{old.name}_next"))
            before.append(_transposed(stored, first, old, fresh))
            after.append(_transposed(new, last, written, fresh))
            state = State(state.name, np.ascontiguousarray(state.initial.transpose(last)))
            old, new = stored, written
        inputs.append(old)
        outputs.append(new)
        states.append(state)
    return Graph(inputs, outputs, [*before, *graph.ops, *after], graph.name, tuple(states)).verify()


def _transposed(source: Tensor, perm: tuple[int, ...], result: Tensor, fresh: Names) -> Op:
    order = ints(perm, fresh.fresh(f"{result.name}_perm"))
    return Op(Builtin.TRANSPOSE, [source, order], [result], {}, (result.name,))
