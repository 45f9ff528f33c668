"""Every limit of a kernel is defined once, in its record; driver, compiler and partitioner agree on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.driver import prepare_problem
from openneutron.converter import find_converter
from openneutron.converter import open as open_converter
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Padding, Quant
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from openneutron.run.native import NativeModel
from openneutron.run.program import load_program
from openneutron.targets.table import find_target
from tests.compiler.graphs import random_graph, random_inputs

TARGET = find_target("imxrt700")
Q = Quant.per_tensor(0.05, 3)

# More than the kernels took, or than NXP publishes for its own converter.
LARGE = {
    "max pool, wide window": (lambda: nn.MaxPool2d((1, 5000), 1), (1, 2, 2, 5003)),
    "average pool, wide window": (lambda: nn.AvgPool2d((1, 4097), 1), (1, 2, 2, 4100)),
    "max pool, long stride": (lambda: nn.MaxPool2d(1, stride=4097), (1, 2, 4, 5000)),
    "adaptive pool, long rows": (lambda: nn.AdaptiveAvgPool2d((2, 1)), (1, 3, 4, 4097)),
    "convolution, wide window": (lambda: nn.Conv2d(2, 2, (1, 4097)), (1, 2, 2, 4100)),
    "transposed, high window": (lambda: nn.ConvTranspose2d(2, 2, (4097, 1)), (1, 2, 3, 2)),
    "convolution, long stride": (lambda: nn.Conv2d(4, 4, 1, stride=4097), (1, 4, 2, 5000)),
    "convolution, far taps": (lambda: nn.Conv1d(1, 2, 2, dilation=5000), (1, 1, 6000)),
    "depthwise, high window": (lambda: nn.Conv2d(3, 3, (65, 1), groups=3), (1, 3, 70, 4)),
    "five seconds of sound": (lambda: nn.Conv1d(1, 4, 80, stride=16), (1, 1, 80000)),
    "pooled sound": (lambda: nn.MaxPool1d(4), (1, 1, 80000)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_windows_strides_and_maps_compile_and_run_without_verification(name):
    make, shape = LARGE[name]
    torch.manual_seed(0)
    layer, inputs = make().eval(), (2 * torch.rand(shape) - 1,)
    program = compile_model(layer, inputs, calibration=[inputs], verify=False)
    assert (len(program.partitions), program.rejected) == (1, ())
    (got,) = load_program(program.pte).run(inputs)
    wanted = layer(*inputs).detach()
    step = 1.01 * float(max(wanted.max(), inputs[0].max()) - min(wanted.min(), inputs[0].min())) / 255
    assert np.abs(got - wanted.numpy()).mean() < step


def test_what_no_kernel_takes_stays_on_the_cpu_and_names_the_limit():
    layer, inputs = nn.Upsample(scale_factor=2, mode="bilinear"), (torch.randn(1, 1, 2, 40000),)
    program = compile_model(layer, inputs, calibration=[inputs], verify=False)
    assert not program.partitions
    (entry,) = (r for r in program.rejected if "upsample" in r.op)
    assert "out_w is 80000, which must be 1 to 65535" in entry.reject.reason


def test_a_litert_model_beyond_a_limit_is_refused_by_the_name_of_its_field():
    b = Builder()
    x = b.input("x", (1, 1, 40000, 1), quant=Q)
    options = {"alignCorners": False, "halfPixelCenters": True}
    y = b.op(Builtin.RESIZE_BILINEAR, [x, b.ints((2, 80000))], (1, 2, 80000, 1), Q, options=options)
    with pytest.raises(OpenNeutronError, match=r"ON401: .*out_w is 80000"):
        compile_graph(read(write(b.graph([y]))), TARGET, CompileOptions())


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(1, 4), (1, 2, 16777216)], "dimension of more than 16777215"),
        ([(1, 4), (1, 1, 1, 1, 1, 1, 1, 1, 2)], "more than 8 dimensions"),
        ([(1, 4)] * 257, "the graph has 257 inputs, the driver takes 256"),
    ],
)
def test_ports_that_the_driver_would_refuse_are_refused_by_name(shapes, words):
    """Also those that no operator reads."""
    b = Builder()
    x, *_ = [b.input(f"x{i}", shape, quant=Q) for i, shape in enumerate(shapes)]
    graph = b.graph([b.op(Builtin.ABS, [x], (1, 4), Q)])
    with pytest.raises(OpenNeutronError, match=f"ON401: .*{words}"):
        compile_graph(graph, TARGET, CompileOptions())


@pytest.mark.parametrize("rows", [64, 65, 130])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_windows_of_any_height_are_exact(rows, multiplier):
    rng = np.random.default_rng(rows)
    b = Builder()
    x = b.input("x", (1, rows + 7, 5, 3), quant=Q)
    channels = 3 * multiplier
    quant = Quant.per_axis(rng.uniform(0.002, 0.02, channels).astype(np.float32), axis=3)
    weights = b.const(rng.integers(-127, 128, (1, rows, 2, channels)).astype(np.int8), quant)
    bias = b.const(rng.integers(-3000, 3000, channels).astype(np.int32))
    options = {"padding": int(Padding.SAME), "strideH": 2, "strideW": 1, "dilationHFactor": 1,
               "dilationWFactor": 1, "depthMultiplier": multiplier, "fusedActivationFunction": 0}  # fmt: skip
    shape = (1, -(-(rows + 7) // 2), 5, channels)
    y = b.op(Builtin.DEPTHWISE_CONV_2D, [x, weights, bias], shape, Quant.per_tensor(0.3, -4), options=options)
    graph = read(write(b.graph([y])))
    inputs = random_inputs(graph, rows)
    for size in ("performance", "size"):
        result = compile_graph(graph, TARGET, CompileOptions(optimise=size))
        got = NativeModel(result.microcode, result.weights).run(inputs)
        np.testing.assert_array_equal(got[0], run_reference(graph, inputs)[0])


def _outside(value: Any) -> Iterator[Any]:
    """The record with one field, or the fields of one limit, just beyond what is allowed."""
    for name, word in mc.layout(type(value)):
        if not isinstance(word, mc.Word):
            for part in _outside(getattr(value, name)):
                yield replace(value, **{name: part})
        elif (allowed := mc.ranges_of(type(value)).get(name)) is not None:
            unsigned = word.c_type.startswith("u")
            least, most = (0, 2**32 - 1) if unsigned else (-(2**31), 2**31 - 1)
            for bad in (allowed.low - 1, allowed.high + 1):
                if least <= bad <= most:
                    held = getattr(value, name)
                    yield replace(value, **{name: (bad, *held[1:]) if isinstance(held, tuple) else bad})
    for limit in mc.limits_of(type(value)):
        *parents, name = limit.fields[0].split(".")
        part = value if not parents else getattr(value, parents[0])
        changed = replace(part, **{name: limit.most + 1})
        yield replace(value, **{parents[0]: changed}) if parents else changed


def test_driver_and_compiler_refuse_the_same_records():
    tried: dict[mc.Kernel, int] = {}
    for seed in range(40):
        result = compile_graph(read(write(random_graph(seed, 20))), TARGET, CompileOptions())
        assert prepare_problem(result.microcode, result.weights) == ""
        for index, call in enumerate(result.program.calls):
            assert mc.out_of_range(call) == ""
            if tried.setdefault(call.kernel, 0) > 1:
                continue
            tried[call.kernel] += 1
            for bad in _outside(call):
                assert mc.out_of_range(bad), bad
                calls = (*result.program.calls[:index], bad, *result.program.calls[index + 1 :])
                damaged = mc.encode(replace(result.program, calls=calls))
                assert "parameters" in prepare_problem(damaged, result.weights), bad
    assert len(tried) > 15, tried


def test_nothing_is_made_of_what_the_driver_refuses(monkeypatch):
    def broken(graph, target, options):
        result = compile_graph(graph, target, options)
        call = replace(result.program.calls[0], minimum=2)
        program = replace(result.program, calls=(call, *result.program.calls[1:]))
        return replace(result, program=program, microcode=mc.encode(program))

    b = Builder()
    x = b.input("x", (1, 2, 3), quant=Q)
    options = {"keepDims": True}
    model = write(b.graph([b.op(Builtin.REDUCE_MAX, [x, b.ints([1])], (1, 1, 3), Q, options=options)]))
    monkeypatch.setattr(open_converter, "compile_graph", broken)
    with pytest.raises(OpenNeutronError, match=r"ON404: .*REDUCE_EXTREMUM"):
        find_converter("open").convert(model, CompileOptions(), TARGET)


def test_a_missing_native_library_is_said(monkeypatch, tmp_path):
    b = Builder()
    x = b.input("x", (1, 2, 3), quant=Q)
    model = write(
        b.graph([b.op(Builtin.REDUCE_MAX, [x, b.ints([1])], (1, 1, 3), Q, options={"keepDims": True})])
    )
    monkeypatch.setattr(open_converter, "LIBRARY", tmp_path / "libneutron.so")
    with pytest.warns(UserWarning, match="the driver has not checked the program"):
        find_converter("open").convert(model, CompileOptions(), TARGET)


def test_a_scale_too_small_for_a_float_to_count_its_steps():
    """6 / scale is infinite in float32: a fused ReLU6 bounds nothing then."""
    b = Builder()
    tiny = Quant.per_tensor(1e-40)
    x = b.input("x", (1, 2, 2, 1), quant=tiny)
    y = b.op(Builtin.ADD, [x, x], (1, 2, 2, 1), tiny, options={"fusedActivationFunction": 3})
    compile_graph(b.graph([y]), TARGET, CompileOptions())


@pytest.mark.parametrize(("scale", "beta"), [(1e-9, 1.0), (0.1, 0.0), (0.1, -1.0), (0.1, float("nan"))])
def test_a_softmax_whose_steps_are_below_its_fixed_point_is_refused(scale, beta):
    b = Builder()
    x = b.input("x", (1, 4), quant=Quant.per_tensor(scale))
    y = b.op(Builtin.SOFTMAX, [x], (1, 4), Quant.per_tensor(1 / 256, -128), options={"beta": beta})
    with pytest.raises(OpenNeutronError, match=r"ON401: .*the scale of its input times beta"):
        compile_graph(b.graph([y]), TARGET, CompileOptions())
