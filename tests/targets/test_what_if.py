"""Chips that a user makes up: what their file may say, and that nothing takes them for real."""

from __future__ import annotations

import json

import pytest

from openneutron import CompileOptions
from openneutron.bench.networks import NETWORKS
from openneutron.cli import main
from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode.format import INVENTED_NAME, decode
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.cores import find_firmware_core
from openneutron.targets.spec import NeutronTargetSpec
from openneutron.targets.table import find_target

BASE = 'base = "imxrt700"\n'
TWICE = 'base = "imxrt700"\nmacs = 128\nsram_bytes = 3_932_160\nfrequency_hz = 648_000_000\n'


def chip(tmp_path, text: str) -> str:
    path = tmp_path / "mychip.toml"
    path.write_text(text)
    return str(path)


def test_fields_are_changed_and_costs_follow(tmp_path):
    target = find_target(chip(tmp_path, TWICE + "[cost]\nsram_bytes_per_cycle = 6\n"))
    assert (target.name, target.num_macs, target.pipes) == ("mychip", 128, 16)
    assert (target.sram_bytes, target.frequency_hz) == (3_932_160, 648_000_000)
    assert target.cost.cpu_frequency_hz == 648_000_000 and target.cost.drain_cycles == 16
    assert dict(target.cost.sources)["sram_bytes_per_cycle"].startswith("invented")
    assert "INVENTED" in target.chip and "macs 128" in target.invented
    spec = NeutronTargetSpec(str(tmp_path / "mychip.toml"))
    assert spec.hw_version == "invented N3-128" and spec.get_hw_version().name == "N3"


def test_more_macs_are_faster_and_less_sram_is_refused(tmp_path):
    graph, real = NETWORKS["mobilenet_v1_025_128"](), find_target("imxrt700")
    path = chip(tmp_path, 'base = "imxrt700"\nmacs = 128\n[cost]\nsram_bytes_per_cycle = 12\n')
    fast = compile_graph(graph, find_target(path), CompileOptions(path))
    assert fast.cycles < compile_graph(graph, real, CompileOptions()).cycles
    assert decode(fast.microcode).target == INVENTED_NAME
    small = chip(tmp_path, 'base = "imxrt700"\nsram_bytes = 100_000\n')
    with pytest.raises(OpenNeutronError, match="100,000 bytes of SRAM"):
        compile_graph(graph, find_target(small), CompileOptions(small))


def test_it_is_marked_and_has_no_firmware(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = chip(tmp_path, TWICE)
    assert (
        main(["compile", "autoencoder", "--target-file", path, "-o", "a.pte", "--accuracy", "fast", "--json"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["target"] == "mychip" and data["verified"].startswith("passed")
    assert "INVENTED" in data["chip"] and data["invented"] and "INVENTED" in data["estimate_label"]
    assert main(["run", "a.pte"]) == 0  # the simulator runs it
    assert main(["firmware", "a.pte", "--bare"]) != 0
    assert "invented" in capsys.readouterr().err
    assert main(["report", "a.pte"]) != 0
    assert "invented chip" in capsys.readouterr().err
    with pytest.raises(OpenNeutronError, match="invented"):
        find_firmware_core(target=path)


@pytest.mark.parametrize(
    "text",
    [
        "", "nonsense", "macs = 128", 'base = "imx95"', "base = 7",
        BASE + 'name = "mcxn94x"', BASE + 'name = "imx95"', BASE + 'name = "../x"', BASE + 'name = 3',
        BASE + 'macs = 100', BASE + 'macs = true', BASE + 'macs = -8',
        BASE + 'pipes = 1_000_000', BASE + 'macs = 64\npipes = 8',
        BASE + 'sram_bytes = 1e6', BASE + 'sram_bytes = "1M"', BASE + 'speed = 2',
        BASE + 'reads_flash = 1', BASE + 'cost = 3', BASE + '[cost]\nx = 1',
        BASE + '[cost]\ncall_cycles = nan', BASE + '[cost]\ncall_cycles = inf',
        BASE + '[cost]\ncall_cycles = 0', BASE + '[cost]\ncall_cycles = 1.5',
        BASE + '[cost]\nsram_bytes_per_cycle = 5e-324',
        BASE + '[cost]\nsources = 1', BASE + 'frequency_hz = 0',
        BASE + '[base]\nx = 1', BASE + 'number = 1', BASE + 'cores = []',
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_sentence(tmp_path, text):
    with pytest.raises(OpenNeutronError) as caught:
        find_target(chip(tmp_path, text))
    assert caught.value.diagnostic.code == "ON113"


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert main(["compile", "cifarnet", "--target-file", str(tmp_path / "none.toml")]) != 0
    assert "none.toml" in capsys.readouterr().err
    assert main(["compile", "cifarnet", "--target-file", "chip.txt"]) == 2
    path = chip(tmp_path, TWICE)
    assert main(["compile", "cifarnet", "--target-file", path, "--target", "mcxn94x"]) == 2
    assert "not allowed with" in capsys.readouterr().err
    assert main(["compile", "cifarnet", "--target-file", path, "--converter", "eiq"]) != 0
    assert "ON113" in capsys.readouterr().err
