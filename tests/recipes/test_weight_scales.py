"""Weights have a scale per output channel; `per_channel=False` and --per-tensor give a layer one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from openneutron import (
    NeutronQuantizer,
    OpenNeutronError,
    convert_qat,
    get_cortex_m_recipe,
    get_imxrt700_recipe,
    get_neutron_recipe,
    prepare_qat,
    quantize_model,
)
from openneutron.cli import main
from openneutron.commands.compiling.file_options import option_namespace, option_words
from openneutron.fx import op_name
from openneutron.litert.file import read
from openneutron.litert.ir import Builtin
from openneutron.pipeline import convert_model

SHAPE = (1, 3, 8, 8)
PER_CHANNEL = "quantized_decomposed.dequantize_per_channel.default"
OWN = """
import torch
def net():
    torch.manual_seed(0)
    return torch.nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8), [torch.randn(1, 3, 8, 8) for _ in range(4)]
"""


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


def samples():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator),) for _ in range(4)]


def scales_of(data):
    """How many scales the weights of a LiteRT file's convolution have."""
    (conv,) = (op for op in read(data).ops if op.kind is Builtin.CONV_2D)
    return len(conv.inputs[1].quant.scale)


@pytest.mark.slow  # the network is compiled in each way
def test_models():
    for given, expected in (({}, True), ({"per_channel": True}, True), ({"per_channel": False}, False)):
        for recipe in ("neutron", "imxrt700"):
            quantized = quantize_model(network(), samples(), recipe=recipe, **given)
            assert any(op_name(n) == PER_CHANNEL for n in quantized.graph.nodes) is expected
        data = convert_model(network(), samples()[0], calibration=samples(), **given)
        assert scales_of(data) == (4 if expected else 1)
        prepared = prepare_qat(network(), samples()[0], **given)
        prepared(*samples()[0])
        trained = convert_qat(prepared)
        assert any(op_name(n) == PER_CHANNEL for n in trained.graph.nodes) is expected


def test_recipes_of_executorch():
    for make in (get_neutron_recipe, get_imxrt700_recipe):
        for given, expected in (({}, True), ({"per_channel": False}, False)):
            (quantizer,) = make(**given).quantization_recipe.quantizers
            assert quantizer._scheme.per_channel is expected
    assert get_cortex_m_recipe().quantization_recipe.quantizers
    assert NeutronQuantizer().per_channel is False, "as the manual says"


def test_where_there_is_no_choice_only_a_choice_is_refused():
    quantize_model(network(), samples(), recipe="cortex-m")
    for choice in (True, False):
        with pytest.raises(OpenNeutronError, match="has no effect on the recipe cortex-m"):
            quantize_model(network(), samples(), recipe="cortex-m", per_channel=choice)


@pytest.mark.parametrize(("options", "scales"), [((), 4), (("--per-channel",), 4), (("--per-tensor",), 1)])
def test_command_line(tmp_path, monkeypatch, capsys, options, scales):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["convert", "own.py:net", *options, "--accuracy", "fast"]
    assert main([*words, "-o", "a.tflite"]) == 0
    assert scales_of((tmp_path / "a.tflite").read_bytes()) == scales
    for model in ("a.tflite",) if options else ():  # what is quantized already has its scales
        capsys.readouterr()
        assert main(["compile", model, *options]) == 2
        assert f"{options[0]}: has no effect" in capsys.readouterr().err
    assert main([*words, "--per-channel", "--per-tensor"]) == 2
    assert "not allowed with" in capsys.readouterr().err


def test_accuracy_of_convert(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    assert main(["convert", "own.py:net", "--accuracy", "no_such_method"]) == 2
    assert "no_such_method" in capsys.readouterr().err
    assert main(["convert", "own.py:net", "--accuracy", "fast", "--float"]) == 2
    assert "--accuracy: has no effect" in capsys.readouterr().err


def test_files_of_options():
    for options, expected, words in (
        ({}, None, []),
        ({"per_channel": True}, True, ["--per-channel"]),
        ({"per_channel": False}, False, ["--per-tensor"]),
        ({"per_tensor": True}, False, ["--per-tensor"]),
        ({"per_tensor": False}, True, ["--per-channel"]),
    ):
        assert option_namespace(options, "file", "ON130").per_channel is expected
        assert option_words(options) == words
    with pytest.raises(OpenNeutronError, match="says the same"):
        option_namespace({"per_channel": True, "per_tensor": False}, "file", "ON130")
