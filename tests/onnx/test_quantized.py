"""Files that onnxruntime's static quantizer wrote: taken as they are, and computing what onnxruntime does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

from openneutron.litert.file import read
from openneutron.litert.reference import Reference
from openneutron.models.zoo import find_model
from openneutron.onnx import load_onnx
from openneutron.pipeline import compile_model, convert_model
from openneutron.run.program import load_program
from tests.onnx.graphs import run_onnxruntime
from tests.programs import ReferenceProgram, assert_same


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


def quantized_file(name, folder, form, activations, per_channel):
    """A network, exported and quantized by others; and inputs to try it with."""
    module, shape = _network(name)
    random = np.random.default_rng(1)
    samples = [random.standard_normal(shape).astype(np.float32) for _ in range(8)]
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
    loaded, reference, step = load_program(program.pte), ReferenceProgram(program), last_step(module)
    for sample in samples:
        inputs = (torch.from_numpy(sample),)
        got = loaded.run(inputs)
        assert_same(got, reference.outputs(inputs))
        wanted = run_onnxruntime(path, [sample])[0]
        assert np.abs(got[0] - wanted).max() <= step * 1.01


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
