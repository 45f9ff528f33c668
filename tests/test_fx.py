"""Helpers on torch.fx: the same answers for ATen and Edge nodes."""

import pytest
import torch
from executorch.exir import to_edge

from openneutron import compile_model
from openneutron.fx import bind_args, is_float, op_name, rename_reserved


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, x, index):
        return torch.nn.functional.relu(self.conv(x)).index_select(1, index)


@pytest.fixture(scope="module")
def program():
    return torch.export.export(Net().eval(), (torch.randn(1, 3, 8, 8), torch.tensor([0, 2])))


def find(graph, name):
    return next(node for node in graph.nodes if op_name(node) == name)


def test_op_name_is_the_same_in_both_dialects(program):
    aten = {op_name(n) for n in program.graph.nodes}
    edge = {op_name(n) for n in to_edge(program).exported_program().graph.nodes}
    assert {"", "aten.conv2d.default", "aten.relu.default", "aten.index_select.default"} == aten
    assert {"", "aten.convolution.default", "aten.relu.default", "aten.index_select.default"} == edge


def test_bind_args_gives_names_and_defaults(program):
    args = bind_args(find(program.graph, "aten.conv2d.default"))
    assert list(args) == ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    assert (args["stride"], args["padding"], args["groups"]) == ([2, 2], [0, 0], 1)


def test_bind_args_of_an_edge_node(program):
    args = bind_args(find(to_edge(program).exported_program().graph, "aten.convolution.default"))
    assert (args["transposed"], args["output_padding"]) == (False, [0, 0])


def test_only_float_tensors_are_float(program):
    assert [is_float(n) for n in program.graph.nodes if n.op == "placeholder"] == [True, True, True, False]


@pytest.mark.parametrize("name", ["graph", "code", "meta", "self", "class", 'a"b', "a b", "_in_spec", "to"])
def test_parameters_that_have_the_name_of_something_else(name):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self._buffers[name] = torch.randn(4)  # as `register_buffer`, which forbids some of them

        def forward(self, x):
            return self.layer(x) * self._buffers[name]

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.graph = Named(), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.graph(self.part(x))

    inputs = (torch.randn(2, 4),)
    for model in (Named(), Whole()):
        program = compile_model(model.eval(), inputs, calibration=[inputs])
        assert program.verification is not None and not program.verification.skipped
    exported = torch.export.export(Named().eval(), inputs)
    compile_model(exported, inputs, calibration=[inputs], verify=False)


def test_ordinary_names_stay(program):
    assert rename_reserved(program) is program
