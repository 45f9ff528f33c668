"""The choice of versions as a labelling problem, and its optimum by a minimum cut."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from openneutron.litert.ir import Builtin, Op, Tensor
from openneutron.litert.perm import Perm, compose, moves_nothing, permutation, permute
from openneutron.lower.layout.agnostic import MAX_RANK, between, layout_operands, reads_either, turn_from
from openneutron.lower.layout.orient import Plan

Variable = Hashable
"""What decides a version: an op that chooses its own, or the fixed version 0 or 1."""


@dataclass(frozen=True)
class Use:
    """One value: its maker decides the version it is made in, each demand a version it is wanted in."""

    maker: Variable
    demands: tuple[Variable, ...]
    cost: int


@dataclass(frozen=True)
class Problem:
    """Choose 0 or 1 for every variable so that values wanted in the version not made cost the least."""

    uses: tuple[Use, ...]

    def variables(self) -> list[Variable]:
        """What can be chosen, in order of appearance."""
        every = (v for use in self.uses for v in (use.maker, *use.demands))
        return [v for v in dict.fromkeys(every) if v not in (0, 1)]

    def cost(self, labels: dict[Variable, int]) -> int:
        """The cost of a choice."""
        chosen: dict[Variable, int] = {0: 0, 1: 1, **labels}
        return sum(u.cost for u in self.uses if any(chosen[d] != chosen[u.maker] for d in u.demands))

    def solve(self) -> dict[Variable, int]:
        """The best choice; among equals the one with most values channels last.

        That puts conversions at the graph's borders, where `strip_border_transposes` finds them.
        """
        from ortools.graph.python.max_flow import SimpleMaxFlow

        # An arc u -> v is cut when u is channels last (the source's side) and v as is. One conversion serves
        # all who want it: an auxiliary node is dragged along by any of them, and it alone pays.
        places: dict[Hashable, int] = {0: 0, 1: 1}
        flow = SimpleMaxFlow()

        def arc(start: Hashable, end: Hashable, capacity: int) -> None:
            flow.add_arc_with_capacity(*(places.setdefault(v, len(places)) for v in (start, end)), capacity)

        for index, use in enumerate(self.uses):
            wanted_as_is, wanted_last = ("as is", index), ("last", index)
            arc(use.maker, wanted_as_is, use.cost)
            arc(wanted_last, use.maker, use.cost)
            for demand in use.demands:  # dearer than what they lead to or come from: never cut
                arc(wanted_as_is, demand, use.cost + 1)
                arc(demand, wanted_last, use.cost + 1)
        if (status := flow.solve(1, 0)) != flow.OPTIMAL:
            raise ArithmeticError(f"the layouts' minimum cut: {status}")
        # The sink gets only what can still reach it, so ties fall to the source's side.
        as_is = set(flow.get_sink_side_min_cut())
        return {v: int(places[v] not in as_is) for v in self.variables()}


def pose(plan: Plan) -> Problem:
    """The choices that the graph leaves and what they cost."""
    makers: dict[Tensor, Variable] = {t: plan.version[t] for t in plan.graph.inputs}
    demands: dict[Tensor, list[Variable]] = {}
    for op in plan.graph.ops:
        if op in plan.conversions:
            continue
        chooses = op in plan.agnostic or op in plan.rows or makes_either(plan, op)
        for t in op.outputs:
            makers[t] = op if chooses else plan.version[t]
        for t, demand in _demands(plan, op):
            demands.setdefault(plan.value[t], []).append(demand)
    for t in plan.graph.outputs:
        if not t.is_const:
            demands.setdefault(plan.value[t], []).append(plan.version[t])

    # One more byte outweighs any number of ops. Among equal bytes fewer ops win, then those of rank 4 or
    # less: a kernel for more dimensions is slower, and not every converter has one.
    op_cost = 2 * MAX_RANK
    byte_cost = 2 * op_cost * (len(makers) + 1)
    uses = []
    for value, maker in makers.items():
        wanted = tuple(d for d in dict.fromkeys(demands.get(value, [])) if d != maker)
        if wanted and value.rank > 2:
            free = moves_nothing(value.shape, turn_from(plan.version[value])(value.rank))
            moved = 0 if free else value.nbytes
            uses.append(Use(maker, wanted, moved * byte_cost + op_cost + max(0, value.rank - 4)))
    return Problem(tuple(uses))


def _demands(plan: Plan, op: Op) -> list[tuple[Tensor, Variable]]:
    """The computed operands that an op wants in one version, and what decides that version."""
    if op in plan.agnostic:
        return [(t, op) for t in layout_operands(op)]
    if op in plan.columns or reads_either(op, plan.version.get(op.operand(0), 0)):
        return []
    if is_permutation(op):
        spared = spared_by(plan, op)
        return [] if spared is None else [(op.operand(0), spared)]
    return [(t, plan.version[t]) for t in op.inputs if t is not None and not t.is_const]


def is_permutation(op: Op) -> bool:
    """Whether the op is a TRANSPOSE with a known permutation, of a computed tensor."""
    return op.kind is Builtin.TRANSPOSE and op.operand(1).is_const and not op.operand(0).is_const


def composed(plan: Plan, op: Op, read: int, write: int) -> Perm:
    """What a permutation becomes when it reads and writes these versions."""
    source, target = op.operand(0), op.output
    before = between(read, plan.version[source], source.rank)
    after = between(plan.version[target], write, target.rank)
    return compose(compose(before, permutation(op)), after)


def spared_by(plan: Plan, op: Op) -> int | None:
    """The one version of its operand from which a permutation has nothing to move, if there is one."""
    still = [v for v in (0, 1) if _has_nothing_to_move(plan, op, v, plan.version[op.output])]
    return still[0] if len(still) == 1 else None


def makes_either(plan: Plan, op: Op) -> bool:
    """Whether a permutation must move its bytes in any case: then it makes either version at no more cost."""
    versions = (0, 1)
    return is_permutation(op) and not any(
        _has_nothing_to_move(plan, op, read, write) for read in versions for write in versions
    )


def _has_nothing_to_move(plan: Plan, op: Op, read: int, write: int) -> bool:
    source = op.operand(0)
    shape = permute(source.shape, between(plan.version[source], read, source.rank))
    return moves_nothing(shape, composed(plan, op, read, write))
