"""The other commands: eval, compare, ops, explain, disasm, doctor; and what starts fast."""

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

from openneutron.ops import TABLE


@pytest.mark.parametrize(
    "argv", [["--help"], ["compile", "--help"], ["ops"], ["explain", "ON203"], ["--version"]]
)
def test_light_commands_do_not_import_torch(argv):
    code = (
        "import sys; from openneutron.cli import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'executorch', 'sklearn', 'ortools'};"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_ops_lists_every_operator(cli):
    done = cli("ops", "--json")
    assert {tuple(entry["names"]) for entry in json.loads(done.out)} == {spec.names for spec in TABLE}
    assert "aten.sigmoid.default" in cli("ops", "sigmoid").out


def test_eval_of_an_own_model(cli):
    rng = np.random.default_rng(0)
    np.savez("data.npz", inputs=rng.standard_normal((5, 1, 16, 16), np.float32), labels=[0, 1, 2, 3, 0])
    done = cli("eval", "own.py:net", "--data", "data.npz", "--json")
    assert done.code == 0, done.err
    assert done.json["samples"] == 5 and done.json["agree"] == 5
    assert done.json["summary"]["program"] is None


def test_bench_of_an_own_model(cli):
    done = cli("bench", "own.py:net", "--quick", "--json")
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)
    assert row["model"] == "own" and row["partitions"] == 1 and row["host"]["exact"]
    assert 0 < row["size"]["reserve_bytes"] <= row["performance"]["reserve_bytes"]
    assert 0 < row["performance"]["cycles_estimated"] <= row["size"]["cycles_estimated"]
    assert min(row["host"][k] for k in ("simulator_ms", "xnnpack_ms", "reference_ms")) > 0
    stages = row["compile_seconds"]
    assert {"torch.export", "torchao", "ExecuTorch (exir)", "to LiteRT", "microcode"} <= set(stages)
    others = stages["torch.export"] + stages["torchao"]
    assert row["own_seconds"] == pytest.approx(sum(stages.values()) - others, abs=0.01)


@pytest.mark.slow  # all of the demo, with 360 images
def test_demo_accuracy_and_bit_exactness(cli, tmp_path):
    """What `make demo` shows: int8 within a point of float; equal to LiteRT's reference on every sample."""
    from openneutron.litert.file import read
    from openneutron.litert.reference import Reference
    from openneutron.models.data import load_digits
    from openneutron.run.program import load_program

    done = cli("eval", "cifarnet", "-o", "demo.pte", "--intermediates", "kept", "--json")
    assert done.code == 0, done.err
    figures = done.json
    assert figures["samples"] == 360 and figures["float"] > 0.98
    assert figures["quantized"] >= figures["float"] - 0.01
    assert figures["simulator"] >= figures["float"] - 0.01

    assert cli("compile", "cifarnet", "-r", "-o", "int8.pte").code == 0
    litert = next((tmp_path / "kept").glob("*_pure.et.tflite")).read_bytes()
    reference, quant, program = Reference(litert), read(litert).inputs[0].quant, load_program("int8.pte")
    for image in load_digits((1, 3, 32, 32)).test.inputs:
        x = np.round(image[None].numpy() / quant.scale[0]) + quant.zero_point[0]
        x = np.clip(x, -128, 127).astype(np.int8)
        assert np.array_equal(program.run([x])[0], reference.run([x])[0])


def test_compare_finds_every_layer(cli):
    done = cli("compare", "own.py:split", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert {row["layer"]: row["simulator_lsb"] is None for row in rows} == {
        "conv2d": False, "atan": True, "conv2d_1": False,
    }  # fmt: skip
    assert [row["sqnr_db"] for row in rows] == sorted(row["sqnr_db"] for row in rows)
    for row in rows:
        assert row["sqnr_db"] > 20 and row["cosine"] > 0.99 and (row["simulator_lsb"] or 0) <= 2
    assert "4 LSB" not in cli("compare", "own.py:net").out


def test_disasm_prints_every_call(cli):
    assert cli("compile", "own.py:split", "-o", "a.pte").code == 0
    done = cli("disasm", "a.pte")
    assert done.code == 0 and done.out.count("; delegate") == 2
    assert len(re.findall(r"^ +\d+  \w*conv_2d", done.out, re.M)) == 2


def test_doctor_finds_this_installation_well(cli):
    done = cli("doctor", "--json")
    assert done.code == 0, done.out
    found = {check["what"]: check for check in json.loads(done.out)}
    assert found["torch"]["state"] == "ok" and found["ExecuTorch delegate"]["state"] == "ok"
    assert all(check["remedy"] for check in found.values() if check["state"] != "ok")


def _error_on_a_terminal(**more):
    """What a wrong command writes where stderr is a terminal."""
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **more}
    command = [sys.executable, "-m", "openneutron", "explain", "ON999"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, env=environment, timeout=60)
    os.close(end)
    text = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert done.returncode == 1 and "ON999" in text
    return text


def test_color_on_a_terminal_and_none_when_piped_or_asked(cli):
    red = "\x1b[1;31m"
    assert red in _error_on_a_terminal()
    assert "error: " in (plain := _error_on_a_terminal(NO_COLOR="1")) and ";31m" not in plain
    piped = cli("explain", "ON999")
    assert piped.code == 1 and "ON999" in piped.err and "\x1b[" not in piped.err


@pytest.mark.slow  # a network is trained
def test_qat_is_not_worse_than_ptq_by_more_than_noise(cli):
    """Quantization-aware training from the command line; on the full split it is part of the slow tests."""
    done = cli("eval", "dscnn", "--use_qat", "--samples", "60", "--json")
    assert done.code == 0, done.err
    assert done.json["simulator"] >= 0.95
    assert done.json["float"] >= 0.95  # training changed the copy, not the model
