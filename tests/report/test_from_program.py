"""The report of a .pte: with what compile left beside it, and without."""

import hashlib
import json

import pytest

from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model, quantize_model
from openneutron.report.data import report_data
from openneutron.report.from_program import report_from_program
from openneutron.report.sidecar import report_of_program, sidecar_path, write_sidecar
from tests.report.models import Split, example

VARIANTS = {
    "split": {},
    "nothing delegated": {"delegate": False},
    "weights in flash, runtime transposes": {
        "options": CompileOptions(fetch_constants_to_sram=True, use_neutron_for_format_conversion=False)
    },
}
TOLD_BY_THE_MODEL_ONLY = {
    "program", "npu_nodes", "cpu_nodes", "cpu_kernels", "channels_last_helps", "hint", "verified",
}  # fmt: skip


@pytest.fixture(scope="module", params=list(VARIANTS))
def both(request, tmp_path_factory):
    """A program's report from compiling it, its path, and the report of the file alone."""
    program = compile_model(quantize_model(Split().eval(), [example()]), example(), **VARIANTS[request.param])
    path = program.save(tmp_path_factory.mktemp("programs") / "model.pte")
    return report_data(program, path=path), path, json.loads(json.dumps(report_from_program(path)))


def test_a_program_alone_tells_every_figure_but_names_and_reasons(both):
    compiled, _, alone = both
    assert compiled.keys() == alone.keys() and compiled["summary"].keys() == alone["summary"].keys()
    for key, value in compiled["summary"].items():
        if key not in TOLD_BY_THE_MODEL_ONLY:
            assert alone["summary"][key] == value, key
    steps = [
        [(s["kind"], s["start"], s["cycles"], s["bound"], s["macs"], s["border"]) for s in data["timeline"]]
        for data in (compiled, alone)
    ]
    assert steps[0] == steps[1]
    assert alone["missing"] and not compiled["missing"]


def test_its_memory_map_has_the_same_peak_and_its_graph_no_loose_ends(both):
    compiled, _, alone = both
    for mine, theirs in zip(compiled["memory"], alone["memory"], strict=True):
        for region in ("scratch", "prefetch"):
            tops = [b["offset"] + b["nbytes"] for b in theirs["buffers"] if b["region"] == region]
            assert max(tops, default=0) == mine[f"{region}_bytes"]
    nodes = alone["nodes"]
    weights = [n for n in nodes if not n["inputs"] and n["op"] != "input"]
    assert all("dequantize" in n["op"] for n in weights)
    assert all(i < n["id"] for n in nodes for i in n["inputs"])


def test_the_report_beside_a_program_is_used_if_it_is_of_that_program(both, tmp_path):
    compiled, path, _ = both
    copy = tmp_path / "renamed.pte"
    copy.write_bytes(path.read_bytes())
    assert "There is no renamed.report.json" in report_of_program(copy)["missing"][0]
    write_sidecar(copy, compiled)
    found = report_of_program(copy)
    assert found["nodes"] == json.loads(json.dumps(compiled["nodes"])) and not found["missing"]
    assert found["summary"]["program"] == str(copy)


def test_a_stale_or_damaged_report_is_not_used(both, tmp_path):
    compiled, path, alone = both
    copy = tmp_path / "model.pte"
    copy.write_bytes(path.read_bytes())
    for text, remark in (
        (json.dumps({**compiled, "sha256": "0" * 64}), "checksum differs"),
        (json.dumps({**compiled, "schema": 99}), "another version"),
        ("{", "cannot be read"),
    ):
        sidecar_path(copy).write_text(text)
        found = report_of_program(copy)
        assert remark in found["missing"][0]
        assert found["timeline"] == alone["timeline"]


def test_what_firmware_counted_of_this_program_is_shown(both, tmp_path):
    _, path, _ = both
    copy = tmp_path / "model.pte"
    copy.write_bytes(path.read_bytes())
    step = {"method": "forward", "operator": "aten::erf.out", "instruction": 3, "instructions": 900,
            "estimated_cycles": 800, "border": 0, "kernels": {}}  # fmt: skip
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    file = tmp_path / "model_firmware" / "counts.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"core": "cortex-m33", "program": digest, "steps": [step]}))
    counts = report_of_program(copy)["counts"]
    assert counts["core"] == "cortex-m33" and counts["steps"][0]["instructions"] == 900
    for other in ({"core": "x", "program": "another", "steps": [step]}, {"steps": [{}]}, []):
        file.write_text(json.dumps(other))
        assert report_of_program(copy)["counts"] is None
