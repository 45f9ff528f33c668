"""Bad input: one clear message with a code, exit 1 or 2, no traceback, nothing half-written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.diagnostics import CODES


def check(done, code, status, *texts):
    """One message with this code; no traceback."""
    assert done.code == status, done.err
    assert f"error: {code}: " in done.err, done.err
    assert done.err.count("error:") == 1
    assert "Traceback" not in done.out + done.err
    for text in texts:
        assert text in done.err
    assert done.out == ""


def leftovers(folder: Path) -> set[str]:
    return {p.name for p in folder.rglob("*")} - {"own.py", "__pycache__"}


@pytest.mark.parametrize(
    ("argv", "code", "status", "text"),
    [
        ("compile no/such.tflite", "ON602", 1, "there is no such file"),
        ("compile nosuch.pt2", "ON602", 1, "nosuch.pt2"),
        ("compile nosuch.py:net", "ON602", 1, "nosuch.py"),
        ("compile no/such/model", "ON602", 1, "there is no such file"),
        ("compile cifarnt", "ON106", 2, "Did you mean 'cifarnet'?"),
        ("compile cifarnet --target imxrt70", "ON101", 2, "Did you mean 'imxrt700'?"),
        ("compile cifarnet --target imx95", "ON102", 2, "Neutron-S"),
        ("compile own.py", "ON104", 2, "own.py:FUNCTION"),
        ("compile own.py:nett", "ON604", 1, "It has: net"),
        ("compile own.py:number", "ON604", 1, "no function"),
        ("compile own.py:raises", "ON604", 1, "ValueError: the data are missing"),
        ("compile own.py:returns_a_number", "ON604", 1, "returned int"),
        ("compile own.py:net -o own.py/x.pte", "ON601", 1, "cannot be written"),
        ("compile own.py:net -o /proc/x.pte", "ON601", 1, "cannot be written"),
        ("compile own.py:net --report x.doc", "ON104", 2, ".json"),
        ("compile own.py:net --calibration nosuch", "ON605", 1, "nosuch"),
        ("compile own.py:net --operators_not_to_delegate aten::conv2", "ON105", 2, "Did you mean"),
        ("compile own.py:net --sram 1000", "ON403", 1, "bytes of SRAM"),
        ("compile own.py:net --use_qat", "ON606", 1, "labelled"),
        ("compile own.py:net --extra-flags x", "ON104", 2, "extra flags"),
        ("compile own.py:net --converter eiq", "ON411", 1, "eiq_neutron_sdk"),
        ("eval own.py:net", "ON606", 1, "--data"),
        ("run nosuch.pte", "ON510", 1, "there is no such file"),
        ("run own.py", "ON511", 1, "not an ExecuTorch program"),
        ("disasm nosuch.pte", "ON510", 1, "there is no such file"),
        ("explain ON999", "ON607", 1, "no such code"),
    ],
)
def test_messages(cli, tmp_path, argv, code, status, text):
    if "eiq" in argv and _has_sdk():
        pytest.skip("eiq_neutron_sdk is installed here")
    check(cli(*argv.split()), code, status, text)
    assert leftovers(tmp_path) == set()


def _has_sdk() -> bool:
    import importlib.util

    return importlib.util.find_spec("eiq_neutron_sdk") is not None


@pytest.mark.parametrize("name", ["model.tflite", "model.pt2", "model.bin", "model.pte", "empty.tflite"])
def test_files_that_are_no_model(cli, tmp_path, name):
    Path(name).write_bytes(b"" if name.startswith("empty") else b"this is no model" * 10)
    code = "ON302" if name.endswith(".tflite") else "ON603"
    check(cli("compile", name), code, 1, name)
    assert leftovers(tmp_path) == {name}


def test_float_only_tflite(cli, tmp_path):
    from openneutron.litert.file import write
    from openneutron.litert.ir import Builtin, Graph, Op, Tensor

    x, y = Tensor("x", (1, 4), "float32"), Tensor("y", (1, 4), "float32")
    Path("float.tflite").write_bytes(write(Graph([x], [y], [Op(Builtin.ADD, [x, x], [y])])))
    check(cli("compile", "float.tflite"), "ON303", 1, "float only", "int8 quantization")
    assert leftovers(tmp_path) == {"float.tflite"}


def test_dynamic_shape(cli, tmp_path):
    batch = torch.export.Dim("batch", min=1, max=8)
    module = torch.nn.Linear(4, 2)
    program = torch.export.export(module, (torch.randn(2, 4),), dynamic_shapes={"input": {0: batch}})
    torch.export.save(program, "dynamic.pt2")
    check(cli("compile", "dynamic.pt2"), "ON205", 1, "static", "dynamic_shapes")
    assert leftovers(tmp_path) == {"dynamic.pt2"}


def test_inputs_that_do_not_fit(cli):
    assert cli("compile", "own.py:net", "-o", "a.pte").code == 0
    np.save("small.npy", np.zeros((1, 1, 8, 8), np.float32))
    np.save("double.npy", np.zeros((1, 1, 16, 16)))
    Path("text.npy").write_text("no array")
    check(cli("run", "a.pte", "--input", "small.npy"), "ON514", 1, "float32[1, 1, 16, 16]")
    check(cli("run", "a.pte", "--input", "double.npy"), "ON514", 1, "float64")
    check(cli("run", "a.pte", "--input", "text.npy"), "ON605", 1, "text.npy")
    check(cli("run", "a.pte", "--input", "small.npy", "--input", "small.npy"), "ON514", 1, "2 inputs given")
    check(cli("run", "a.pte", "--output-dir", "own.py"), "ON601", 1, "own.py")


def test_a_damaged_program_is_noticed(cli, tmp_path):
    assert cli("compile", "own.py:net", "-o", "a.pte").code == 0
    data = bytearray((tmp_path / "a.pte").read_bytes())
    Path("cut.pte").write_bytes(data[: len(data) // 2])
    data[len(data) // 2] ^= 1
    Path("flipped.pte").write_bytes(data)
    for name in ("cut.pte", "flipped.pte"):
        check(cli("run", name), "ON512", 1, name)
        check(cli("disasm", name), "ON512", 1, name)


def test_a_failed_compile_leaves_the_old_program(cli, tmp_path):
    (tmp_path / "a.pte").write_bytes(b"old")
    assert cli("compile", "own.py:net", "-o", "a.pte", "--sram", "1000").code == 1
    assert (tmp_path / "a.pte").read_bytes() == b"old"


@pytest.mark.parametrize(
    "argv", ["", "compile", "compile a b", "nonsense", "compile a --bogus", "compile a --sram much",
             "compile a --converter tvm"],
)  # fmt: skip
def test_usage_errors(cli, argv):
    done = cli(*argv.split())
    assert done.code == 2 and "usage:" in done.err and "Traceback" not in done.err


def test_debug_adds_the_traceback(cli):
    done = cli("compile", "own.py:raises", "--debug")
    assert done.code == 1 and "Traceback" in done.err and "error: ON604" in done.err


def test_the_unexpected_is_one_message_too(cli, monkeypatch):
    from openneutron.commands.reference import ops

    monkeypatch.setattr(ops, "_print_table", lambda entries: 1 / 0)
    done = cli("ops")
    check(done, "ON699", 1, "division by zero")


def test_every_code_is_explained(cli):
    from openneutron.commands.reference.explain import REMEDIES

    assert set(REMEDIES) == set(CODES)
    for code in CODES:
        done = cli("explain", code.lower())
        assert done.code == 0 and done.out.startswith(f"{code}: ")
        assert "What to do" in done.out


def test_ctrl_c_stops_at_once_and_leaves_nothing(tmp_path):
    Path(tmp_path / "own.py").write_text("import time\ndef net():\n    open('ready', 'w'); time.sleep(60)\n")
    command = [sys.executable, "-m", "openneutron", "compile", "own.py:net", "-o", "a.pte"]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # A shell that started the tests in the background has told them to ignore the signal.
    pipes["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, cwd=tmp_path, **pipes)
    deadline = time.monotonic() + 120
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err and out == ""
    assert not (tmp_path / "a.pte").exists()
