"""The cost model against published measurements, and the table that says so."""

import json
import re
from pathlib import Path

import bench_cost_model
import pytest

from openneutron.bench.published import stored_text
from openneutron.report.cost_model import band, describe_cost_model, error_label, error_range, measurements
from openneutron.targets.table import TARGETS


def test_the_stored_estimates_are_todays():
    assert json.loads(stored_text()) == [vars(m) for m in measurements()]


@pytest.mark.parametrize("measurement", measurements(), ids=lambda m: f"{m.target} {m.on} {m.model}")
def test_estimates_are_within_the_bars(measurement):
    bar = bench_cost_model.bar(measurement)
    assert bar is None or abs(measurement.error) <= bar


def test_bands_are_of_times_that_nothing_was_fitted_to():
    counted = [m for m in measurements() if m.on == "npu" and not m.fitted and not m.set_aside]
    npu = band("npu")
    assert (npu.low, npu.high, npu.count) == (
        min(m.error for m in counted), max(m.error for m in counted), len(counted))  # fmt: skip
    assert npu.count >= 9 and band("cpu").count >= 4 and band("cpu", layers=True).count >= 5
    low, high = npu.around(100)
    assert low < 100 < high and low * (1 + npu.high) == pytest.approx(100)


def test_every_published_time_names_its_document():
    for target in TARGETS.values():
        for row in (*target.published, *target.facts):
            assert row.source and not row.source.startswith("/")


def test_every_parameter_has_a_unit_and_a_source():
    data = describe_cost_model(TARGETS["imxrt700"])
    for name, row in data["parameters"].items():
        assert row["value"] > 0 and row["unit"] and row["source"], name
    assert sum(v["fitted"] for v in data["validation"]) == 3


def test_the_page_on_the_cost_model_has_the_numbers_of_the_code():
    page = (Path(bench_cost_model.__file__).parents[1] / "docs" / "cost-model.md").read_text()
    for m in measurements():
        row = f"| {m.published_cycles:,} | {m.estimated_cycles:,} | {100 * m.error:+.1f} % |"
        assert row in page, m.model
    for name, value, _, _ in TARGETS["imxrt700"].cost.table():
        if name == "cpu_frequency_hz":  # of the data sheet, in the text
            continue
        (row,) = [line for line in page.splitlines() if line.startswith("| `") and f"`{name}`" in line]
        names, values = row.split("|")[1:3]
        position = re.findall(r"`(\w+)`", names).index(name)
        assert float(re.findall(r"[\d.,]+(?:e\d+)?", values)[position].replace(",", "")) == value, row


def test_the_label_names_both_bands():
    for text in (str(band("npu")), str(band("cpu")), "not measured", "within 2%"):
        assert text in error_label()
    assert str(band("npu")) in error_range() and str(band("cpu")) in error_range()
