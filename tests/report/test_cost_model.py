"""The cost model against published measurements, and the table that says so."""

import re
from pathlib import Path

import bench_cost_model
import pytest

from openneutron.report.cost_model import MEASUREMENTS, describe_cost_model, error_label
from openneutron.target import TARGETS


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda m: m.model)
def test_estimates_are_what_the_table_says_and_within_the_bars(measurement):
    assert bench_cost_model.estimate(measurement) == measurement.estimated_cycles
    assert abs(measurement.error) <= (0.15 if measurement.fitted else 0.25)


def test_every_parameter_has_a_unit_and_a_source():
    data = describe_cost_model(TARGETS["imxrt700"])
    for name, row in data["parameters"].items():
        assert row["value"] > 0 and row["unit"] and row["source"], name
    assert [v["fitted"] for v in data["validation"]] == [True, True, True, False]


def test_the_page_on_the_cost_model_has_the_numbers_of_the_code():
    page = (Path(bench_cost_model.__file__).parents[1] / "docs" / "cost-model.md").read_text()
    for m in MEASUREMENTS:
        assert f"| {m.published_cycles:,} | {m.estimated_cycles:,} | {100 * m.error:+.1f} % |" in page, (
            m.model
        )
    for name, value, _, _ in TARGETS["imxrt700"].cost.table():
        if name == "cpu_frequency_hz":  # of the data sheet, in the text
            continue
        (row,) = [line for line in page.splitlines() if line.startswith("| `") and f"`{name}`" in line]
        names, values = row.split("|")[1:3]
        position = re.findall(r"`(\w+)`", names).index(name)
        assert float(re.findall(r"[\d.,]+(?:e\d+)?", values)[position].replace(",", "")) == value, row


def test_the_label_names_both_errors():
    assert "not measured" in error_label() and "within 2%" in error_label() and "-1%" in error_label()
