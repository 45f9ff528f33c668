"""Every rule alone, as text: what it makes of a graph, and what it leaves alone. No bit changes."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron.compiler.graph.rules import GROUPS
from openneutron.litert.ir import Graph, Tensor
from openneutron.litert.rules import Group, run
from openneutron.lower.groups import SPLIT_GROUPS
from openneutron.lower.rules import BEFORE_LAYOUT, OPTIMIZE
from tests.compiler.machine import run_op
from tests.litert_graphs import inputs_for
from tests.rules.cases import Case, parse, read_cases

ALONE = {
    rule.name: Group(rule.name, (rule,), group.until_none_fires)
    for group in (*GROUPS, SPLIT_GROUPS)
    for rule in group.rules
}
CASES = list(read_cases())
OPTIMIZED = {rule.name for rule in OPTIMIZE.rules}
ALWAYS = {  # there is nothing of the kind that they leave alone
    "fold_shape",
    "concatenate_in_place_of_pack",
    "slice_in_place_of_unpack",
    "slice_in_place_of_split",
}


@pytest.mark.parametrize("case", CASES, ids=[case.rule for case in CASES])
def test_rule(case: Case) -> None:
    after = run(case.graph, [ALONE[case.rule]])
    assert str(after) == str(parse(case.wanted or case.given))
    if case.wanted and case.rule != "interleave_planes":  # no oracle: only a kernel reads rows of planes
        others = [after, *([run(case.graph, [OPTIMIZE])] if case.rule in OPTIMIZED else [])]
        for other in others:
            for old, new in zip(computed(case.graph), computed(other), strict=True):
                np.testing.assert_array_equal(old, new)


def computed(graph: Graph) -> list[np.ndarray]:
    """The results of a graph that may have operators of the compiler's own, op by op."""
    values: dict[Tensor, np.ndarray] = dict(zip(graph.inputs, inputs_for(graph), strict=True))
    for op in graph.ops:
        operands = [None if t is None else t.array if t.is_const else values[t] for t in op.inputs]
        values.update(zip(op.outputs, run_op(op, operands), strict=True))
    return [values[t] for t in graph.outputs]


def test_every_rule_has_a_case_for_and_against() -> None:
    fires = {case.rule for case in CASES if case.wanted} | {"form_islands"}  # tests/compiler/test_islands.py
    assert fires == ALONE.keys() == {case.rule for case in CASES if not case.wanted} | ALWAYS


def test_rules_and_groups_are_named_once_and_explained() -> None:
    rules = {rule for group in (*GROUPS, SPLIT_GROUPS) for rule in group.rules}
    assert len(rules) == len(ALONE)
    assert all(rule.reason.split("\n")[0].endswith(".") for rule in rules)
    groups = {group.name.partition(":")[0] for group in {*GROUPS, BEFORE_LAYOUT, SPLIT_GROUPS}}
    assert len(groups) == len({*GROUPS, BEFORE_LAYOUT, SPLIT_GROUPS})
