"""The seed manual's commands, from the repository root's code, in an empty folder."""

import os
import subprocess
from pathlib import Path

import pytest

from examples.nxp.aot_neutron_compile import command, parse
from tests import warm

ROOT = Path(__file__).resolve().parents[2]


def python():
    return str(warm.commands() / "python")


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON_EXECUTABLE": python()}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)


def example(folder, *options):
    return run(folder, python(), "-m", "examples.nxp.aot_neutron_compile", *options)


def test_options_are_translated():
    assert command(parse(["-q", "-d", "-m", "cifar10", "-r", "--use_qat"])) == [
        "compile", "cifar10", "-o", "cifar10_nxp_delegate.pte", "--target", "imxrt700", "--quantize",
        "--per-tensor", "--delegate", "--use_qat", "-r",
    ]  # fmt: skip
    words = command(parse(["-qdm", "cifar10", "--use_profiling"]))
    assert words[3] == "cifar10_nxp_delegate_profile.pte" and "--use_profiling" in words
    words = command(parse(["-qdm", "mlperf_tiny_image_classification", "-dst", "samples.pt"]))
    assert words[:2] == ["compile", "mlperf_tiny_image_classification"]
    assert words[-2:] == ["--calibration", "samples.pt"]
    assert "--per-tensor" not in command(parse(["-qdm", "quantized.pt2"])), "it may be quantized already"
    assert command(parse(["-m", "sub/own.py:net", "-t"]))[:4] == ["eval", "sub/own.py:net", "-o", "own.pte"]


@pytest.mark.slow  # processes of their own, some train
@pytest.mark.parametrize(
    "options",
    [
        ("--use_channels_last_dim_order", "--dump_kernel_selection_code", "--visualize", "store"),
        ("--fetch_constants_to_sram", "-r", "--operators_not_to_delegate", "aten::max_pool2d"),
        ("--use_random_dataset", "--test"),
    ],
)
def test_cifar10(tmp_path, options):
    done = example(tmp_path, "--quantize", "--delegate", "-m", "cifar10", *options)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cifar10_nxp_delegate.pte").stat().st_size > 90_000
    if "--visualize" in options:
        page = (tmp_path / "cifar10_nxp_delegate.html").read_text()
        assert page.startswith("<!doctype html>") and "CONV_2D" in page
        assert "CONV_2D" in (tmp_path / "cifar10_nxp_delegate_kernel_selection.c").read_text()
    if "--operators_not_to_delegate" in options:
        assert "ON204" in done.stdout


@pytest.mark.slow  # processes of their own
def test_the_shell_script(tmp_path):
    done = run(tmp_path, str(ROOT / "examples/nxp/aot_neutron_compile.sh"), "cifar10")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cifar10_nxp_delegate.pte").exists()
