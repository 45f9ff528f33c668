"""`openneutron targets`: the list, the table, predictions, and what new measurements do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openneutron.bench import published
from openneutron.bench.networks import NETWORKS
from openneutron.cli import main
from openneutron.models.zoo import ZOO
from openneutron.report.cost_model import band, error_label, measurements
from openneutron.targets import table
from openneutron.targets.table import REFUSED_TARGETS, TARGETS, find_target


def test_the_list_has_every_chip_with_what_is_known_assumed_and_refused(capsys):
    assert main(["targets"]) == 0
    text = capsys.readouterr().out
    for name in (*TARGETS, *REFUSED_TARGETS):
        assert f"{name}: " in text
    assert "known: " in text and "assumed: " in text and "refused: " in text
    assert main(["targets", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [t["name"] for t in data["targets"]] == list(TARGETS)
    assert {r["name"] for r in data["refused"]} == set(REFUSED_TARGETS)
    assert all(f["source"] for t in data["targets"] for f in t["facts"])


def test_the_table(capsys):
    assert main(["targets", "mcxn94x", "--table"]) == 0
    text = capsys.readouterr().out
    assert "imxrt700" not in text and str(band("npu")) in text and "shown only" in text
    assert main(["targets", "--table", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["published"]) == len(measurements())


def test_every_published_network_can_be_built():
    for target in TARGETS.values():
        for row in target.published:
            assert row.network in NETWORKS


def test_one_chip_refused_or_without_times(capsys):
    assert main(["targets", "imx95"]) == 0
    assert capsys.readouterr().out.count("refused: ") == 1
    assert main(["targets", "mcxn54x", "--table"]) == 0
    assert "no time is published" in capsys.readouterr().out
    assert main(["targets", "mcxn54x", "--predict", "list.txt"]) == 2
    assert "has no effect" in capsys.readouterr().err


def test_the_committed_predictions_are_what_is_predicted():
    """The zoo on three chips: a change of the estimate asks for `openneutron targets --predict` again."""
    text = (Path(published.__file__).parents[3] / "benchmarks/predictions.json").read_text()
    data = json.loads(text)
    assert {row["network"] for row in data["predictions"]} == set(ZOO)
    assert data["label"] == error_label()
    small = [row for row in data["predictions"] if row["network"] in ("autoencoder", "resnet8", "dscnn")]
    published_for = {name for name, target in TARGETS.items() if target.published}
    assert published_for <= {row["target"] for row in small} <= set(TARGETS)  # a new chip may wait
    for row in small:
        target = find_target(row["target"])
        in_flash = row["weights"] == "in flash, copied"
        kept = published.Published(row["network"], 1, "", weights_in_flash=in_flash)
        assert row["npu"]["cycles"] == published.estimate(kept, target), row


def test_predictions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.txt").write_text("# two chips\ndscnn imxrt700 mcxn94x\nmobilenet_v1 mcxn54x\n")
    assert main(["targets", "--predict", "list.txt", "-o", "p.json"]) == 0
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["generator"].startswith("openneutron ") and data["date"] and "not measured" in data["label"]
    known = {(r["network"], r["target"], r["weights"]): r for r in data["predictions"]}
    row = known["dscnn", "mcxn94x", "in flash, read"]
    (stored,) = [m for m in measurements() if (m.target, m.network, m.on, m.set_aside, m.layer)
                 == ("mcxn94x", "dscnn", "npu", "", "")]  # fmt: skip
    assert row["npu"]["cycles"] == stored.estimated_cycles and row["macs"] == 2_656_768
    assert row["npu"]["low"] < row["npu"]["microseconds"] < row["npu"]["high"]
    assert ("dscnn", "imxrt700", "in flash, copied") in known
    refused = known["mobilenet_v1", "mcxn54x", "in flash, read"]
    assert refused["npu"] is None and "2,097,152 bytes of flash" in refused["refused"]


def test_predictions_for_a_chip_of_ones_own_making(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wide.toml").write_text('base = "imxrt700"\nmacs = 128\n')
    (tmp_path / "list.txt").write_text("cifarnet wide.toml imxrt700\n")
    assert main(["targets", "--predict", "list.txt"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert [bool(row["invented"]) for row in rows] == [True, True, False, False]
    assert rows[0]["npu"]["cycles"] < rows[2]["npu"]["cycles"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no_such_network", "ON106"),
        ("dscnn imxrt70", "ON101"),
        ("dscnn imx95", "ON102"),
        ("# nothing", "ON104"),
    ],
)
def test_a_wrong_list(tmp_path, capsys, text, code):
    (tmp_path / "list.txt").write_text(text + "\n")
    assert main(["targets", "--predict", str(tmp_path / "list.txt")]) != 0
    assert code in capsys.readouterr().err


def test_new_measurements_move_the_fit_and_are_judged_left_out(tmp_path, monkeypatch, capsys):
    # The grid of a fit has 1,200 points; a few of them show the same.
    monkeypatch.setattr(published, "_CALLS", range(0, 1001, 250))
    monkeypatch.setattr(published, "_BYTES", [2, 3, 4])
    rows = [{"network": "cifarnet", "target": "imxrt700", "microseconds": 900, "source": "a board"}]
    (tmp_path / "m.json").write_text(json.dumps(rows))
    assert main(["targets", "--measured", str(tmp_path / "m.json"), "--json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert len(data["rows"]) == 4 and data["rows"][-1]["source"] == "a board"
    assert max(abs(r["new_error"]) for r in data["rows"]) <= max(abs(r["old_error"]) for r in data["rows"])
    assert all(r["error_when_left_out"] is not None for r in data["rows"])
    assert main(["targets", "--measured", str(tmp_path / "m.json"), "-o", str(tmp_path / "chip.toml")]) == 0
    edge = data["new"]["call_cycles"] in (0, 1000) or data["new"]["sram_bytes_per_cycle"] in (2, 4)
    assert ("edge of what is tried" in capsys.readouterr().out) == edge
    assert find_target(str(tmp_path / "chip.toml")).cost.call_cycles == max(1, data["new"]["call_cycles"])


def test_measurements_of_the_cpu_and_of_weights_in_flash_name_what_was_predicted(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(published, "_CALLS", range(0, 1001, 500))
    monkeypatch.setattr(published, "_BYTES", [3])
    common = {"network": "tcn", "target": "imxrt700", "source": "a board"}  # of the zoo, in no published time
    rows = [
        common | {"microseconds": 200, "weights_in_flash": True},
        common | {"microseconds": 20_000, "on": "cpu"},
    ]
    (tmp_path / "m.json").write_text(json.dumps(rows))
    assert main(["targets", "--measured", str(tmp_path / "m.json"), "--json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    in_flash, cpu = data["rows"][-2:]
    assert in_flash["weights_in_flash"] and in_flash["error_when_left_out"] is not None
    assert cpu["old_error"] == cpu["new_error"] and cpu["error_when_left_out"] is None


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """What a clone keeps of measurements is kept elsewhere, and forgotten again."""
    monkeypatch.setattr(table, "MEASURED", tmp_path / "measured.json")
    monkeypatch.setattr(published, "STORED_FILE", tmp_path / "published.json")
    monkeypatch.setattr(published, "_CALLS", range(0, 1001, 250))
    monkeypatch.setattr(published, "_BYTES", [2, 3, 4])
    yield tmp_path
    table.keep_measured({})


def measured(folder: Path, *names_and_times: tuple[str, float]) -> str:
    common = {"target": "mcxn94x", "source": "a board"}
    rows = [common | {"network": name, "microseconds": time} for name, time in names_and_times]
    (folder / "m.json").write_text(json.dumps(rows))
    return str(folder / "m.json")


def test_measurements_are_kept(clone):
    before = len(published.table())
    for _ in range(2):  # the same once
        assert main(["targets", "--measured", measured(clone, ("autoencoder", 800)), "--add"]) == 0
    assert len(published.table()) == before + 1 and not published.table()[-1].published.fitted
    assert len(json.loads((clone / "published.json").read_text())) == before + 1
    assert find_target("mcxn94x").cost.call_cycles == TARGETS["imxrt700"].cost.call_cycles


def test_measurements_become_the_chips_fit_and_later_ones_are_fitted_with_them(clone, capsys):
    few = measured(clone, ("autoencoder", 1500), ("dscnn", 6000))
    assert main(["targets", "--measured", few, "--add", "--fit"]) == 2
    assert "to 2 times of mcxn94x" in capsys.readouterr().err and not (clone / "measured.json").exists()
    old = find_target("mcxn94x")
    times = measured(clone, ("autoencoder", 1500), ("dscnn", 6000), ("resnet8", 9000))
    assert main(["targets", "--measured", times, "--add", "--fit"]) == 0
    new = find_target("mcxn94x")
    assert new.cost.call_cycles != old.cost.call_cycles
    assert new.cost.step_cycles == new.cost.call_cycles // 2
    assert "measured.json" in dict(new.cost.sources)["call_cycles"]
    assert sum(p.fitted for p in new.published) == 3 + sum(p.fitted for p in old.published)
    stored = json.loads((clone / "published.json").read_text())
    assert sum(r["fitted"] and r["target"] == "mcxn94x" for r in stored) == 3
    capsys.readouterr()
    later = measured(clone, ("cifarnet", 12_000))
    assert main(["targets", "--measured", later, "--json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert [r["network"] for r in data["rows"]] == ["autoencoder", "dscnn", "resnet8", "cifarnet"]


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[]", "nonsense", "[1]", '[{"network": "cifarnet"}]', "[" * 100_000,
        '[{"network": "cifarnet", "target": "imxrt700", "microseconds": -1, "source": "x"}]',
        '[{"network": "cifarnet", "target": "imxrt700", "microseconds": NaN, "source": "x"}]',
        '[{"network": "cifarnet", "target": "imxrt700", "microseconds": true, "source": "x"}]',
        '[{"network": "cifarnet", "target": 7, "microseconds": 1, "source": "x"}]',
        '[{"network": "nothing", "target": "imxrt700", "microseconds": 1, "source": "x"}]',
        '[{"network": "cifarnet", "target": "imxrt700", "microseconds": 1, "source": "x", "on": "gpu"}]',
        '[{"network":"tcn","target":"mcxn94x","microseconds":1,"source":"x","weights_in_flash":true}]',
        '[{"network": "/dev/null.tflite", "target": "imxrt700", "microseconds": 1, "source": "x"}]',
    ],
)  # fmt: skip
def test_wrong_measurements(tmp_path, capsys, text):
    (tmp_path / "m.json").write_text(text)
    assert main(["targets", "--measured", str(tmp_path / "m.json")]) != 0
    assert "error: ON" in (said := capsys.readouterr().err) and "ON699" not in said


def test_an_invented_chip_cannot_be_measured(tmp_path, capsys):
    (tmp_path / "twice.toml").write_text('base = "imxrt700"\nmacs = 128\n')
    row = {"network": "cifarnet", "target": str(tmp_path / "twice.toml"), "microseconds": 9, "source": "x"}
    (tmp_path / "m.json").write_text(json.dumps([row]))
    assert main(["targets", "--measured", str(tmp_path / "m.json")]) != 0
    assert "invented chip" in capsys.readouterr().err
