"""What the table lacks and is written with what it has: delegated whole, and within a step of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from openneutron.passes.decompositions.sorting import top_values
from openneutron.pipeline import compile_model, quantize_model
from openneutron.run.program import load_program


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any, layer: nn.Module | None = None):
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs) if self.layer is None else self.function(self.layer, *inputs)


VOLUME = (1, 4, 5, 7, 6)
EXACT = {  # they only choose among their inputs
    "adaptive max 1d": (nn.AdaptiveMaxPool1d(3), (1, 4, 10)),
    "adaptive max 2d": (nn.AdaptiveMaxPool2d((3, 5)), (2, 4, 7, 7)),
    "adaptive max 2d, no batch": (nn.AdaptiveMaxPool2d((3, None)), (4, 7, 6)),
    "adaptive max 3d": (nn.AdaptiveMaxPool3d((2, 3, 4)), VOLUME),
    "max 3d": (nn.MaxPool3d(2), VOLUME),
    "max 3d, all at once": (
        nn.MaxPool3d(3, (1, 2, 2), padding=1, dilation=(1, 1, 2), ceil_mode=True),
        VOLUME,
    ),
    "max 3d, no batch": (nn.MaxPool3d((2, 1, 3)), VOLUME[1:]),
    "max along a dimension": (Call(lambda x: x.max(1)[0]), (2, 5, 3)),
    "min along a dimension": (Call(lambda x: x.min(-1, keepdim=True)[0]), (2, 5, 3)),
    "median of windows": (Call(lambda x: x.median(1)[0]), (100, 9)),
    "k-th smallest": (Call(lambda x: x.kthvalue(3, 0, keepdim=True)[0]), (7, 120)),
    "largest few": (Call(lambda x: x.topk(3, 1)[0]), (50, 10, 4)),
    "sorted": (Call(lambda x: x.sort(-1, descending=True)[0]), (200, 6)),
    "indices unread": (Call(lambda x: nn.functional.max_pool2d(x, 2, return_indices=True)[0]), (1, 3, 6, 6)),
}
ROUNDED = {
    "adaptive average 3d": (nn.AdaptiveAvgPool3d((2, 3, 4)), VOLUME),
    "average 3d": (nn.AvgPool3d(2), VOLUME),
    "average 3d, padded": (nn.AvgPool3d(3, 2, padding=1, ceil_mode=True), VOLUME),
    "average 3d, not counted": (nn.AvgPool3d(3, 2, padding=1, count_include_pad=False), VOLUME),
    "average, ceil beyond counted padding": (nn.AvgPool2d(3, 2, padding=1, ceil_mode=True), (1, 3, 8, 6)),
    "average, a window in the padding left out": (
        nn.AvgPool2d(2, 2, padding=1, ceil_mode=True),
        (1, 3, 5, 5),
    ),
    "average 1d, ceil beyond counted padding": (nn.AvgPool1d(3, 2, 1, ceil_mode=True), (1, 3, 8)),
    "conv 3d, groups": (lambda: nn.Conv3d(4, 6, 3, groups=2, padding=1), VOLUME),
    "conv 3d, depthwise": (
        lambda: nn.Conv3d(4, 8, (2, 3, 3), 2, groups=4, dilation=(2, 1, 1)),
        VOLUME,
    ),
    "conv 3d, nothing but padding": (lambda: nn.Conv3d(4, 3, 1, padding=1), VOLUME),
    "conv 3d, groups over nothing": (lambda: nn.Conv3d(4, 4, 2, padding=(2, 0, 1), groups=2), VOLUME),
    "conv 3d, same": (lambda: nn.Conv3d(4, 4, 2, padding="same", groups=2), VOLUME),
    "transposed 3d": (lambda: nn.ConvTranspose3d(4, 6, 3, stride=2, padding=1, output_padding=1), VOLUME),
    "transposed 3d, groups": (lambda: nn.ConvTranspose3d(4, 6, (1, 2, 2), stride=2, groups=2), VOLUME),
}


MOVES = {
    "aten.cat.default",
    "aten.unsqueeze_copy.default",
    "aten.squeeze_copy.dims",
    "aten.select_copy.int",
    "dim_order_ops._clone_dim_order.default",
}


# Where the kernel reads nothing but padding there is only the bias, which is smaller than the rest.
DIFFERENT = {"conv 3d, nothing but padding", "conv 3d, groups over nothing", "transposed 3d, groups"}


def run(
    module: nn.Module, *inputs: torch.Tensor, moved: bool = False
) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """The program, its outputs, and those of the quantized model.

    With `moved`, values may be moved in float: parts of an output that differ much in size, or a state.
    """
    quantized = quantize_model(module.eval(), [inputs])
    program = compile_model(quantized, inputs, verify=False)
    assert {r.op for r in program.rejected} <= (MOVES if moved else set())
    assert len(program.partitions) == 1
    outputs = quantized(*inputs)
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return program, load_program(program.pte).run(inputs), [value.numpy() for value in outputs]


@pytest.mark.parametrize("name", EXACT)
def test_what_only_chooses_is_equal(name):
    module, shape = EXACT[name]
    torch.manual_seed(0)
    _, (npu,), (cpu,) = run(module, torch.randn(shape))
    np.testing.assert_array_equal(npu, cpu)


@pytest.mark.parametrize("name", ROUNDED)
def test_what_rounds_is_within_a_step(name):
    made, shape = ROUNDED[name]
    torch.manual_seed(0)
    module = made if isinstance(made, nn.Module) else made()
    program, (npu,), (cpu,) = run(module, torch.randn(shape), moved=name in DIFFERENT)
    step = max(t.quant.scale[0] for t in program.graphs[0].outputs)  # parts of different size have their own
    assert np.abs(npu - cpu).max() <= 1.001 * step


@pytest.mark.parametrize(
    ("layer", "shape", "taps"),
    [
        (nn.AvgPool3d(2, padding=1, divisor_override=5), VOLUME, 8),
        (nn.AvgPool2d(3, 2, padding=1, divisor_override=5), (1, 3, 8, 8), 9),
        (nn.AvgPool2d(3, 2, ceil_mode=True, divisor_override=5), (1, 3, 8, 8), 9),
    ],
)
def test_an_average_with_its_own_divisor_is_a_product(layer, shape, taps):
    """The average is within a step of its own; the product makes that larger, and is rounded again."""
    torch.manual_seed(0)
    program, (npu,), (cpu,) = run(layer, torch.randn(shape))
    (step,), (own,) = (t.quant.scale for t in (program.graphs[0].inputs[0], program.graphs[0].outputs[0]))
    assert np.abs(npu - cpu).max() <= step * taps / 5 + own


SPECTRA = {
    "last dimension": (lambda x: torch.fft.rfft(x).abs(), (2, 64)),
    "another dimension": (lambda x: torch.fft.rfft(x, dim=1).abs(), (1, 64, 4)),
    "of another length": (lambda x: torch.fft.rfft(x, n=48, dim=-2, norm="ortho").abs(), (1, 64, 4)),
    "short time": (lambda x: torch.stft(x, 64, 32, center=False, return_complex=True).abs(), (1, 640)),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_magnitudes_of_spectra(name):
    """The transform stays on the CPU, in a form that ExecuTorch's kernel takes; what follows is delegated."""
    function, shape = SPECTRA[name]
    torch.manual_seed(0)
    inputs = (torch.randn(shape),)
    program = compile_model(Call(function), inputs, calibration=[inputs])
    assert program.partitions and not {"aten.abs.default", "aten.sqrt.default"} & {
        r.op for r in program.rejected
    }
    (got,), wanted = load_program(program.pte).run(inputs), function(*inputs).numpy()
    assert np.square(got - wanted).mean() < np.square(wanted).mean() / 1000


COMPUTED = {
    "a kernel that is an input": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1),
        (2, 4, 7, 6),
        (6, 4, 3, 3),
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4, dilation=2), (1, 4, 7, 6), (4, 1, 2, 3)),
    "one tap": (lambda x, w: F.conv2d(x, w, groups=2), (1, 4, 5, 5), (6, 2, 1, 1)),
    "along one dimension": (lambda x, w: F.conv1d(x, w, padding=2), (1, 4, 9), (3, 4, 5)),
    "computed of the input": (
        lambda x, w: F.conv2d(x, torch.tanh(w * x.mean((0, 2, 3))[None, :, None, None])),
        (1, 4, 6, 6),
        (6, 4, 3, 3),
    ),
    "a linear layer": (lambda x, w: F.linear(x, torch.tanh(w), w[:, 0]), (2, 3, 4), (5, 4)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_layer_with_computed_weights_is_a_product(name):
    function, *shapes = COMPUTED[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    program, (npu,), (cpu,) = run(Call(function), *inputs)
    step = program.graphs[0].outputs[0].quant.scale[0]
    assert np.abs(npu - cpu).max() <= 1.001 * step
    wanted = function(*inputs).numpy()
    assert np.square(npu - wanted).mean() < np.square(wanted).mean() / 500


def test_the_reason_for_a_kernel_of_too_many_taps_is_that_it_is_computed():
    inputs = torch.randn(1, 2, 12, 12), torch.randn(2, 2, 9, 9)
    program = compile_model(Call(lambda x, w: F.conv2d(x, w)), inputs, calibration=[inputs], verify=False)
    assert [r.reject.reason for r in program.rejected] == ["Weights must be constant"]


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_recurrent_cell_is_one_partition(cell, batch):
    torch.manual_seed(0)
    layer = cell(6, 5)
    if cell is nn.LSTMCell:
        module = Call(lambda own, x, h, c: own(x, (h, c)), layer)
        inputs = (torch.randn(*batch, 6), torch.randn(*batch, 5), torch.randn(*batch, 5))
    else:
        module, inputs = (
            Call(lambda own, x, h: own(x, h), layer),
            (torch.randn(*batch, 6), torch.randn(*batch, 5)),
        )
    _, npu, cpu = run(module, *inputs, moved=cell is nn.LSTMCell)  # its second state stays in float
    for a, b in zip(npu, cpu, strict=True):
        assert np.abs(a - b).max() < 0.03


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("size", "k"), [(1, 1), (2, 2), (7, 3), (8, 8), (50, 1), (50, 13), (100, 50), (300, 7)]
)
def test_a_sorting_network_sorts(size, k, largest):
    x = torch.randn(3, size, 2, generator=torch.Generator().manual_seed(size)).round(
        decimals=1
    )  # some are equal
    assert torch.equal(top_values(x, k, 1, largest)[0], torch.topk(x, k, 1, largest)[0])


@pytest.mark.parametrize("function", [lambda x: x.topk(5, 1)[0], lambda x: x.median(1)[0]])
def test_a_sort_that_takes_the_npu_longer_stays_on_the_cpu(function):
    inputs = (torch.randn(1, 500),)
    program = compile_model(Call(lambda x: torch.relu(function(x * 2))), inputs, calibration=[inputs])
    assert [r.op for r in program.rejected] == ["aten.topk.default"]
