"""The optimizer's rules, in the groups that run together. Each keeps every output bit."""

from __future__ import annotations

from openneutron.litert.ir import Graph
from openneutron.litert.rules import Group, run
from openneutron.lower.layout import infer_layout, transposed_bytes
from openneutron.lower.rules import cleanup, fusion, movement

TIDY = Group(
    "tidy: what moves data, or would, is merged, cancelled or taken out",
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
        movement.merge_transposes,
        movement.reshape_in_place_of_transpose,
        movement.merge_reshapes,
        movement.merge_movement_across_unary,
        movement.fold_transpose_into_matmul,
    ),
    until_none_fires=True,
)
OPTIMIZE = Group(
    "optimize: that, then requantization and copies, then fusion, which needs the ops side by side",
    (
        *TIDY.rules,
        cleanup.drop_same_quantize,
        cleanup.drop_quantize_of_dequantize,
        cleanup.merge_requantize,
        cleanup.dedupe_constants,
        cleanup.merge_common_ops,
        fusion.fold_pad,
        fusion.fuse_activation,
        cleanup.drop_idle_activation,
    ),
    until_none_fires=True,
)
BEFORE_LAYOUT = OPTIMIZE.without(
    "before layout: the transposes stay, from which layout inference learns what the dimensions mean",
    movement.drop_identity_transpose,
    movement.merge_transposes,
    movement.reshape_in_place_of_transpose,
    movement.merge_movement_across_unary,
)


def finish(graph: Graph) -> Graph:
    """Everything between lowering and a converter: optimize, choose layouts, optimize what that left.

    Merging transposes first can hide what layout inference needs to know, and choosing layouts first can hide
    that two permutations cancel. So both orders are tried, and the one that moves fewer bytes is taken.
    """
    tries = []
    for first in (BEFORE_LAYOUT, OPTIMIZE):
        result = run(graph, [first])
        for _ in range(2):  # what the rules merge can turn out to be a conversion between layouts
            result = run(infer_layout(result), [OPTIMIZE])
        tries.append(result)
        if not transposed_bytes(result):
            break
    return min(tries, key=lambda result: (transposed_bytes(result), len(result.ops)))
