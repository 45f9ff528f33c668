"""--shape and --fix of an .onnx model, in every command that takes a model, and in files of options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.onnx.graphs import model, save, value

GIVEN = ("--shape", "x=1,3,8,8", "--fix", "gain=2")
PIXELS = 8 * 8


@pytest.fixture
def onnx_file(tmp_path):
    """Scores of a picture of any size; its second input is a number."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3, 1, 1)).astype(np.float32)}
    nodes = [
        helper.make_node("Mul", ["x", "gain"], ["m"]),
        helper.make_node("Conv", ["m", "w"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    inputs = [value("x", ["batch", 3, "height", "width"]), value("gain", [], TensorProto.FLOAT)]
    return save(model(nodes, inputs, [value("y", ["batch", 4])], weights), tmp_path, "scores.onnx")


@pytest.mark.slow  # several variants are quantized and compiled
def test_tune(cli, onnx_file):
    done = cli("tune", onnx_file, *GIVEN, "--jobs", 1, "--max-drop", 100, "--json")
    assert done.code == 0, done.err
    assert done.json["figures"]["macs_npu"] == 12 * PIXELS
    assert all(word in done.json["command"] for word in GIVEN)


def test_sweep(cli, onnx_file):
    space = 'model = "scores.onnx"\n[objectives]\ncycles = "min"\n[options]\naccuracy = ["fast"]\n'
    Path("space.toml").write_text(space)
    done = cli("sweep", "space.toml", *GIVEN, "--jobs", 1, "--no-reports", "--json")
    assert done.code == 0, done.err
    assert [t["figures"]["macs_npu"] for t in done.json["trials"]] == [12 * PIXELS]
    shapes = 'fix = "gain=2"\nshape = [["x=1,3,8,8"], ["x=1,3,4,4"]]\n'
    Path("sizes.toml").write_text(space + shapes)
    done = cli("sweep", "sizes.toml", "--jobs", 1, "--no-reports", "--json")
    assert sorted(t["figures"]["macs_npu"] for t in done.json["trials"]) == [12 * PIXELS // 4, 12 * PIXELS]
    twice = cli("sweep", "sizes.toml", *GIVEN)
    assert twice.code == 2 and "options.shape" in twice.err


def test_check(cli, onnx_file):
    Path("a.toml").write_text('[[model]]\nmodel = "scores.onnx"\nmax_partitions = 1\n')
    assert cli("check", "a.toml").code == 1  # its size is not known
    done = cli("check", "a.toml", *GIVEN)
    assert done.code == 0, done.out + done.err
    own = 'options = { shape = "x=1,3,8,8", fix = ["gain=2"] }\n'
    Path("b.toml").write_text(Path("a.toml").read_text() + own)
    assert cli("check", "b.toml").code == 0
    wrong = own.replace('"x=1,3,8,8"', "3")
    Path("c.toml").write_text(Path("a.toml").read_text() + wrong)
    done = cli("check", "c.toml")
    assert done.code == 2 and "a string or a list of strings" in done.err


def test_diff_of_models(cli, onnx_file):
    assert cli("compile", onnx_file, *GIVEN, "-o", "a.pte").code == 0
    done = cli("diff", "a.pte", onnx_file, "--shape", "x=1,3,16,16", "--fix", "gain=2", "--json")
    assert done.code == 0, done.err
    figures = {row["key"]: row for row in done.json["figures"]}
    assert figures["macs_npu"]["a"] * 4 == figures["macs_npu"]["b"] == 12 * 4 * PIXELS
    assert cli("diff", onnx_file, onnx_file, *GIVEN, "--fail-on-regression").code == 0


@pytest.mark.parametrize("command", ["tune", "sweep", "check", "diff"])
def test_they_are_refused_where_they_have_no_effect(cli, command):
    Path("space.toml").write_text(
        'model = "cifarnet"\n[objectives]\ncycles = "min"\n[options]\naccuracy = ["fast"]\n'
    )
    Path("budget.toml").write_text('[[model]]\nmodel = "cifarnet"\nmax_partitions = 1\n')
    given = {"tune": ("cifarnet",), "sweep": ("space.toml",), "check": ("budget.toml",),
             "diff": ("a.json", "b.json")}[command]  # fmt: skip
    done = cli(command, *given, *GIVEN)
    assert done.code == 2 and "has no effect" in done.err and "--shape" in done.err
