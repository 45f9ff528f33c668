"""The forms of a graph that may need less memory, each with a plan, and the choice among them.

In performance mode there is one: the graph as it is, every step computed whole. In size mode the candidate
with the least scratch is chosen, the earlier one of equals:

    as it is                the smallest plan within the budget of cycles
    images interleaved      images in planes are ordered by rows first: then all channels of a row die at once
    projections in parts    what recurrent layers read step by step is computed in parts (of the best so far)

The budget is a share of the cycles of the graph as it is, whatever the form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from openneutron.compiler.graph.fuse_conv import PLANAR
from openneutron.compiler.graph.projections import cut_projections
from openneutron.compiler.graph.rules import INTERLEAVE
from openneutron.compiler.memory.schedule import (
    MemoryPlan,
    Schedule,
    make_schedule,
    plan_memory,
    with_given_order,
)
from openneutron.compiler.stripes.tile import fitting_plan, network_cycles, smallest_plan
from openneutron.litert.ir import Graph
from openneutron.litert.rules import run
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target

MOST_STEPS_AGAIN = 4_000  # of a network that is planned a second time in another form
IMAGES_DOMINATE = 0.8  # of the scratch: no other form can save much then


@dataclass(frozen=True)
class Candidate:
    """A form of the graph, and a plan of its memory."""

    graph: Graph
    plan: MemoryPlan
    order: Schedule  # the order that a plan within less memory begins with

    def within(self, limit: int, target: Target, options: CompileOptions) -> Candidate:
        """The same form, planned to fit into so many bytes if it can be."""
        orders = with_given_order(self.graph, self.order, _in_arena(options))
        return replace(self, plan=fitting_plan(orders, target, options, limit))


def choose_candidate(graph: Graph, target: Target, options: CompileOptions) -> Candidate:
    """The form and the plan that the options ask for."""
    schedule = make_schedule(graph, _in_arena(options))
    if options.optimise != "size":
        return Candidate(graph, plan_memory(schedule), schedule)
    images = sum(op.operand(0).nbytes for op in graph.ops if op.custom_name == PLANAR)
    best = _images_interleaved(graph, schedule, target, options) if images else None
    if best is None or images < IMAGES_DOMINATE * best.plan.scratch_bytes:
        best = _least(_as_it_is(graph, schedule, target, options), best)
    if len(best.plan.units) > MOST_STEPS_AGAIN:
        return best
    return _least(best, _projections_in_parts(best, schedule, target, options))


def _least(first: Candidate, second: Candidate | None) -> Candidate:
    less = second is not None and second.plan.scratch_bytes < first.plan.scratch_bytes
    return second if second is not None and less else first


def _as_it_is(graph: Graph, schedule: Schedule, target: Target, options: CompileOptions) -> Candidate:
    orders = with_given_order(graph, schedule, _in_arena(options))
    return Candidate(graph, smallest_plan(orders, target, options) or plan_memory(schedule), schedule)


def _images_interleaved(
    graph: Graph, whole: Schedule, target: Target, options: CompileOptions
) -> Candidate | None:
    if not _in_arena(options):
        return None
    interleaved = run(graph, INTERLEAVE)
    orders = with_given_order(interleaved, make_schedule(interleaved, True), True)
    plan = smallest_plan(orders, target, options, network_cycles(whole, target))
    return None if plan is None else Candidate(interleaved, plan, plan.schedule)


def _projections_in_parts(
    best: Candidate, whole: Schedule, target: Target, options: CompileOptions
) -> Candidate | None:
    """None where nothing recurrent takes a quarter of the scratch, or the cycles are beyond the budget."""
    parted = cut_projections(best.graph, best.plan.scratch_bytes // 4)
    if parted is None:
        return None
    arena, cycles = _in_arena(options), network_cycles(whole, target)
    for may_copy in (True, False):  # copies of every step may be more than the budget allows
        orders = with_given_order(parted, make_schedule(parted, arena, may_copy), arena)
        if (plan := smallest_plan(orders, target, options, cycles)) is not None:
            return Candidate(parted, plan, plan.schedule)
    return None


def _in_arena(options: CompileOptions) -> bool:
    """Whether inputs and outputs lie in scratch with the rest."""
    return options.optimise == "size" and not options.keep_inputs
