"""Every operator that ExecuTorch's NXP quantizer annotates is quantized here too, in place or not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from openneutron.fx import op_name
from openneutron.quantize.quantizer import NeutronQuantizer

IMAGE = (1, 4, 8, 8)
CASES = {
    "abs": torch.abs,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d(2),
    "add.Tensor": lambda x: x + x.mT,
    "addmm": lambda x: torch.addmm(torch.ones(8), x[0, 0], torch.eye(8)),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(1),
    "avg_pool1d": lambda x: F.avg_pool1d(x[0], 2),
    "avg_pool2d": nn.AvgPool2d(2),
    "batch_norm": nn.BatchNorm2d(4),
    "bmm": lambda x: torch.bmm(x[0], x[0]),
    "cat": lambda x: torch.cat([x, x.mT], 1),
    "clamp": lambda x: x.clamp(0, 1),
    "conv1d": lambda x: F.conv1d(x[0], torch.ones(3, 8, 1)),
    "conv2d": nn.Conv2d(4, 5, 3),
    "conv2d.padding": nn.Conv2d(4, 5, 3, padding="same"),
    "conv_transpose2d": nn.ConvTranspose2d(4, 5, 3),
    "dropout": nn.Sequential(nn.Dropout(), nn.ReLU()),
    "exp": torch.exp,
    "flatten": nn.Flatten(),
    "hardswish": nn.Hardswish(),
    "hardswish_": nn.Hardswish(inplace=True),
    "hardtanh": nn.Hardtanh(),
    "hardtanh_": nn.Hardtanh(inplace=True),
    "leaky_relu": nn.LeakyReLU(),
    "leaky_relu_": nn.LeakyReLU(inplace=True),
    "linear": nn.Linear(8, 3),
    "log": lambda x: torch.log(F.max_pool2d(x.abs(), 2)),
    "maximum": lambda x: torch.maximum(x, x.mT),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 2),
    "max_pool2d": nn.MaxPool2d(2),
    "mean.dim": lambda x: x.mean([2, 3]),
    "minimum": lambda x: torch.minimum(x, x.mT),
    "mm": lambda x: torch.mm(x[0, 0], x[0, 1]),
    "mul.Tensor": lambda x: x * x.mT,
    "neg": torch.neg,
    "pad": lambda x: F.pad(x, (1, 1)),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "prelu": nn.PReLU(),
    "relu": nn.ReLU(),
    "relu_": nn.ReLU(inplace=True),
    "reshape": lambda x: x.reshape(4, 64),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "sigmoid": nn.Sigmoid(),
    "slice": lambda x: x[:, 1:3],
    "softmax": nn.Softmax(1),
    "squeeze": lambda x: x.squeeze(),
    "squeeze.dim": lambda x: x.squeeze(0),
    "squeeze.dims": lambda x: x.amax((0, 1), keepdim=True).squeeze((0, 1)),
    "sub.Tensor": lambda x: x - x.mT,
    "sum": lambda x: x.sum(),
    "sum.dim_IntList": lambda x: x.sum([2, 3]),
    "tanh": nn.Tanh(),
    "tanh_": lambda x: F.max_pool2d(x, 2).tanh_(),
    "transpose.int": lambda x: x.transpose(1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "upsample_bilinear2d": nn.UpsamplingBilinear2d(scale_factor=2),
    "upsample_nearest2d": nn.UpsamplingNearest2d(scale_factor=2),
    "view": lambda x: x.view(4, 64),
}


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", CASES)
def test_quantized(name):
    torch.manual_seed(0)
    x = torch.randn(IMAGE)
    program = torch.export.export(Call(CASES[name]).eval(), (x,))
    prepared = prepare_pt2e(program.module(check_guards=False), NeutronQuantizer())
    expected = prepared(x)
    quantized = convert_pt2e(prepared)
    compute = [n for n in quantized.graph.nodes if op_name(n).startswith("aten.")]
    # An activation joins what it follows; a root joins what it takes the root of: no 8 bits hold that.
    joined = ("aten.relu.default", "aten.rsqrt.default", "aten.add.Tensor")
    fused = [n for n in compute if op_name(n) in joined and n.args[0] in compute]
    assert compute, "nothing is left of it"
    for node in compute:
        if node not in fused:
            inputs = [node.args[0]] if op_name(node) == "aten.batch_norm.default" else node.all_input_nodes
            assert all("dequantize" in str(n.target) for n in inputs), node
        assert all("quantize_per_tensor" in str(n.target) or n in fused for n in node.users), node
    torch.testing.assert_close(
        quantized(x), expected, atol=0.03 * max(1, expected.abs().max().item()), rtol=0
    )
