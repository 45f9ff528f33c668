"""The report's data: what a reader may rely on, whatever the program."""

import json

import pytest
import torch

from openneutron.options import CompileOptions
from openneutron.pipeline import compile_litert, compile_model, quantize_model
from openneutron.report.data import report_data
from openneutron.report.summary import best_hint
from tests.report.models import Split, example

VARIANTS = {
    "split": {},
    "nothing delegated": {"delegate": False},
    "weights in flash, runtime transposes": {
        "options": CompileOptions(fetch_constants_to_sram=True, use_neutron_for_format_conversion=False)
    },
}


@pytest.fixture(scope="module")
def quantized():
    return quantize_model(Split().eval(), [example()])


@pytest.fixture(scope="module", params=list(VARIANTS))
def data(request, quantized):
    program = compile_model(quantized, example(), **VARIANTS[request.param])
    return json.loads(json.dumps(report_data(program, name=request.param)))


def test_the_timeline_adds_up_to_the_estimate(data):
    steps, summary = data["timeline"], data["summary"]
    now = 0
    for index, step in enumerate(steps):
        assert (step["index"], step["start"]) == (index, now)
        assert 0 < step["advance"] <= step["cycles"]
        now += step["advance"]
    assert now == max(s["start"] + s["cycles"] for s in steps) == summary["cycles_estimated"]
    assert summary["cycles_npu"] + summary["cycles_cpu"] + summary["cycles_borders"] == now


def test_nodes_carry_all_cycles_and_macs_but_runtime_transposes(data):
    ownerless = [s for s in data["timeline"] if not s["nodes"]]
    assert {s["kind"] for s in ownerless} <= {"transpose"}
    assert (
        sum(n["cycles"] for n in data["nodes"]) + sum(s["advance"] for s in ownerless)
        == (data["summary"]["cycles_estimated"])
    )
    summary = data["summary"]
    for where in ("npu", "cpu"):
        assert sum(n["macs"] for n in data["nodes"] if n["where"] == where) == summary[f"macs_{where}"]


def test_the_graph_is_whole(data):
    nodes = data["nodes"]
    assert [n["id"] for n in nodes] == list(range(len(nodes)))
    assert all(i < n["id"] for n in nodes for i in n["inputs"])
    assert [n["op"] for n in nodes if n["where"] == "io"] == ["input", "output"]
    reached = {nodes[-1]["id"]}
    for node in reversed(nodes):
        if node["id"] in reached:
            reached.update(node["inputs"])
    constants = {n["id"] for n in nodes if not n["inputs"] and n["where"] == "cpu"}  # dequantized weights
    assert reached == {n["id"] for n in nodes} and all("dequant" in nodes[i]["op"] for i in constants)
    for node in nodes:
        for index in node["calls"]:
            assert node["id"] in data["timeline"][index]["nodes"]


def test_every_operator_on_the_cpu_has_a_reason(data):
    for node in data["nodes"]:
        computes = node["where"] == "cpu" and "quantize_per" not in node["op"]
        assert (node["reason"] is not None) == computes, node
    assert len(data["summary"]["cpu_nodes"]) == sum(n["reason"] is not None for n in data["nodes"])


def test_the_memory_map_ends_where_the_scratch_does(data):
    assert len(data["memory"]) == data["summary"]["partitions"]
    for part in data["memory"]:
        for region in ("scratch", "prefetch"):
            tops = [b["offset"] + b["nbytes"] for b in part["buffers"] if b["region"] == region]
            assert max(tops, default=0) == part[f"{region}_bytes"]
        for buffer in part["buffers"]:
            first, last = buffer["first"], buffer["last"]
            assert {data["timeline"][i]["partition"] for i in range(first, last + 1)} == {part["partition"]}


def test_a_litert_model_has_its_operators_as_nodes(quantized):
    litert = compile_model(quantized, example()).partitions[-1].litert
    data = report_data(compile_litert(litert))
    where = {n["where"] for n in data["nodes"]}
    assert where == {"npu", "io"}
    assert sum(n["macs"] for n in data["nodes"]) == data["summary"]["macs_npu"] > 0


def test_copies_overlap_and_belong_to_the_operator_they_are_for(quantized):
    program = compile_model(quantized, example(), options=CompileOptions(fetch_constants_to_sram=True))
    data = report_data(program)
    copies = [s for s in data["timeline"] if s["kind"] == "copy"]
    assert any(s["cycles"] > s["advance"] for s in copies)
    linear = next(n for n in data["nodes"] if "linear" in n["op"])
    assert {data["timeline"][i]["kind"] for i in linear["calls"]} == {"copy", "wait", "kernel"}


def test_a_model_that_was_not_quantized_is_told_so():
    class Best(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 12)

        def forward(self, x):
            return torch.topk(torch.relu(self.layer(x)), 3)[0]  # topk is not in the operator table

    program = compile_model(Best().eval(), (torch.zeros(1, 8),), verify=False)
    assert "nothing is quantized" in best_hint(program.summary())
    assert any("calibration" in rejected.reject.hint for rejected in program.rejected)
