"""The optimizer: rewrite rules as named data, applied until none fires. Each keeps every output bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openneutron.litert.ir import Graph, Op
from openneutron.litert.layout import infer_layout
from openneutron.litert.rules import cleanup, fusion, movement
from openneutron.litert.rules.rewriter import Rewriter

__all__ = ["RULES", "Rule", "finish", "optimize"]


@dataclass(frozen=True)
class Rule:
    """One rewrite: looks at one op and its neighbours, and either changes the graph or returns False."""

    name: str
    doc: str
    function: Callable[[Rewriter, Op], bool]


def _rule(function: Callable[[Rewriter, Op], bool]) -> Rule:
    doc = function.__doc__
    assert doc is not None
    return Rule(function.__name__, doc.strip().splitlines()[0], function)


# In order: first less to look at, then movement, then fusion, which needs the ops side by side.
RULES: tuple[Rule, ...] = tuple(
    map(
        _rule,
        (
            cleanup.remove_dead_op,
            movement.reshape_in_place_of_squeeze,
            movement.fold_constant_movement,
            movement.drop_identity_reshape,
            movement.drop_identity_transpose,
            cleanup.drop_whole_slice,
            cleanup.drop_empty_pad,
            cleanup.drop_single_tile,
            cleanup.drop_single_concatenation,
            cleanup.drop_same_quantize,
            cleanup.drop_quantize_of_dequantize,
            movement.merge_transposes,
            movement.reshape_in_place_of_transpose,
            movement.merge_reshapes,
            movement.merge_movement_across_unary,
            movement.fold_transpose_into_matmul,
            cleanup.merge_requantize,
            cleanup.dedupe_constants,
            cleanup.merge_common_ops,
            fusion.fold_pad,
            fusion.fuse_activation,
            cleanup.drop_idle_activation,
        ),
    )
)


def optimize(graph: Graph, rules: Sequence[Rule] = RULES, counts: Counter[str] | None = None) -> Graph:
    """Apply the rules until none fires; the graph is verified after every round.

    How often each rule fired is added to `counts`.
    """
    rewriter = Rewriter(graph)
    fired: Counter[str] = Counter() if counts is None else counts
    changed = True
    while changed:
        changed = False
        for rule in rules:
            for op in rewriter.ops:
                if rewriter.alive(op) and rule.function(rewriter, op):
                    fired[rule.name] += 1
                    changed = True
        graph = rewriter.graph().verify()
    return graph


def finish(graph: Graph, counts: Counter[str] | None = None) -> Graph:
    """Everything between lowering and a converter: optimize, choose layouts, optimize what that left."""
    return optimize(infer_layout(optimize(graph, counts=counts)), counts=counts)
