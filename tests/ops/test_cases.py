"""Every case of the table: the lowered graph, run by LiteRT's reference kernels, equals quantized PyTorch.

All cases of one operator go through one export, side by side: a failure names the case.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from openneutron import CustomDelegationOptions
from openneutron.fx import op_name
from openneutron.ops import TABLE
from openneutron.ops.spec import Case, OpSpec
from openneutron.package.program import inside
from tests.lowering import Bundle, compute_nodes, make_inputs, output_steps, quantize, take

RUNS = 4  # input sets compared per case, and one that calibration has not seen
ONLY = os.environ.get("CASE")  # the label of one case, to look at it alone


def _bundles() -> list[tuple[OpSpec, str, list[Case]]]:
    found = []
    for spec in TABLE:
        cases = [c for c in spec.cases if ONLY is None or c.label == ONLY]
        chosen = {
            "plain": cases,
            "channels_last": [c for c in cases if c.channels_last],
            "qat": [c for c in cases if c.qat],
        }
        found += [(spec, variant, cases) for variant, cases in chosen.items() if cases]
    return found


def test_every_operator_has_cases() -> None:
    assert [spec.name for spec in TABLE if not spec.cases] == []


@pytest.mark.parametrize(
    ("spec", "variant", "cases"), [pytest.param(*b, id=f"{b[0].name}-{b[1]}") for b in _bundles()]
)
def test_cases_equal_quantized_pytorch(spec: OpSpec, variant: str, cases: list[Case]) -> None:
    last = variant == "channels_last"
    batches = [make_inputs(cases, seed, last) for seed in range(RUNS)]
    quantized = quantize(Bundle(cases), batches, qat=variant == "qat")
    options = CustomDelegationOptions(allow_no_op_partitions=True)
    delegated = take(quantized, batches[0], custom_delegation_options=options)
    assert compute_nodes(delegated.program) == [], [str(r.reject) for r in delegated.partitioner.rejected]
    assert len(delegated.partitioner.partitions) == 1
    graphs = [quantized.graph, *(inside(m).graph for m in delegated.modules)]
    called = {op_name(node) for graph in graphs for node in graph.nodes}
    assert variant != "plain" or called & set(spec.names), f"no case calls {spec.name}"
    steps = output_steps(quantized)
    worst = dict.fromkeys((c.label for c in cases), 0.0)
    for batch in itertools.chain(batches, [make_inputs(cases, 99, last)]):
        for case, want, got, step in zip(cases, quantized(*batch), delegated.run(batch), steps, strict=True):
            assert got.shape == want.shape
            worst[case.label] = max(worst[case.label], float(torch.max(torch.abs(got - want))) / step)
    allowed = {c.label: c.tolerance + 1e-3 for c in cases}
    assert {label: round(error, 2) for label, error in worst.items() if error > allowed[label]} == {}
