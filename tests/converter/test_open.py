"""The open converter: LiteRT file in, payload parts out, and the same as a LiteRT file with one operator."""

from __future__ import annotations

import numpy as np
import pytest

from openneutron.compiler.microcode.format import FORMAT_VERSION
from openneutron.converter import find_converter
from openneutron.converter.neutron_graph import read_neutron_graph
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import write
from openneutron.litert.ir import Builtin, Quant
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.package.payload import Port, build_payload, check_fits, pack, parse
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target

TARGET = find_target("imxrt700")
Q = Quant.per_tensor(0.1, -5)


@pytest.fixture
def litert():
    """Float in, float out, an activation in between: what other people's converters write."""
    b = Builder()
    x = b.quantize(b.input("x", (1, 6), "float32"), Q)
    y = b.op(Builtin.ADD, [x, x], (1, 6), Q, options={"fusedActivationFunction": 0})
    y = b.op(Builtin.LOGISTIC, [y], (1, 6), Quant.per_tensor(1 / 256, -128))
    return write(b.graph([b.dequantize(y)]))


def convert(litert, **options):
    return find_converter("open").convert(litert, CompileOptions(**options), TARGET)


def test_payload_carries_what_runs_and_says_who_made_it(litert):
    payload = parse(pack(build_payload(convert(litert), (Port(0),), (Port(0),), input_args=1)))
    check_fits(payload, "imxrt700")
    assert payload.stamp.converter.startswith("openneutron ")
    assert (payload.stamp.format_version, payload.stamp.target) == (FORMAT_VERSION, "imxrt700")
    values = np.linspace(-20, 20, 6, dtype=np.float32).reshape(1, 6)
    (got,) = NativeModel(payload.microcode, payload.weights).run([values])
    np.testing.assert_array_equal(got, run_reference(litert, [values])[0])


def test_the_litert_form_holds_the_same_parts(litert):
    model = convert(litert)
    parts = read_neutron_graph(model.neutron_litert, profiling=False, where="test")
    assert parts.microcode == model.microcode
    assert parts.weights == model.weights
    assert parts.scratch_bytes == max(1, model.scratch_bytes)
    assert [t.name for t in parts.inputs] == ["x"] and [t.shape for t in parts.outputs] == [(1, 6)]


def test_kernel_selection_on_request_only(litert):
    assert convert(litert).kernel_selection_code is None
    code = convert(litert, dump_kernel_selection_code=True).kernel_selection_code
    for kernel in ("quantize", "table", "dequantize"):
        assert f"neutron_{kernel}," in code
    assert "neutron_conv_2d" not in code


def test_same_bytes_every_time(litert):
    first, second = convert(litert), convert(litert)
    assert first.microcode == second.microcode and first.neutron_litert == second.neutron_litert


@pytest.mark.parametrize("damage", [b"", b"not a model", "half"])
def test_damaged_files_are_a_diagnostic(litert, damage):
    raw = litert[: len(litert) // 2] if damage == "half" else damage
    with pytest.raises(OpenNeutronError, match="ON30"):
        convert(raw)
