"""The space of a search: what a file means, and what is wrong with it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openneutron.diagnostics import OpenNeutronError
from openneutron.search.front import pareto_front
from openneutron.search.space import Choice, Range, make_space, read_space

GOOD = {
    "model": "net.py:tiny",
    "parameters": {"width": [4, 8], "depth": 2},
    "options": {"per_channel": [False, True], "calibration_samples": {"from": 8, "to": 32, "log": True}},
    "objectives": {"accuracy": "max", "sram_bytes": "min"},
    "limits": {"sram_bytes": "<= 1.5K"},
}


EXHAUSTIVE = {"options": {}, "parameters": {x: {"from": 1, "to": 10_000} for x in "abc"}}


def test_points_are_counted_and_not_listed():
    """10^12 points, and 10^45: chosen from, in no time and no memory."""
    began = time.process_time()
    for dimensions, size in (
        ({x: {"from": 1, "to": 10_000} for x in "abc"}, 10**12),
        ({x: {"from": 1, "to": 10**15} for x in "abc"}, 10**45),
        ({"a": {"from": 1, "to": 10**12}}, 10**12),
        ({"a": {"from": 0.0, "to": 1.0, "step": 1e-12}, "b": [1, 2]}, 2 * (10**12 + 1)),
        ({"a": {"from": 0.0, "to": 1.0, "step": 0.1}}, 11),
    ):
        space = make_space({**GOOD, "options": {}, "parameters": dimensions})
        assert space.grid_size == size and space.is_grid == (size == 11)
    assert time.process_time() - began < 5
    assert [p["parameters.a"] for p in space.grid()][-2:] == pytest.approx([0.9, 1.0])


def test_lists_and_ranges_vary_and_values_are_fixed():
    space = make_space(GOOD)
    assert space.dimensions == {
        "parameters.width": Choice((4, 8)),
        "options.per_channel": Choice((False, True)),
        "options.calibration_samples": Range(8, 32, None, True),
    }
    assert space.fixed == {"parameters.depth": 2}
    assert (
        space.limits[0].value == 1536
        and space.limits[0].broken_by(1537)
        and not space.limits[0].broken_by(1536)
    )
    assert space.grid_size is None and not space.is_grid and space.needs_evaluation


def test_a_grid_is_complete_and_models_vary_slowest():
    table = {**GOOD, "options": {"per_channel": [False, True], "optimise": ["size", "performance"]}}
    points = list(make_space(table).grid())
    assert len(points) == 8 == len({str(p) for p in points})
    assert [p["parameters.width"] for p in points] == [4] * 4 + [8] * 4


def test_more_trials_are_the_same_search_and_other_values_are_not():
    base = make_space(GOOD)
    assert make_space({**GOOD, "trials": 99}).digest == base.digest
    assert make_space({**GOOD, "seed": 1}).digest != base.digest
    assert make_space({**GOOD, "parameters": {"width": [4, 9], "depth": 2}}).digest != base.digest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"modle": "x"}, "Did you mean 'model'?"),
        ({"model": ""}, "names no model"),
        ({"objectives": {}}, "no objective"),
        ({"objectives": {"acuracy": "max"}}, "Did you mean 'accuracy'?"),
        ({"objectives": {"accuracy": "up"}}, "max or min"),
        ({"limits": {"sram_bytes": "512"}}, "no limit"),
        ({"limits": {"sram": "<= 1"}}, "no such figure"),
        ({"parameters": {"width": []}}, "empty list"),
        ({"parameters": {"width": {"from": 8, "to": 4}}}, "no range"),
        ({"parameters": {"width": {"from": "a", "to": 4}}}, "no range"),
        ({"options": {}, "parameters": {"width": 4}}, "nothing varies"),
        ({"model": "cifarnet"}, "FILE.py:FUNCTION"),
        ({"data": {"tests": "a.npz"}}, "Did you mean 'test'?"),
        ({"data": {"test": ["a.npz"]}}, "the name of a file"),
        ({"data": {"metric": {"a": "b.py:c"}}}, "the name of a file"),
        ({"data": {"samples": "many"}}, "whole number from 1"),
        ({"workers": {"ship": "no"}}, "true or false"),
        ({"objectives": {"metric": "max"}}, "there is no metric"),
        ({"trials": 0}, "whole number from 1"),
        ({"options": 3}, "a table"),
        ({"batch": 10**9}, "from 1 to 1,000"),
        ({"parameters": {"width": {"from": 0, "to": float("inf")}}}, "not finite"),
        ({"parameters": {"width": {"from": float("nan"), "to": 4}}}, "not finite"),
        ({"parameters": {"width": {"from": 0, "to": 10**400}}}, "too large"),
        ({"parameters": {"width": {"from": 0.0, "to": 1.0, "step": 5e-324}}}, "step that is too small"),
        ({**EXHAUSTIVE, "trials": 10**12}, "1,000,000,000,000 points; at most 10,000"),
        (
            {**EXHAUSTIVE, "parameters": {"a": {"from": 1, "to": 10**12}}, "trials": 10**12},
            "0,000,000 points",
        ),
    ],
)
def test_what_is_wrong_is_named(change, says):
    with pytest.raises(OpenNeutronError) as error:
        make_space({**GOOD, **change})
    assert error.value.diagnostic.code == "ON130" and says in str(error.value)


def test_files(tmp_path):
    for content, says in ((None, "no such file"), (b"a = [", "not TOML"), (b"\xff\xfe", "not UTF-8")):
        path = tmp_path / "space.toml"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(OpenNeutronError, match=says):
            read_space(path)


figures = st.lists(st.fixed_dictionaries({"a": st.integers(0, 5), "b": st.integers(0, 5)}), max_size=12)


@given(figures)
def test_the_front_is_what_nothing_beats(rows):
    aims = {"a": "maximize", "b": "minimize"}

    def beats(one, other):
        better = one["a"] >= other["a"] and one["b"] <= other["b"]
        return better and one != other

    front = pareto_front(rows, aims)
    wanted = [row for row in rows if not any(beats(other, row) for other in rows)]
    assert {(rows[i]["a"], rows[i]["b"]) for i in front} == {(row["a"], row["b"]) for row in wanted}
    assert len(front) == len({(rows[i]["a"], rows[i]["b"]) for i in front}), "one of equals"
