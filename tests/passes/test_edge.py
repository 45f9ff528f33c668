"""The Edge passes, and programs that take and return int8."""

import pytest
import torch
from executorch.exir import to_edge
from torch import nn

from openneutron.fx import op_name
from openneutron.passes.cpu_part.weights import store_transposed
from openneutron.passes.edge import DEQUANTIZE, QUANTIZE, remove_quant_io, run_edge_passes
from openneutron.quantize.loop import calibrate_and_quantize
from openneutron.quantize.quantizer import NeutronQuantizer

qd = torch.ops.quantized_decomposed
PARAMETERS = (0.1, 3, -128, 127, torch.int8)


def edge(model, *inputs):
    return to_edge(torch.export.export(model, inputs))


def count(manager, name):
    return [op_name(n) for n in manager.exported_program().graph.nodes].count(name)


class Requantize(nn.Module):
    def __init__(self, second):
        super().__init__()
        self.second = second

    def forward(self, x):
        x = qd.dequantize_per_tensor(qd.quantize_per_tensor(x, *PARAMETERS), *PARAMETERS)
        return qd.dequantize_per_tensor(qd.quantize_per_tensor(x, *self.second), *self.second)


@pytest.mark.parametrize(("second", "left"), [(PARAMETERS, 1), ((0.2, *PARAMETERS[1:]), 2)])
def test_only_equal_parameters_are_redundant(second, left):
    x = torch.linspace(-20, 20, 400)
    manager = edge(Requantize(second), x)
    expected = manager.exported_program().module()(x)
    after = manager.transform([run_edge_passes])
    assert count(after, QUANTIZE) == left
    assert torch.equal(after.exported_program().module()(x), expected)


def test_equal_quantize_steps_are_merged():
    class Twice(nn.Module):
        def forward(self, x):
            a, b = (qd.quantize_per_tensor(x, *PARAMETERS) for _ in range(2))
            return qd.dequantize_per_tensor(a, *PARAMETERS) * qd.dequantize_per_tensor(b, *PARAMETERS)

    assert count(edge(Twice(), torch.randn(4)).transform([run_edge_passes]), QUANTIZE) == 1


def test_int8_in_and_out():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )
    x = torch.randn(1, 3, 8, 8)
    quantized = calibrate_and_quantize(torch.export.export(model.eval(), (x,)), [(x,)], NeutronQuantizer())
    manager = edge(quantized, x)
    expected = manager.exported_program().module()(x)
    manager = remove_quant_io(manager)
    steps = {
        name: manager._config_methods[name]
        for name in ("input0_scale", "input0_zp", "output0_scale", "output0_zp")
    }
    integers = torch.clamp(torch.round(x / steps["input0_scale"]) + steps["input0_zp"], -128, 127).to(
        torch.int8
    )
    result = manager.exported_program().module()(integers)
    assert result.dtype == torch.int8
    assert torch.equal((result.int() - steps["output0_zp"]) * torch.tensor(steps["output0_scale"]), expected)


def test_inputs_that_are_not_quantized_stay():
    class Net(nn.Module):
        def forward(self, x, index):
            return torch.relu(x).index_select(1, index)

    inputs = (torch.randn(1, 4), torch.tensor([0, 2]))
    quantized = calibrate_and_quantize(torch.export.export(Net(), inputs), [inputs], NeutronQuantizer())
    manager = remove_quant_io(edge(quantized, *inputs))
    kinds = [n.meta["val"].dtype for n in manager.exported_program().graph.nodes if n.op == "placeholder"]
    assert kinds == [torch.int8, torch.int64]
    assert count(manager, DEQUANTIZE) >= 1


class Tied(nn.Module):
    """A table that is looked up, and the weights of a product; a linear layer; weights that are returned."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(6, 4), nn.Linear(4, 3)
        self.returned = nn.Parameter(torch.randn(4, 2))

    def forward(self, i):
        x = self.table(i)
        return x @ self.table.weight.t(), self.linear(x), self.returned.t()


def test_weights_that_only_their_transpose_reads_are_stored_so():
    model, places = Tied().eval(), torch.arange(5)
    manager = edge(model, places)
    expected, before = model(places), {k: v.clone() for k, v in model.state_dict().items()}
    exported = manager.exported_program()
    given = exported.state_dict
    store_transposed(exported)
    assert count(manager, "aten.permute_copy.default") == 2  # of the table and of what is returned
    assert exported.state_dict["linear.weight"].shape == (4, 3)
    for found, wanted in zip(exported.module()(places), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert all(torch.equal(v, before[k]) for k, v in {**model.state_dict(), **given}.items())
