"""Quantizing what another tool left in float: nothing of it stays float, nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from torch import nn

from openneutron import OpenNeutronError, compile_model, quantize_model
from openneutron.cli import main
from openneutron.fx import bind_args, op_name
from openneutron.onnx import load_onnx
from openneutron.quantize.export import export_model
from tests.onnx.graphs import model, save, value

pytestmark = pytest.mark.filterwarnings("ignore")


class Voice(nn.Module):
    """A convolution over time, an LSTM, a linear layer."""

    shape = (1, 4, 12)

    def __init__(self):
        super().__init__()
        self.conv, self.lstm, self.last = nn.Conv1d(4, 8, 3), nn.LSTM(8, 12), nn.Linear(12, 4)

    def forward(self, x):
        x = torch.relu(self.conv(x)).permute(2, 0, 1)
        return self.last(self.lstm(x)[0][-1])


class Layers(nn.Module):
    """Convolutions one after another."""

    shape = (1, 3, 8, 8)

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(5))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.mean((2, 3))


class _Samples(CalibrationDataReader):
    def __init__(self, samples):
        self.left = iter([{"x": sample[0].numpy()} for sample in samples])

    def get_next(self):
        return next(self.left, None)


def samples_of(net, count=12):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(net.shape, generator=generator),) for _ in range(count)]


def made_by_onnxruntime(net, folder, excluded=(), activations=QuantType.QInt8):
    torch.manual_seed(0)
    module, samples = net().eval(), samples_of(net)
    torch.onnx.export(module, samples[0], folder / "float.onnx", input_names=["x"], verbose=False,
                      external_data=False)  # fmt: skip
    quantize_static(folder / "float.onnx", folder / "int8.onnx", _Samples(samples), per_channel=True,
                    activation_type=activations, weight_type=QuantType.QInt8,
                    nodes_to_exclude=list(excluded))  # fmt: skip
    return load_onnx(folder / "int8.onnx"), samples


def decided(module, example):
    """The scales and zero points of steps, and the integers, that a model has."""
    program = export_model(module, example)
    steps = set()
    for node in program.graph.nodes:
        if op_name(node).endswith("quantize_per_tensor.default"):
            args = bind_args(node)
            steps.add((args["scale"], args["zero_point"]))
    tensors = [*program.state_dict.values(), *program.constants.values()]
    return steps, {t.numpy().tobytes() for t in tensors if t.dtype == torch.int8}


def check_completed(module, samples, most_steps):
    """Nothing is left to the CPU; what was decided stays; the results are as near as int8 allows."""
    quantized = quantize_model(module, samples, remainder=True)
    before, after = decided(module, samples[0]), decided(quantized, samples[0])
    assert before[0] <= after[0] and before[1] <= after[1]
    program = compile_model(quantized, samples[0])
    assert not program.rejected and len(program.partitions) == 1
    with torch.no_grad():
        exact = torch.cat([module(*sample) for sample in samples])
        found = torch.cat([quantized(*sample) for sample in samples])
    assert float((exact - found).abs().max()) <= most_steps * float(exact.max() - exact.min()) / 255
    return quantized


@pytest.mark.slow  # an LSTM, quantized by onnxruntime
@pytest.mark.parametrize("activations", [QuantType.QInt8, QuantType.QUInt8])
def test_an_lstm_that_onnxruntime_leaves_in_float(tmp_path, activations):
    module, samples = made_by_onnxruntime(Voice, tmp_path, activations=activations)
    assert compile_model(module, samples[0]).rejected, "the LSTM is on the CPU"
    check_completed(module, samples, most_steps=12)


@pytest.mark.slow  # quantized by onnxruntime, then compiled twice
def test_layers_that_were_excluded(tmp_path):
    """Two regions, each between layers of the file: their borders have the file's parameters."""
    module, samples = made_by_onnxruntime(Layers, tmp_path, ["node_conv2d_1", "node_conv2d_3"])
    assert len(compile_model(module, samples[0]).rejected) >= 2
    check_completed(module, samples, most_steps=8)


def test_weights_without_a_rounding_of_the_result(tmp_path):
    """As tools for other hardware write it: inputs and weights are quantized, results are not."""
    random = np.random.default_rng(0)
    weights = random.integers(-100, 100, (4, 3, 1, 1)).astype(np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "t", "n"], ["dw"]),
        helper.make_node("Conv", ["d", "dw"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Sigmoid", ["r"], ["p"]),
        helper.make_node("Mul", ["r", "p"], ["y"]),
    ]
    constants = {"s": np.float32(0.03), "z": np.int8(3), "n": np.int8(0), "t": np.float32(0.01)}
    made = model(nodes, [value("x", [1, 3, 8, 8])], [value("y", [1, 4, 8, 8])], constants)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    module = load_onnx(save(made, tmp_path))
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(1, 3, 8, 8, generator=generator),) for _ in range(8)]
    check_completed(module, samples, most_steps=3)


def test_a_quantized_pt2_with_a_layer_in_float(tmp_path):
    torch.manual_seed(0)
    module, samples = Layers().eval(), samples_of(Layers)
    partly = quantize_model(module, samples, keep_float=["relu_2"])
    program = torch.export.export(partly, samples[0])
    quantized = check_completed(program.module(), samples, most_steps=4)
    again = quantize_model(quantized, samples, remainder=True)  # there is nothing left to do
    assert decided(again, samples[0]) == decided(quantized, samples[0])


@pytest.mark.slow  # commands one after the other
def test_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made_by_onnxruntime(Voice, tmp_path)
    np.savez("data.npz", x=np.concatenate([s[0].numpy()[None] for s in samples_of(Voice)]))
    given = ["--quantize-remainder", "--calibration", "data.npz"]
    assert main(["compile", "int8.onnx", *given, "-o", "a.pte", "--json"]) == 0
    out = capsys.readouterr().out
    assert '"cpu_nodes": []' in out and '"output_sqnr_db"' in out
    for model_name, option in (("float.onnx", ()), ("int8.onnx", ("--keep-float", "x"))):
        assert main(["compile", model_name, *given, *option]) == 2
        assert "no effect" in capsys.readouterr().err


def test_what_does_not_go_with_it():
    with pytest.raises(OpenNeutronError, match="calibration alone"):
        quantize_model(Layers().eval(), samples_of(Layers), remainder=True, keep_float=["relu_2"])
