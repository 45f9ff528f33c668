"""Profiles: ExecuTorch's own Inspector names every kernel call, and our table says the same."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from executorch.devtools import Inspector

from openneutron.compiler.microcode.format import Kernel
from openneutron.diagnostics import OpenNeutronError
from openneutron.models import build_model, example_inputs
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from openneutron.run.profile import microcode_calls, read_profile
from openneutron.run.program import load_program
from openneutron.targets.table import find_target
from tests.programs import compiled_for, random_inputs
from tests.run.models import Plain, Split

TARGET = find_target("imxrt700")


@cache
def network(name: str):
    inputs = example_inputs(name)
    return compile_model(build_model(name), inputs, calibration=[inputs], etrecord=True), inputs


def traced(program, inputs, folder: Path, runs: int = 1) -> tuple[Path, Path]:
    """Run a program and write what the Inspector reads."""
    loaded = load_program(program.pte, etdump=True)
    for _ in range(runs):
        loaded.run(inputs)
    loaded.write_etdump(folder / "x.etdp")
    return folder / "x.etdp", program.save_etrecord(folder / "x.etrecord")


# Kernels and the edge operators that may be behind them; the others move data for whatever is beside them.
EXPECTED = {
    Kernel.CONV_2D: {"aten.convolution.default"},
    Kernel.CONV_2D_POINTWISE: {"aten.convolution.default"},
    Kernel.DEPTHWISE_CONV_2D: {"aten.convolution.default"},
    Kernel.MAX_POOL_2D: {"aten.max_pool2d_with_indices.default"},
    Kernel.AVERAGE_POOL_2D: {"aten.adaptive_avg_pool2d.default"},
    Kernel.ADD: {"aten.add.Tensor"},
    Kernel.FULLY_CONNECTED: {"aten.linear.default"},
    Kernel.SOFTMAX: {"aten._softmax.default"},
}


@pytest.mark.slow  # networks of the zoo with ETRecords
@pytest.mark.parametrize("name", ["cifarnet", "mobilenet_v2"])
def test_inspector_shows_every_kernel_with_its_edge_operator(name, tmp_path):
    program, inputs = network(name)
    etdump, etrecord = traced(program, inputs, tmp_path)
    inspector = Inspector(etdump_path=str(etdump), etrecord=str(etrecord))
    (block,) = [b for b in inspector.event_blocks if b.name == "Execute"]
    events = {int(e.delegate_debug_identifier): e for e in block.events if e.is_delegated_op}
    (calls,) = microcode_calls(program.info.methods["forward"]).values()
    assert list(events) == list(range(len(calls)))
    for number, call in enumerate(calls):
        event = events[number]
        ops = {op for op in event.op_types if not op.startswith("quantized_decomposed")}
        assert ops, f"{name}: call {number} ({call.kernel.name}) has no edge operator"
        assert ops & EXPECTED.get(call.kernel, ops), f"call {number}: {call.kernel.name} from {ops}"
        assert event.delegate_backend_name == "NeutronBackend"
        assert event.delegate_debug_metadatas == [call.kernel.name.encode()]
        assert event.perf_data.p50 > 0
    # Every node the NPU computes is seen, but for those that compute nothing.
    seen = {n.rstrip("_") for e in events.values() for n in e.stack_traces}
    assert {n for n in program.npu_nodes if n not in seen and "getitem" not in n} <= {
        n for n in program.npu_nodes if "view_copy" in n or "dropout" in n
    }
    assert "NeutronBackend" in set(inspector.to_dataframe()["delegate_backend_name"])


@cache
def two_delegates():
    return compiled_for(Split(), Split.shapes, options=CompileOptions(use_profiling=True))


@pytest.mark.slow  # two delegates, lowered with an ETRecord
def test_profile_of_two_delegates(tmp_path):
    program = two_delegates()
    etdump, etrecord = traced(program, random_inputs(Split.shapes, 0), tmp_path, runs=3)
    method = program.info.methods["forward"]
    profile = read_profile(etdump, method, TARGET, etrecord)
    counts = [len(graph.calls) for graph in program.compiled]
    assert [row.delegate for row in profile.calls] == [0] * counts[0] + [1] * counts[1]
    assert profile.runs == 3 and profile.named
    costs = [call.cost.cycles for graph in program.compiled for call in graph.calls]
    assert [row.cycles_estimated for row in profile.calls] == costs
    assert sum(row.host_share for row in profile.calls) == pytest.approx(1)
    assert sum(row.cycles_share for row in profile.calls) == pytest.approx(1)
    assert all(any("convolution" in op for op in row.ops) for row in profile.calls)
    names = [other.name for other in profile.others]
    assert "atan.out" in names and sum("outside its calls" in n for n in names) == 2

    bare = read_profile(etdump, method, TARGET, None)
    assert [row.kernel for row in bare.calls] == [row.kernel for row in profile.calls]
    assert not bare.named and not any(row.ops for row in bare.calls)


@pytest.mark.slow  # two delegates, lowered with an ETRecord
def test_files_that_do_not_fit_are_refused(tmp_path):
    program = two_delegates()
    etdump, etrecord = traced(program, random_inputs(Split.shapes, 0), tmp_path)
    other = compiled_for(Plain(), Plain.shapes)
    forward = program.info.methods["forward"]
    truncated = tmp_path / "short.etrecord"
    truncated.write_bytes(etrecord.read_bytes()[:1000])
    short = tmp_path / "short.etdp"
    short.write_bytes(etdump.read_bytes()[:100])
    for dump, method, record, text in (
        (etdump, forward, tmp_path / "none.etrecord", "ON510"),
        (etdump, forward, truncated, "ON516"),
        (short, forward, None, "ON516"),
        (etdump, other.info.methods["forward"], etrecord, "another program"),
        (etdump, other.info.methods["forward"], None, "kernel calls"),
    ):
        with pytest.raises(OpenNeutronError, match=text):
            read_profile(dump, method, TARGET, record)
    with pytest.raises(OpenNeutronError, match="ON104"):
        other.save_etrecord(tmp_path / "no.etrecord")


def test_a_stage_of_a_cascade_has_one_event_with_all_its_steps(tmp_path):
    options = CompileOptions(optimise="size", cycle_budget=5)
    program = compiled_for(Plain(), Plain.shapes, options=options, etrecord=True)
    assert "CASCADE" in program.kernels
    etdump, etrecord = traced(program, random_inputs(Plain.shapes, 0), tmp_path, runs=3)
    method = program.info.methods["forward"]
    profile = read_profile(etdump, method, TARGET, etrecord)
    (calls,) = microcode_calls(method).values()
    assert [c.kernel for c in profile.calls] == [call.kernel.name for call in calls]
    assert profile.runs == 3 and all(c.nodes for c in profile.calls)
    (cascade,) = [c for c in profile.calls if c.kernel == "CASCADE"]
    stages = profile.calls[cascade.call + 1 : cascade.call + 1 + calls[cascade.call].stages]
    assert set(cascade.nodes) == {node for stage in stages for node in stage.nodes}
    assert sum(c.cycles_estimated for c in profile.calls) == program.compiled[0].cycles
