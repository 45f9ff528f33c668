"""Files that onnxruntime's static quantizer wrote: taken as they are, and computing what onnxruntime does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from torch import nn

from openneutron.litert.file import read
from openneutron.litert.reference import Reference
from openneutron.models.data import load_digits
from openneutron.models.zoo import find_model
from openneutron.onnx import load_onnx
from openneutron.pipeline import compile_model, convert_model
from openneutron.run.program import load_program
from tests.onnx.graphs import model, run_onnxruntime, save, value
from tests.programs import assert_same, reference_of


class _Samples(CalibrationDataReader):
    def __init__(self, name, samples):
        self.left = iter([{name: sample} for sample in samples])

    def get_next(self):
        return next(self.left, None)


class _Small(nn.Module):
    """A convolution with uneven padding, an addition, a pooling, a mean and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 2)
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(nn.functional.pad(x, (0, 1, 0, 1)))) + x
        return self.last(nn.functional.max_pool2d(x, 2).mean((2, 3)))


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, 12), nn.Linear(12, 4)

    def forward(self, x):
        return self.last(self.lstm(x)[0][-1])


def _network(name):
    torch.manual_seed(0)
    if name in ("small", "lstm"):
        made = (_Small, (1, 3, 8, 8)) if name == "small" else (_Recurrent, (6, 1, 8))
        return made[0]().eval(), made[1]
    entry = find_model(name)
    return entry.build(trained=entry.is_trained).eval(), entry.input_shapes[0]


def _samples(name, shape):
    """Digits for networks of the zoo, which are trained on them; noise for others."""
    if name in ("small", "lstm"):
        random = np.random.default_rng(1)
        return [random.standard_normal(shape).astype(np.float32) for _ in range(8)]
    return [image[None].numpy() for image in load_digits(shape).train.inputs[:8]]


def quantized_file(name, folder, form, activations, per_channel):
    """A network, exported and quantized by others; and inputs to try it with."""
    module, shape = _network(name)
    samples = _samples(name, shape)
    plain, path = folder / "float.onnx", folder / "quantized.onnx"
    torch.onnx.export(
        module, (torch.from_numpy(samples[0]),), plain, input_names=["x"], verbose=False, external_data=False
    )
    quantize_static(
        plain, path, _Samples("x", samples), quant_format=form, activation_type=activations,
        weight_type=QuantType.QInt8, per_channel=per_channel,
    )  # fmt: skip
    return path, samples[:4]


def last_step(module):
    """The size of one step of the output."""
    last = [s for s in module._graph.steps if s.op.name in ("DequantizeLinear", "QuantizeLinear")][-1]
    return float(module._graph.constants[last.inputs[1]].reshape(-1)[0])


# Slow: larger networks, quantized by onnxruntime.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("cifarnet", "dscnn", "resnet8", "lstm")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("form", "activations", "per_channel"),
    [
        (QuantFormat.QDQ, QuantType.QInt8, False),
        (QuantFormat.QDQ, QuantType.QUInt8, True),
        (QuantFormat.QOperator, QuantType.QUInt8, False),
        (QuantFormat.QOperator, QuantType.QInt8, True),
    ],
    ids=["QDQ int8", "QDQ uint8 per channel", "QOperator uint8", "QOperator int8 per channel"],
)
@pytest.mark.parametrize("name", ["small", *SLOW])
def test_the_program_computes_what_onnxruntime_does(name, form, activations, per_channel, tmp_path):
    path, samples = quantized_file(name, tmp_path, form, activations, per_channel)
    module = load_onnx(path)
    assert module.is_quantized
    program = compile_model(module, module.example_inputs)
    if name != "lstm":  # onnxruntime leaves the LSTM itself in float
        assert not program.rejected
    loaded, reference, step = load_program(program.pte), reference_of(program), last_step(module)
    for sample in samples:
        inputs = (torch.from_numpy(sample),)
        got = loaded.run(inputs)
        assert_same(got, reference.outputs(inputs))
        wanted = run_onnxruntime(path, [sample])[0]
        assert np.abs(got[0] - wanted).max() <= step * 1.01


@pytest.mark.filterwarnings("ignore")
def test_what_a_file_leaves_in_float_is_float_in_litert(tmp_path):
    """onnxruntime's quantizer leaves an LSTM in float; as LiteRT the whole is written, in both."""
    path, samples = quantized_file("lstm", tmp_path, QuantFormat.QDQ, QuantType.QUInt8, True)
    module = load_onnx(path)
    graph = read(convert_model(module, module.example_inputs), "converted")
    reference, result, step = Reference(graph), graph.outputs[0].quant, last_step(module)
    for sample in samples:
        got = (reference.run([sample])[0].astype(np.float32) - result.zero_point[0]) * result.scale[0]
        assert np.abs(got - run_onnxruntime(path, [sample])[0]).max() <= step * 1.01


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("window", ["global", "AveragePool 3x2", "padded"])
def test_a_pool_with_other_parameters_clips_nothing(window, tmp_path):
    """The mean of large numbers may be small: its scale is not that of what it is the mean of."""
    attributes = {"kernel_shape": [3, 2], "strides": [2, 2]}
    if window == "padded":
        attributes |= {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if window == "global":
        pool = helper.make_node("GlobalAveragePool", ["a"], ["b"])
    else:
        pool = helper.make_node("AveragePool", ["a"], ["b"], **attributes)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
        pool,
        helper.make_node("QuantizeLinear", ["b", "s2", "z2"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "s2", "z2"], ["y"]),
    ]
    weights = {"s": np.float32(0.1), "z": np.int8(0), "s2": np.float32(0.02), "z2": np.int8(5)}
    path = save(model(nodes, [value("x", (1, 4, 8, 9))], [value("y", None)], weights), tmp_path)
    module = load_onnx(path)
    program = compile_model(module, module.example_inputs)
    assert not program.rejected
    x = np.random.default_rng(0).standard_normal((1, 4, 8, 9)).astype(np.float32) * 4
    inputs = (torch.from_numpy(x),)
    got = load_program(program.pte).run(inputs)
    assert_same(got, reference_of(program).outputs(inputs))
    assert np.abs(got[0] - run_onnxruntime(path, [x])[0]).max() <= 0.0201


@pytest.mark.filterwarnings("ignore")
def test_the_files_parameters_are_kept(tmp_path):
    """uint8 is int8 with the zero point moved by 128: in the LiteRT form of the model, scale by scale."""
    path, _ = quantized_file("small", tmp_path, QuantFormat.QDQ, QuantType.QUInt8, False)
    module = load_onnx(path)
    constants = module._graph.constants
    expected = {
        (float(constants[s.inputs[1]]), int(constants[s.inputs[2]]) - 128)
        for s in module._graph.steps
        if s.op.name == "QuantizeLinear"
    }
    graph = read(convert_model(module, module.example_inputs), "converted")
    found = {
        (t.quant.scale[0], t.quant.zero_point[0]) for op in graph.ops for t in op.outputs if t.dtype == "int8"
    }
    assert found and found <= expected
    assert all(t.dtype == "int8" for t in (*graph.inputs, *graph.outputs))
    assert Reference(graph)


class _Sequence(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = getattr(nn, kind)(8, 6, bidirectional=True, batch_first=True)
        self.last = nn.Linear(12, 4)

    def forward(self, x):
        return self.last(self.layer(x)[0])


def _exported(module, shape, path, opset):
    torch.manual_seed(0)
    torch.onnx.export(
        module.eval(), (torch.randn(shape),), path, input_names=["x"], output_names=["y"],
        opset_version=opset, dynamo=False,
    )  # fmt: skip
    return path


def _drawn_inputs(shape, count=8):
    return [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i in range(count)]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_bidirectional_recurrent_layer_between_quantize_steps(kind, tmp_path):
    path = _exported(_Sequence(kind), (1, 5, 8), tmp_path / "float.onnx", 17)
    given = _drawn_inputs((1, 5, 8))
    quantize_static(path, tmp_path / "q.onnx", _Samples("x", given), quant_format=QuantFormat.QDQ)
    module = load_onnx(tmp_path / "q.onnx")
    graph = read(convert_model(module, (torch.from_numpy(given[0]),)), "converted")
    (found,) = Reference(graph).run([given[0]])
    (quant,) = {t.quant for t in graph.outputs}
    found = (found.astype(np.float32) - quant.zero_point[0]) * quant.scale[0]
    (expected,) = run_onnxruntime(tmp_path / "q.onnx", [given[0]])
    assert np.abs(found - expected).max() <= 2 * quant.scale[0]


@pytest.mark.parametrize("kind", ["LSTM", "Conv"])
def test_what_is_quantized_at_run_time_is_read_as_float(kind, tmp_path, caplog):
    shape = (1, 5, 8) if kind == "LSTM" else (1, 3, 8, 8)
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    path = _exported(_Sequence("LSTM") if kind == "LSTM" else conv, shape, tmp_path / "float.onnx", 17)
    quantize_dynamic(path, tmp_path / "dynamic.onnx")
    module, given = load_onnx(tmp_path / "dynamic.onnx"), _drawn_inputs(shape)
    assert "quantized at run time are read as float" in caplog.text
    found = module(torch.from_numpy(given[0])).detach().numpy()
    (expected,) = run_onnxruntime(path, [given[0]])
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()  # its weights have eight bits
    program = compile_model(
        module, (torch.from_numpy(given[0]),), calibration=[(torch.from_numpy(x),) for x in given]
    )
    assert program.rejected == ()


def test_scales_for_each_channel_before_opset_13(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    path, given = _exported(model, (1, 3, 8, 8), tmp_path / "float.onnx", 11), _drawn_inputs((1, 3, 8, 8))
    quantize_static(
        path, tmp_path / "q.onnx", _Samples("x", given), quant_format=QuantFormat.QDQ, per_channel=True
    )
    module = load_onnx(tmp_path / "q.onnx")
    program = compile_model(module, (torch.from_numpy(given[0]),))
    assert program.rejected == ()
    (found,) = load_program(program.pte).run([given[0]])
    (expected,) = run_onnxruntime(path, [given[0]])  # some releases refuse what their quantizer writes
    assert np.abs(np.asarray(found) - expected).max() < 0.05 * np.abs(expected).max()
