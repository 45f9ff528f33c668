"""Whole networks through post-training quantization and quantization-aware training."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchao.quantization.pt2e import move_exported_model_to_eval, move_exported_model_to_train
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e

from openneutron.diagnostics import OpenNeutronError
from openneutron.fast_export.norm_patterns import norm_patterns
from openneutron.fx import op_name
from openneutron.pipeline import quantize_model
from openneutron.quantize.loop import calibrate_and_quantize, train_and_quantize
from openneutron.quantize.quantizer import NeutronQuantizer

QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
NORM = "aten.batch_norm.default"


def randomize_norms(model):
    """Batch norms as training leaves them."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.3, 2)
    return model


class SmallNet(nn.Module):
    """Convolution, depthwise convolution, residual, concatenation, linear layer with batch norm."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.depth = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
        self.point = nn.Conv2d(8, 8, 1)
        self.head = nn.Sequential(
            nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 4)
        )

    def forward(self, x):
        x = self.stem(x)
        x = x + self.point(self.depth(x))
        x = torch.cat([F.max_pool2d(x, 2), F.avg_pool2d(x, 2)], 1)
        return self.head(x.mean([2, 3])).softmax(1)


class EveryNormedLayer(nn.Module):
    """Every kind of layer a batch norm can follow, without bias, with all that torchao finds hard."""

    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm2d(4)
        self.same = nn.Sequential(
            nn.Conv2d(4, 6, 4, padding="same", bias=False), nn.BatchNorm2d(6, eps=1e-3), nn.Hardswish()
        )
        self.depth = nn.Sequential(
            nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False),
            nn.BatchNorm2d(6, eps=1e-3),
            nn.ReLU6(inplace=True),
        )
        self.group = nn.Sequential(
            nn.Conv2d(6, 6, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(6), nn.ReLU()
        )
        self.up = nn.Sequential(nn.ConvTranspose2d(6, 5, 2, stride=2, bias=False), nn.BatchNorm2d(5))
        self.line = nn.Sequential(
            nn.Conv1d(5, 5, 3, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.1)
        )
        self.up1d = nn.Sequential(nn.ConvTranspose1d(5, 4, 3, bias=False), nn.BatchNorm1d(4), nn.ReLU())
        self.linear = nn.Sequential(
            nn.Linear(4, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)
        )

    def forward(self, x):
        x = self.same(F.relu(self.first(x)))
        x = x + self.depth(x)
        x = self.up(self.group(x)).flatten(2)
        return self.linear(self.up1d(self.line(x)).mean(2))


def names(model):
    return [op_name(n) for n in model.graph.nodes]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
def test_post_training(strict, channels_last):
    model = randomize_norms(SmallNet()).eval()
    x = torch.randn(4, 3, 16, 16)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    program = torch.export.export(model, (x,), strict=strict)
    quantized = calibrate_and_quantize(program, [(x,)], NeutronQuantizer())
    assert NORM not in names(quantized)
    torch.testing.assert_close(quantized(x), model(x), atol=0.03, rtol=0)


def test_guards_do_not_matter():
    model, x = SmallNet().eval(), torch.randn(1, 3, 16, 16)
    prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), NeutronQuantizer())
    prepared(x)
    torch.testing.assert_close(convert_pt2e(prepared)(x), model(x), atol=0.03, rtol=0)


def test_results_are_deterministic():
    model, x = randomize_norms(SmallNet()).eval(), torch.randn(1, 3, 16, 16)
    first, second = (
        calibrate_and_quantize(torch.export.export(copy.deepcopy(model), (x,)), [(x,)], NeutronQuantizer())
        for _ in range(2)
    )
    assert first.code == second.code
    assert torch.equal(first(x), second(x))


def test_calibration_needs_inputs():
    program = torch.export.export(nn.ReLU(), (torch.randn(1, 3),))
    with pytest.raises(OpenNeutronError, match=r"ON209.*no calibration inputs"):
        calibrate_and_quantize(program, [], NeutronQuantizer())


class PreActivation(nn.Module):
    """Two batch norms on one convolution, whose result is read a third time, as in pre-activation ResNets."""

    def __init__(self):
        super().__init__()
        self.conv, self.a, self.b = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x):
        x = self.conv(x)
        return x + F.relu(self.a(x)) + self.b(x)


def test_a_convolution_that_others_read_keeps_its_values():
    model, x = randomize_norms(PreActivation()).eval(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    quantized = calibrate_and_quantize(torch.export.export(model, (x,)), [(x,)], NeutronQuantizer())
    assert NORM not in names(quantized)
    torch.testing.assert_close(quantized(x), expected, atol=0.2, rtol=0)


def test_epsilon_survives_the_switch_to_training_and_back():
    model, x = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4, eps=0.5)).eval(), torch.randn(2, 4, 3, 3)
    prepared = prepare_qat_pt2e(
        torch.export.export(model, (x,)).module(check_guards=False), NeutronQuantizer(is_qat=True)
    )
    move_exported_model_to_train(prepared)
    move_exported_model_to_eval(prepared)
    torch.testing.assert_close(prepared(x), model(x), atol=0.05, rtol=0)


def train(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("exported_in_training", "per_channel"),
    [(True, False), pytest.param(False, True, marks=pytest.mark.slow)],  # a second training of every layer
)
def test_training_folds_every_batch_norm(exported_in_training, per_channel):
    model, x = randomize_norms(EveryNormedLayer()), torch.randn(4, 4, 8, 8)
    program = torch.export.export(model.train(exported_in_training), (x,))
    quantizer = NeutronQuantizer(is_qat=True, per_channel=per_channel)
    with norm_patterns():
        prepared = prepare_qat_pt2e(program.module(check_guards=False), quantizer)
    move_exported_model_to_train(prepared)
    train(prepared, x)
    move_exported_model_to_eval(prepared)
    with torch.no_grad():
        prepared(x)  # the observers see the weights as they are now
        for module in prepared.modules():
            if hasattr(module, "disable_observer"):
                module.disable_observer()
        expected = prepared(x)
    with norm_patterns():
        quantized = convert_pt2e(prepared)
    assert names(quantized).count(NORM) == 1, "only the one that follows no layer is left"
    for node in quantized.graph.nodes:
        if op_name(node).startswith(("aten.conv", "aten.linear")):
            assert all("dequantize" in str(n.target) for n in node.all_input_nodes)
            assert len(node.all_input_nodes) == 3, "input, weight, bias"
    step = [n for n in quantized.graph.nodes if op_name(n) == QUANTIZE][-1].args[1]
    torch.testing.assert_close(quantized(x), expected, atol=1.01 * step, rtol=0)


def test_passes_for_training_keep_results_and_the_float_model():
    model, x = randomize_norms(EveryNormedLayer()).eval(), torch.randn(4, 4, 8, 8)
    expected = model(x)
    program = torch.export.export(model, (x,))
    transformed = NeutronQuantizer(is_qat=True).transform_for_annotation(program.module(check_guards=False))
    torch.testing.assert_close(transformed(x), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(model(x), expected)


def test_the_manuals_function_trains_too():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(8, 6)
    before = model[0].weight.detach().clone()
    program, quantizer = torch.export.export(model.train(), (x,)), NeutronQuantizer(is_qat=True)
    quantized = calibrate_and_quantize(
        program, [(x,)], quantizer, is_qat=True, train_fn=lambda m: train(m, x)
    )
    assert not torch.equal(model[0].weight, before), "trained"
    torch.testing.assert_close(quantized(x), model.eval()(x), atol=0.05, rtol=0)
    with pytest.raises(OpenNeutronError, match="without is_qat"):
        calibrate_and_quantize(program, [(x,)], quantizer, train_fn=lambda m: None)


def test_train_and_quantize():
    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(8, 3)),
        torch.randn(8, 6),
    )
    program = torch.export.export(model.train(), (x,))
    before = model[0].weight.detach().clone()
    quantized = train_and_quantize(program, lambda m: train(m, x), NeutronQuantizer(is_qat=True), [(x,)])
    assert not torch.equal(model[0].weight, before), "trained"
    assert torch.equal(quantized(x), quantized(x)), "dropout is off"
    torch.testing.assert_close(quantized(x), model.eval()(x), atol=0.03, rtol=0)


def test_nothing_keeps_a_model_that_was_quantized():
    """torch and torchao ask each once for its device, and would remember it as long as the process lives."""
    quantized = weakref.ref(quantize_model(nn.Linear(4, 3).eval(), [(torch.randn(1, 4),)], accuracy="fast"))
    gc.collect()
    assert quantized() is None
