"""A PyTorch model through torch.onnx.export and back is the same program; in LiteRT it computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ai_edge_litert.interpreter import Interpreter

from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.reference import Reference
from openneutron.models.zoo import ZOO, find_model
from openneutron.onnx import load_onnx
from openneutron.pipeline import compile_litert, compile_model, convert_model, quantize_model
from openneutron.run.program import load_program

# Of the MobileNets one of each kind; sequences and pictures no larger than they need to be.
SHAPES = {"gru": ((1, 6, 16),), "mobilenet_v2": ((1, 3, 64, 64),)}
LARGE = ("mobilenet_v1", "mobilenet_v1_vww")
REMEMBERS = ("keywords_stream", "tiny_lm")  # in ONNX state is passed
OTHERS = [n for n in ZOO if n not in ("cifarnet", *LARGE, *REMEMBERS)]
# Slow: larger networks, compiled twice.
NAMES = ["cifarnet", *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]


@pytest.fixture(scope="module", params=NAMES)
def network(request):
    """A network of the zoo, samples, and the network quantized with them, once for all tests of it.

    A classifier of 1001 classes is made to prefer some of them.
    """
    name = request.param
    entry = find_model(name)
    module = entry.build(trained=entry.is_trained).eval()
    layers = [m for m in module.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    if layers[-1].weight.shape[0] > 512:
        layers[-1].weight.data *= 100
        layers[-1].bias.data *= 100  # what reaches an untrained classifier is small
    generator = torch.Generator().manual_seed(3)
    shapes = SHAPES.get(name, entry.input_shapes)
    samples = [tuple(torch.randn(s, generator=generator) for s in shapes) for _ in range(3)]
    # Untrained: some is better kept float.
    return name, module, samples, quantize_model(module, samples, keep_float_budget=0)


@pytest.mark.filterwarnings("ignore")
def test_zoo_through_onnx(network, tmp_path):
    name, module, samples, quantized = network
    path = tmp_path / "model.onnx"
    # Optimizing, the exporter folds batch norms itself, rounding the weights of these two otherwise than
    # PyTorch does; as it is exported, the network is the same to the bit.
    torch.onnx.export(module, samples[0], path, verbose=False, optimize=name not in ("dscnn", "keywords"))
    imported = load_onnx(path)
    with torch.no_grad():
        torch.testing.assert_close(imported(*samples[0]), module(*samples[0]), rtol=1e-4, atol=1e-5)
    straight = compile_model(quantized, samples[0])
    back = compile_model(imported, samples[0], calibration=samples, keep_float_budget=0)
    assert len(back.partitions) == len(straight.partitions)
    assert sorted(r.op for r in back.rejected) == sorted(r.op for r in straight.rejected)
    got, wanted = (load_program(p.pte).run(samples[0]) for p in (back, straight))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.filterwarnings("ignore")
def test_zoo_to_litert(network):
    name, module, samples, quantized = network
    interpreter = Interpreter(model_content=convert_model(module, samples[0]))
    interpreter.allocate_tensors()
    for details, value in zip(interpreter.get_input_details(), samples[0], strict=True):
        interpreter.set_tensor(details["index"], value.numpy())
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    with torch.no_grad():
        wanted = module(*samples[0])
    wanted = (wanted[0] if isinstance(wanted, tuple) else wanted).numpy()
    assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()

    reference = Reference(convert_model(quantized, samples[0]))
    program = compile_model(quantized, samples[0], int8_io=True, verify=False)
    assert not program.rejected
    random = np.random.default_rng(0)
    inputs = [random.integers(-128, 128, s, np.int8) for s in SHAPES.get(name, find_model(name).input_shapes)]
    for a, b in zip(reference.run(inputs), load_program(program.pte).run(inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.filterwarnings("ignore")
def test_a_softmax_that_ends_the_reference_interpreter(tmp_path, monkeypatch, capsys):
    """Over 1001 equal classes LiteRT's reference kernel aborts; converting says so, and nothing here dies."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 1001), torch.nn.Softmax(-1)).eval()
    model[0].weight.data *= 1e-3
    torch.export.save(torch.export.export(model, (torch.ones(1, 4),)), "model.pt2")
    assert main(["convert", "model.pt2", "--use-random-dataset"]) == 0
    assert "ON306" in capsys.readouterr().err
    data = (tmp_path / "model.tflite").read_bytes()
    x = np.array([[-128, 0, 1, 127]], np.int8)
    with pytest.raises(OpenNeutronError, match="ON306"):
        Reference(data).run([x])
    interpreter = Interpreter(model_content=data)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    wanted = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(load_program(compile_litert(data).pte).run([x])[0], wanted)
