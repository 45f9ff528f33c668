"""Node data for Model Explorer: the structure it reads, and keys it can find in the graphs it shows."""

import json
from pathlib import Path

import pytest

from openneutron.litert.file import read
from openneutron.report.data import report_data
from openneutron.report.model_explorer import model_explorer_node_data
from openneutron.report.render import render_report
from tests.report.pages import PROGRAMS


@pytest.fixture(scope="module")
def program():
    return PROGRAMS["split"]()


@pytest.fixture(scope="module")
def data(program):
    return report_data(program)


@pytest.mark.parametrize("name", ["x.nodedata.json", "x.tensors.nodedata.json"])
def test_structure(data, name):
    found = json.loads(render_report(Path(name), data))
    assert set(found) == {"results", "gradient"}
    assert found["results"] and all(set(v) == {"value"} for v in found["results"].values())
    assert all(type(v["value"]) is int and v["value"] > 0 for v in found["results"].values())
    stops = [stop["stop"] for stop in found["gradient"]]
    assert stops == sorted(stops) and (stops[0], stops[-1]) == (0, 1)
    assert all(len(stop["bgColor"]) == 7 and stop["bgColor"][0] == "#" for stop in found["gradient"])


def test_nodes_are_those_of_the_edge_program(data):
    results = model_explorer_node_data(data)["results"]
    assert results.keys() <= {node["name"] for node in data["nodes"]}
    counted = sum(step["advance"] for step in data["timeline"] if step["nodes"])
    assert sum(v["value"] for v in results.values()) == counted


def test_tensors_are_those_of_the_litert_files(program, data):
    results = model_explorer_node_data(data, "tensor")["results"]
    graphs = [read(partition.litert, "partition") for partition in program.partitions]
    heavy = {"CONV_2D", "FULLY_CONNECTED", "MAX_POOL_2D"}
    written = [op.outputs[0].name for graph in graphs for op in graph.ops if op.kind.name in heavy]
    assert len(written) == 4 and set(written) <= results.keys()
    assert sum(v["value"] for v in results.values()) == data["summary"]["cycles_estimated"]
