"""Import, fusion, order and placement together: outputs equal the oracle's, without any kernel."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from openneutron.compiler.graph.rules import fuse, import_graph
from openneutron.compiler.memory.schedule import make_schedule, plan_memory
from openneutron.compiler.memory.storage import Home
from openneutron.litert.file import read, write
from openneutron.litert.reference import run_reference
from tests.compiler.graphs import random_graph, random_inputs
from tests.compiler.machine import run_plan


@settings(max_examples=60)
@given(st.integers(0, 2**31))
def test_random_graphs_mean_the_same(seed):
    graph = read(write(random_graph(seed)))
    fused = fuse(import_graph(graph))
    plan = plan_memory(make_schedule(fused))
    check_plan(plan)
    inputs = random_inputs(graph, seed)
    for expected, got in zip(run_reference(graph, inputs), run_plan(fused, plan, inputs), strict=True):
        np.testing.assert_array_equal(got, expected)


def check_plan(plan):
    """Buffers that are both needed at a step never share a byte, in-place successors aside."""
    overwrites = plan.schedule.overwrites
    for step, op in enumerate(plan.schedule.steps):
        live = [b for b, (first, last) in plan.lives.items() if first <= step <= last]
        for i, a in enumerate(live):
            assert a.home is Home.SCRATCH
            assert plan.offsets[a] + a.nbytes <= plan.scratch_bytes
            for b in live[:i]:
                if overwrites.get(a) is b or overwrites.get(b) is a:
                    old, new = (b, a) if overwrites.get(a) is b else (a, b)
                    assert plan.lives[old][1] == plan.lives[new][0] == step
                    assert plan.offsets[a] == plan.offsets[b] and a.nbytes == b.nbytes
                    assert op.output in plan.schedule.storage.places
                else:
                    assert (
                        plan.offsets[a] + a.nbytes <= plan.offsets[b]
                        or plan.offsets[b] + b.nbytes <= plan.offsets[a]
                    )
