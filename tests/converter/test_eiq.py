"""The eiq converter against a stand-in for NXP's SDK: what it passes on, and what its failures become."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from openneutron.converter import find_converter
from openneutron.converter.eiq import EiqConverter
from openneutron.converter.eiq_versions import WANTED, fit
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import write
from openneutron.litert.ir import Builtin, Quant
from openneutron.options import CompileOptions
from openneutron.package.payload import Port, build_payload, pack
from openneutron.sdk import open_sdk
from openneutron.targets.table import find_target

_spec = importlib.util.spec_from_file_location("eiq_stand_in", Path(__file__).with_name("sdk.py"))
assert _spec is not None and _spec.loader is not None
sdk = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sdk)

TARGET = find_target("imxrt700")


@pytest.fixture
def litert():
    b = Builder()
    q = Quant.per_tensor(0.5, 3)
    x = b.input("x", (1, 4), quant=q)
    y = b.input("y", (1, 4), quant=q)
    return write(b.graph([b.op(Builtin.ADD, [x, y], (1, 4), q, options={"fusedActivationFunction": 0})]))


@pytest.fixture
def convert(tmp_path, monkeypatch, litert):
    """Convert with a stand-in that misbehaves in the given way."""

    def run(behaviour="", timeout=60.0, **options):
        monkeypatch.setenv("PYTHONPATH", str(sdk.install(tmp_path, behaviour)))
        return EiqConverter(timeout).convert(litert, CompileOptions(converter="eiq", **options), TARGET)

    return run


def failure(call, *args, **kwargs):
    with pytest.raises(OpenNeutronError) as caught:
        call(*args, **kwargs)
    return caught.value.diagnostic


def test_parts_come_out_of_the_neutron_graph(convert):
    model = convert()
    assert model.converter == "eiq_neutron_sdk 3.2.0"
    assert len(model.microcode) == sdk.MICROCODE_BYTES
    assert model.weights == bytes(range(sdk.WEIGHTS_BYTES))
    assert model.kernels == b"firmware"
    assert (model.scratch_bytes, model.prefetch_bytes) == (sdk.SCRATCH_BYTES, 0)
    assert model.kernel_selection_code is None


def test_options_reach_the_sdk(convert):
    model = convert(fetch_constants_to_sram=True, dump_kernel_selection_code=True, extra_flags="effort=3")
    assert model.prefetch_bytes == sdk.PREFETCH_BYTES
    assert model.kernel_selection_code is not None
    assert "typedef enum NeutronKernelKind" in model.kernel_selection_code


def test_any_target_the_sdk_knows_is_passed_on(tmp_path, monkeypatch, litert):
    monkeypatch.setenv("PYTHONPATH", str(sdk.install(tmp_path, "")))
    options = CompileOptions(converter="eiq", config="imx95")
    assert EiqConverter(60.0).convert(litert, options, find_target("imx95", "eiq")).weights
    target = find_target("imx9", "eiq")
    found = failure(
        EiqConverter(60.0).convert, litert, CompileOptions(converter="eiq", config="imx9"), target
    )
    assert found.code == "ON415" and "imx95" in found.hint


def test_profiling_moves_the_words(convert):
    model = convert(use_profiling=True, fetch_constants_to_sram=True)
    assert model.prefetch_bytes == sdk.PREFETCH_BYTES
    assert (model.scratch_bytes, model.profile_bytes, model.debug_bytes) == (sdk.SCRATCH_BYTES, 256, 128)


def test_payload_is_what_the_stock_runtime_reads(convert):
    """Parsed by the header rules alone, with none of the product's code."""
    model = convert()
    raw = pack(build_payload(model, (Port(1, 1), Port(0)), (Port(0, 1),), input_args=2))
    n_in, n_out, n_args = raw[0], raw[1], raw[2]
    assert (n_in, n_out, n_args) == (2, 1, 2)
    assert list(raw[3:5]) == [1, 0] and raw[5] == 1  # formats of inputs, of outputs
    assert list(raw[6:8]) == [1, 0] and raw[8] == 0  # maps
    assert raw[9] == 0  # payload version
    words = np.frombuffer(raw, "<u4", offset=16)
    assert words[0] == 0x64434D6E
    assert words[9] == sdk.SCRATCH_BYTES and tuple(words[10:13]) == (0, 2, 1)
    weights_at = 16 + -(-int(words[6]) // 16) * 16
    assert raw[weights_at : weights_at + int(words[7])] == bytes(range(sdk.WEIGHTS_BYTES))
    kernels_at = weights_at + -(-int(words[7]) // 16) * 16
    assert raw[kernels_at : kernels_at + 8] == b"firmware"
    assert len(raw) % 16 == 0


@pytest.mark.parametrize(
    ("behaviour", "code", "says"),
    [
        ("abort", "ON413", ["SIGABRT", "Assertion failed: tensor != nullptr"]),
        ("exit", "ON413", ["exit code 3", "printed nothing"]),
        ("refuse", "ON414", ["operator SOFTMAX with 5000 channels", "3.2.0"]),
        ("empty", "ON414", ["empty model"]),
        ("old", "ON412", ["3.2.0", "CompilationContext"]),
        ("broken", "ON412", ["libNeutron.so"]),
        ("target", "ON415", ["imxrt700", "3.2.0"]),
        ("unchanged", "ON410", ["0 NeutronGraph operators and ADD"]),
        ("garbage", "ON302", ["not a LiteRT model"]),
        ("magic", "ON412", ["0x12345678", "0x64434d6e"]),
    ],
)
def test_failures_become_diagnostics(convert, behaviour, code, says):
    diagnostic = failure(convert, behaviour)
    assert diagnostic.code == code
    for text in says:
        assert text in diagnostic.problem


def test_a_hanging_sdk_is_stopped(convert):
    begun = time.monotonic()
    diagnostic = failure(convert, "hang", timeout=2.0)
    assert diagnostic.code == "ON416" and "2 s" in diagnostic.problem
    assert time.monotonic() - begun < 30


def test_missing_sdk_says_what_to_do(litert):
    if importlib.util.find_spec("eiq_neutron_sdk"):
        pytest.skip("the real SDK is installed")
    diagnostic = failure(EiqConverter().convert, litert, CompileOptions(converter="eiq"), TARGET)
    assert diagnostic.code == "ON411"
    assert "not installed" in diagnostic.problem and "--converter open" in diagnostic.hint


def test_unknown_flag_is_refused(convert):
    diagnostic = failure(convert, extra_flags="efort=3")
    assert diagnostic.code == "ON414" and "'efort'" in diagnostic.problem


def test_converters_by_name(monkeypatch):
    assert find_converter("eiq").name == "eiq"
    monkeypatch.setenv("OPENNEUTRON_CONVERTER", "eiq")
    assert find_converter().name == "eiq"
    assert "eiq_neutron_sdk" not in sys.modules
    diagnostic = failure(find_converter, "opn")
    assert "Did you mean 'open'?" in diagnostic.hint and "eiq" in diagnostic.hint


@pytest.mark.parametrize(
    ("version", "says"),
    [("3.1.3", "belongs to ExecuTorch 1.4"), ("3.3.0", "known here asks for it"), ("3.2.0", None)],
)
def test_a_version_that_executorch_does_not_ask_for_is_said(version, says):
    problem = fit(version)
    assert problem is None if says is None else says in problem and WANTED in problem


def test_the_stand_in_is_not_taken_for_nxps(litert):
    """Inside `python -m openneutron.sdk` the worker finds OpenNeutron's own answer."""
    with open_sdk(quiet=True):
        diagnostic = failure(EiqConverter().convert, litert, CompileOptions(converter="eiq"), TARGET)
    assert diagnostic.code == "ON412" and "stand-in" in diagnostic.problem
