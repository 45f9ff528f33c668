"""The optimizer: rewrite rules as named data, applied until none fires. Each keeps every output bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openneutron.litert.ir import Graph, Op
from openneutron.litert.rewriter import Rewriter
from openneutron.lower.layout import infer_layout, transposed_bytes
from openneutron.lower.rules import cleanup, fusion, movement

__all__ = ["RULES", "Rule", "finish", "optimize"]


@dataclass(frozen=True)
class Rule:
    """One rewrite: looks at one op and its neighbours, and either changes the graph or returns False."""

    name: str
    doc: str
    function: Callable[[Rewriter, Op], bool]
    hides_layout: bool = False
    """Whether it does away with transposes, from which layout inference learns what the dimensions mean."""


def _rule(function: Callable[[Rewriter, Op], bool], hides_layout: bool = False) -> Rule:
    doc = function.__doc__
    assert doc is not None
    return Rule(function.__name__, doc.strip().splitlines()[0], function, hides_layout)


# In order: first less to look at, then movement, then fusion, which needs the ops side by side.
RULES: tuple[Rule, ...] = (
    _rule(cleanup.remove_dead_op),
    _rule(movement.reshape_in_place_of_squeeze),
    _rule(movement.fold_constant_movement),
    _rule(movement.drop_identity_reshape),
    _rule(movement.drop_identity_transpose, hides_layout=True),
    _rule(cleanup.drop_whole_slice),
    _rule(cleanup.drop_empty_pad),
    _rule(cleanup.drop_single_tile),
    _rule(cleanup.drop_single_concatenation),
    _rule(cleanup.drop_same_quantize),
    _rule(cleanup.drop_quantize_of_dequantize),
    _rule(movement.merge_transposes, hides_layout=True),
    _rule(movement.reshape_in_place_of_transpose, hides_layout=True),
    _rule(movement.merge_reshapes),
    _rule(movement.merge_movement_across_unary, hides_layout=True),
    _rule(movement.fold_transpose_into_matmul),
    _rule(cleanup.merge_requantize),
    _rule(cleanup.dedupe_constants),
    _rule(cleanup.merge_common_ops),
    _rule(fusion.fold_pad),
    _rule(fusion.fuse_activation),
    _rule(cleanup.drop_idle_activation),
)


# What moves data, or would: merged, cancelled, taken out.
MOVEMENT: tuple[Rule, ...] = tuple(
    rule
    for rule in RULES
    if rule.function.__module__ == movement.__name__ or rule.function in cleanup.MOVES_NOTHING
)


def tidy(graph: Graph) -> Graph:
    """Only the rules about ops that move data: fit for graphs with operators of a compiler's own."""
    return optimize(graph, (RULES[0], *MOVEMENT))


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
                if rewriter.apply(rule.function, op):
                    fired[rule.name] += 1
                    changed = True
        if changed:
            graph = rewriter.graph().verify()
    return graph


def finish(graph: Graph, counts: Counter[str] | None = None) -> Graph:
    """Everything between lowering and a converter: optimize, choose layouts, optimize what that left.

    Merging transposes first can hide what layout inference needs to know, and choosing layouts first can hide
    that two permutations cancel. So both orders are tried, and the one that moves fewer bytes is taken.
    """
    tries = []
    for rules in ([rule for rule in RULES if not rule.hides_layout], RULES):
        fired: Counter[str] = Counter()
        result = optimize(graph, rules, fired)
        for _ in range(2):  # what the rules merge can turn out to be a conversion between layouts
            result = optimize(infer_layout(result), counts=fired)
        tries.append((transposed_bytes(result), len(result.ops), result, fired))
        if not transposed_bytes(result):
            break
    _, _, best, fired = min(tries, key=lambda attempt: attempt[:2])
    if counts is not None:
        counts.update(fired)
    return best
