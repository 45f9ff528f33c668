"""Which version each tensor of a graph is, and which of its transposes only convert between versions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from openneutron.litert.ir import Builtin, Graph, Op, Tensor, Trait
from openneutron.litert.perm import Perm, permutation, to_first, to_last
from openneutron.lower.layout.agnostic import (
    depends_on_version,
    is_agnostic,
    layout_operands,
)


@dataclass
class Plan:
    """What is known about a graph before any version is chosen."""

    graph: Graph
    version: dict[Tensor, int]
    """Which version of its value each computed tensor is; 0 below rank 3, where there is only one."""
    value: dict[Tensor, Tensor]
    """The tensor that stands for the value: the one that no conversion made."""
    conversions: set[Op]
    """TRANSPOSE ops between the versions of one value: they vanish."""
    agnostic: set[Op]
    """Ops that can be computed in either version."""
    columns: dict[Op, list[Op]] = field(default_factory=dict)
    """Flattening RESHAPE -> the FULLY_CONNECTED ops that can have their columns permuted."""
    rows: dict[Op, Op] = field(default_factory=dict)
    """Unflattening RESHAPE -> the FULLY_CONNECTED op that can have its rows permuted."""

    def written_in(self, op: Op) -> int:
        """The version that an agnostic op is computed in as the graph stands."""
        return next((self.version[t] for t in _versioned((*layout_operands(op), op.output))), 0)


def orient(graph: Graph) -> Plan:
    """Decide which version each tensor is. Where two facts disagree, the later op is simply not agnostic.

    Versions are names: any choice gives a correct graph. A good one lets ops agree with their neighbours, so
    what is certain comes first: spatial ops, then conversions of rank 4 and more, then agnostic ops; the rest
    (reshapes, and rank 3, where both conversions are the same permutation) when a neighbour is known.
    """
    versions = _Versions()
    conversions: set[Op] = set()
    agnostic: set[Op] = set()
    undecided: list[Op] = []
    for op in graph.ops:
        if op.kind.has(Trait.SPATIAL):
            for t in _versioned((*op.inputs, *op.outputs)):
                versions.fix(t, 1)
    for op in graph.ops:
        perm = _conversion(op)
        if perm is not None and len(perm) == 3:
            undecided.append(op)
        elif perm is not None:
            read = int(perm == to_first(len(perm)))
            if versions.fix(op.operand(0), read) and versions.fix(op.output, 1 - read):
                conversions.add(op)
    for op in graph.ops:
        if depends_on_version(op):
            undecided.append(op)
        elif is_agnostic(op, 0):
            alike = _versioned((*layout_operands(op), op.output))
            if all(versions.relate(alike[0], t, 0) for t in alike[1:]):
                agnostic.add(op)
    while undecided:
        batch = [op for op in undecided if versions.near(op) is not None] or undecided[:1]
        for op in batch:
            if op.kind is Builtin.TRANSPOSE:
                if versions.relate(op.operand(0), op.output, 1):
                    conversions.add(op)
            elif _settle(versions, op):
                agnostic.add(op)
        decided = set(batch)
        undecided = [op for op in undecided if op not in decided]

    version = {t: versions.find(t)[1] if t.rank > 2 else 0 for t in graph.tensors() if not t.is_const}
    value = {t: t for t in version}
    for op in graph.ops:
        if op in conversions:
            value[op.output] = value[op.operand(0)]
    plan = Plan(graph, version, value, conversions, agnostic)
    _find_flattens(plan)
    return plan


_AS_IS = "as is"  # stands for version 0 among the tensors


class _Versions:
    """What is known of the tensors' versions: sets of equal or opposite ones (union-find with parity)."""

    def __init__(self) -> None:
        self._parent: dict[Hashable, tuple[Hashable, int]] = {}

    def find(self, x: Hashable) -> tuple[Hashable, int]:
        """The representative of x (`_AS_IS` in its own set), and whether x is its opposite."""
        path, parity = [], 0
        while x in self._parent:
            path.append(x)
            x = self._parent[x][0]
        for node in reversed(path):
            parity ^= self._parent[node][1]
            self._parent[node] = (x, parity)
        return x, parity

    def relate(self, a: Hashable, b: Hashable, opposite: int) -> bool:
        """Learn that a and b are equal or opposite; False if that contradicts what is known."""
        (root_a, parity_a), (root_b, parity_b) = self.find(a), self.find(b)
        if root_a == root_b:
            return parity_a ^ parity_b == opposite
        if root_a == _AS_IS:
            root_a, root_b = root_b, root_a
        self._parent[root_a] = (root_b, parity_a ^ parity_b ^ opposite)
        return True

    def fix(self, tensor: Tensor, version: int) -> bool:
        """Learn the version of a tensor; False if that contradicts what is known."""
        return self.relate(tensor, _AS_IS, version)

    def near(self, op: Op) -> int | None:
        """The version of the operand or the result of an op, if one of them is known."""
        for t in _versioned((op.operand(0), op.output)):
            root, version = self.find(t)
            if root == _AS_IS:
                return version
        return None


def _settle(versions: _Versions, op: Op) -> bool:
    """Decide whether a reshape or reduction is agnostic, given what is known around it."""
    near = versions.near(op)
    version = int(not is_agnostic(op, 0)) if near is None else near
    return is_agnostic(op, version) and all(
        versions.fix(t, version) for t in _versioned((op.operand(0), op.output))
    )


def _versioned(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """Those that are not constants and of a rank that has two versions."""
    return [t for t in tensors if t is not None and not t.is_const and t.rank > 2]


def _conversion(op: Op) -> Perm | None:
    """The permutation of a TRANSPOSE that may be a conversion between versions."""
    if op.kind is not Builtin.TRANSPOSE or not op.operand(1).is_const or op.operand(0).is_const:
        return None
    perm = permutation(op)
    return perm if len(perm) > 2 and perm in (to_last(len(perm)), to_first(len(perm))) else None


def _find_flattens(plan: Plan) -> None:
    """Find reshapes to and from (N, features) with only FULLY_CONNECTED ops on that side."""
    producers, consumers = plan.graph.producers(), plan.graph.consumers()
    outputs = set(plan.graph.outputs)

    def readers(t: Tensor) -> list[Op] | None:
        ops: list[Op] = []
        for op in consumers.get(t, []):
            if op.kind.has(Trait.UNARY):
                more = readers(op.output)
                if more is None:
                    return None
                ops += more
            elif _weights_can_follow(op) and op.operand(1).shape[1] == t.shape[1]:
                ops.append(op)
            else:
                return None
        return None if t in outputs else ops

    def writer(t: Tensor) -> Op | None:
        op = producers.get(t)
        if op is None or t in outputs or len(consumers[t]) != 1:
            return None
        if op.kind.has(Trait.UNARY):
            return writer(op.operand(0))
        return op if _weights_can_follow(op) and op.operand(1).shape[0] == t.shape[1] else None

    for op in plan.graph.ops:
        if op.kind is not Builtin.RESHAPE or op in plan.agnostic or op.operand(0).is_const:
            continue
        source, target = op.operand(0), op.output
        if source.shape[:1] != target.shape[:1]:
            continue
        if source.rank > 2 and target.rank == 2:
            reading = readers(target)
            if reading is not None:
                plan.columns[op] = reading
        elif source.rank == 2 and target.rank > 2:
            fully_connected = writer(source)
            if fully_connected is not None:
                plan.rows[op] = fully_connected


def _weights_can_follow(op: Op) -> bool:
    """Whether the op's weights are constants whose rows and columns can be permuted at will."""
    if op.kind is not Builtin.FULLY_CONNECTED or op.options.get("weightsFormat", 0):
        return False
    source, weights, *bias = op.inputs
    if source is None or source.is_const or weights is None or not weights.is_const or weights.rank != 2:
        return False
    per_row = weights.quant is None or weights.quant.is_per_tensor or weights.quant.axis == 0
    return per_row and weights.dtype == "int8" and all(t is None or t.is_const for t in bias)
