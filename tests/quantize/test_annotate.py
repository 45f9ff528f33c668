"""What each intent of the operator table becomes: the specification of every edge and output."""

from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchao.quantization.pt2e import FakeQuantize
from torchao.quantization.pt2e.fake_quantize import FixedQParamsFakeQuantize
from torchao.quantization.pt2e.observer import FixedQParamsObserver, MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import (
    ComposableQuantizer,
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
)

from openneutron.fx import op_name
from openneutron.quantize.annotation.number_formats import FLOOR
from openneutron.quantize.annotation.observer import RangeObserver
from openneutron.quantize.quantizer import NeutronQuantizer

IMAGE = (1, 4, 6, 6)


class Function(nn.Module):
    """A module around a function of its inputs, with a constant to use."""

    def __init__(self, function, constant=None):
        super().__init__()
        self.function = function
        self.constant = constant

    def forward(self, *inputs):
        return self.function(*inputs, *([] if self.constant is None else [self.constant]))


def prepare(model, *shapes, **options):
    torch.manual_seed(0)
    inputs = tuple(torch.randn(shape) for shape in shapes)
    program = torch.export.export(model.eval(), inputs)
    to_prepared = prepare_qat_pt2e if options.get("is_qat") else prepare_pt2e
    prepared = to_prepared(program.module(check_guards=False), NeutronQuantizer(**options))
    prepared(*inputs)
    return prepared


def node(model, name):
    return next(n for n in model.graph.nodes if op_name(n) == name)


def observers_of(model, name):
    """The observers on the inputs of the first such node, and the one on its output, or None."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found = node(model, name)
    inputs = [modules[n.target] if n.op == "call_module" else None for n in found.all_input_nodes]
    outputs = [modules[n.target] for n in found.users if n.op == "call_module"]
    return inputs, outputs[0] if outputs else None


def all_observers(model):
    return [
        m for m in model.modules() if isinstance(m, RangeObserver | MinMaxObserver | FixedQParamsObserver)
    ]


def test_observed_inputs_and_output_have_parameters_of_their_own():
    inputs, output = observers_of(prepare(Function(lambda x, y: x + y), IMAGE, IMAGE), "aten.add.Tensor")
    assert len({id(o) for o in (*inputs, output)}) == 3
    for observer in (*inputs, output):
        assert isinstance(observer, RangeObserver)
        assert (observer.quant_min, observer.quant_max, observer.dtype) == (-128, 127, torch.int8)
        assert observer.eps == FLOOR


def test_weights_are_symmetric_and_the_bias_is_derived():
    model = prepare(nn.Conv2d(4, 3, 3), IMAGE)
    (source, weight, bias), output = observers_of(model, "aten.conv2d.default")
    assert isinstance(source, RangeObserver) and isinstance(output, RangeObserver)
    assert isinstance(weight, MinMaxObserver) and weight.qscheme == torch.per_tensor_symmetric
    assert (weight.quant_min, weight.quant_max) == (-127, 127)
    scale, zero = bias.calculate_qparams()
    assert scale == source.calculate_qparams()[0] * weight.calculate_qparams()[0]
    assert (zero.item(), zero.dtype, bias.dtype) == (0, torch.int64, torch.int32)


@pytest.mark.parametrize(
    ("layer", "name", "axis"),
    [
        (nn.Conv2d(4, 3, 3), "aten.conv2d.default", 0),
        (nn.ConvTranspose2d(4, 3, 3), "aten.conv_transpose2d.input", 1),
    ],
)
@pytest.mark.parametrize("is_qat", [False, True])
def test_weights_per_channel(layer, name, axis, is_qat):
    model = prepare(layer, IMAGE, per_channel=True, is_qat=is_qat)
    (_, weight, bias), _ = observers_of(model, name)
    assert isinstance(weight, FakeQuantize if is_qat else PerChannelMinMaxObserver)
    assert (weight.ch_axis, weight.calculate_qparams()[0].shape) == (axis, (3,))
    assert bias.calculate_qparams()[0].shape == (3,)


@pytest.mark.parametrize("is_qat", [False, True])
def test_fixed_output(is_qat):
    for function, name, expected in (
        (torch.sigmoid, "aten.sigmoid.default", (1 / 256, -128)),
        (torch.tanh, "aten.tanh.default", (1 / 128, 0)),
    ):
        _, output = observers_of(prepare(Function(function), IMAGE, is_qat=is_qat), name)
        assert isinstance(output, FixedQParamsFakeQuantize if is_qat else FixedQParamsObserver)
        assert tuple(v.item() for v in output.calculate_qparams()) == expected


class TestShared:
    @pytest.mark.parametrize(
        ("function", "name"),
        [
            (lambda x, y: torch.cat([x, y], 1), "aten.cat.default"),
            (torch.maximum, "aten.maximum.default"),
            (torch.minimum, "aten.minimum.default"),
        ],
    )
    def test_several_inputs_share_one_observer(self, function, name):
        inputs, output = observers_of(prepare(Function(function), IMAGE, IMAGE), name)
        assert len({id(o) for o in (*inputs, output)}) == 1

    def test_after_an_observed_operator(self):
        model = prepare(Function(lambda x, y: F.max_pool2d(x * y, 2).flatten(1)), IMAGE, IMAGE)
        assert len(all_observers(model)) == 3  # two inputs; product, pool and flatten have one

    def test_keeps_a_fixed_range(self):
        model = prepare(Function(lambda x: torch.sigmoid(x).flatten(1)), IMAGE)
        inputs, output = observers_of(model, "aten.flatten.using_ints")
        assert isinstance(output, FixedQParamsObserver) and inputs == [output]

    def test_same_fixed_range_on_all_inputs(self):
        model = prepare(Function(lambda x: torch.cat([torch.sigmoid(x), torch.sigmoid(x.mT)], 1)), (1, 4, 4))
        inputs, output = observers_of(model, "aten.cat.default")
        assert isinstance(output, FixedQParamsObserver)
        assert {tuple(v.item() for v in o.calculate_qparams()) for o in (*inputs, output)} == {
            (1 / 256, -128)
        }

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_a_fixed_range_is_not_imposed_on_the_others(self, order):
        def function(x):
            parts = [torch.sigmoid(x), x * 3]
            return torch.cat([parts[i] for i in order], 1)

        model = prepare(Function(function), IMAGE)
        inputs, output = observers_of(model, "aten.cat.default")
        assert isinstance(output, RangeObserver) and len({id(o) for o in (*inputs, output)}) == 1
        assert isinstance(observers_of(model, "aten.sigmoid.default")[1], FixedQParamsObserver)

    def test_the_same_tensor_twice(self):
        model = prepare(Function(lambda x: torch.cat([x, x], 1) * torch.cat([x * 2, x], 1)), IMAGE)
        assert len({id(o) for o in observers_of(model, "aten.cat.default")[0]}) == 1

    def test_inputs_and_constants(self):
        model = prepare(Function(lambda x, c: torch.cat([c, x], 1), nn.Parameter(torch.randn(IMAGE))), IMAGE)
        inputs, output = observers_of(model, "aten.cat.default")
        assert len({id(o) for o in (*inputs, output)}) == 1

    def test_long_chains_with_branches(self):
        def function(x, y):
            a = torch.cat([x, F.relu(y)], 1)
            b = torch.maximum(a, torch.cat([y, x], 1)).transpose(2, 3)
            return torch.cat([a, b, a[:, :1]], 1).flatten(1), torch.minimum(a, b)

        model = prepare(Function(function), IMAGE, IMAGE)
        modules = dict(model.named_modules(remove_duplicate=False))
        shared = [
            n
            for n in model.graph.nodes
            if op_name(n) in ("aten.cat.default", "aten.maximum.default", "aten.minimum.default")
        ]
        groups = [{id(modules[i.target]) for i in n.all_input_nodes} for n in shared]
        assert all(len(group) == 1 for group in groups)


class TestFusedActivation:
    BEFORE: ClassVar = {
        "aten.conv2d.default": nn.Conv2d(4, 4, 3),
        "aten.linear.default": nn.Linear(6, 6),
        "aten.add.Tensor": Function(lambda x: x + x.mT),
        "aten.mul.Tensor": Function(lambda x: x * x.mT),
    }

    @pytest.mark.parametrize("name", BEFORE)
    @pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.Hardtanh()])
    def test_no_observer_before_what_is_fused(self, name, activation):
        model = prepare(nn.Sequential(self.BEFORE[name], activation), IMAGE)
        found = node(model, name)
        assert [op_name(user) for user in found.users] in (
            [["aten.relu.default"]]
            if isinstance(activation, nn.ReLU)
            else [["aten.hardtanh.default"], ["aten.relu6.default"]]
        )
        (user,) = found.users
        assert [n.op for n in user.users] == ["call_module"]

    @pytest.mark.parametrize("activation", [nn.Hardswish(), nn.Sigmoid(), nn.Hardtanh(-2, 2), nn.LeakyReLU()])
    def test_others_are_observed_before(self, activation):
        model = prepare(nn.Sequential(nn.Conv2d(4, 4, 3), activation), IMAGE)
        assert [n.op for n in node(model, "aten.conv2d.default").users] == ["call_module"]

    def test_a_second_reader_prevents_fusion(self):
        conv = nn.Conv2d(4, 4, 3)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = conv

            def forward(self, x):
                y = self.conv(x)
                return F.relu(y) + y

        model = prepare(Net(), IMAGE)
        assert [n.op for n in node(model, "aten.conv2d.default").users] == ["call_module"]


def test_integers_are_never_observed():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 4)
            self.linear = nn.Linear(4, 4)

        def forward(self, indices, x):
            return self.linear(self.embedding(indices)) + x, indices + 1

    inputs = (torch.tensor([[1, 2]]), torch.randn(1, 2, 4))
    model = prepare_pt2e(
        torch.export.export(Net().eval(), inputs).module(check_guards=False), NeutronQuantizer()
    )
    model(*inputs)
    for observed in (n for n in model.graph.nodes if n.op == "call_module"):
        assert observed.args[0].meta["val"].is_floating_point()
    # No float island: what the table does not know is quantized where it is read.
    assert all(o is not None for o in observers_of(model, "aten.linear.default")[0])


def test_constants_are_observed_like_activations():
    model = prepare(
        Function(lambda x, c: x * c, nn.Parameter(torch.linspace(-1, 3, 4).reshape(4, 1, 1))), IMAGE
    )
    inputs, _ = observers_of(model, "aten.mul.Tensor")
    assert isinstance(inputs[1], MinMaxObserver) and inputs[1].qscheme == torch.per_tensor_affine


class _OnlyAdd(Quantizer):
    """Another quantizer, which wants additions in its own way."""

    spec = QuantizationSpec(
        dtype=torch.int8, quant_min=-64, quant_max=63, qscheme=torch.per_tensor_affine,
        observer_or_fake_quant_ctr=RangeObserver,
    )  # fmt: skip

    def annotate(self, model):
        for n in model.graph.nodes:
            if op_name(n) == "aten.add.Tensor":
                inputs = dict.fromkeys(n.all_input_nodes, self.spec)
                n.meta["quantization_annotation"] = QuantizationAnnotation(inputs, self.spec, _annotated=True)
        return model

    def validate(self, model):
        pass


def test_composes_with_another_quantizer():
    inputs = (torch.randn(IMAGE), torch.randn(IMAGE))
    program = torch.export.export(Function(lambda x, y: F.relu(x + y) * x), inputs)
    quantizer = ComposableQuantizer([_OnlyAdd(), NeutronQuantizer()])
    model = prepare_pt2e(program.module(check_guards=False), quantizer)
    model(*inputs)
    ranges = {
        name: [o.quant_min for o in observers_of(model, name)[0]]
        for name in ("aten.add.Tensor", "aten.mul.Tensor")
    }
    assert ranges == {"aten.add.Tensor": [-64, -64], "aten.mul.Tensor": [-128, -128]}
    torch.testing.assert_close(
        convert_pt2e(model)(*inputs), F.relu(inputs[0] + inputs[1]) * inputs[0], atol=0.2, rtol=0
    )


def test_a_bias_shared_by_two_layers_has_two_scales():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

        def forward(self, x):
            return F.linear(F.linear(x, self.weight, self.bias), self.weight, self.bias)

    model = prepare(Net(), (2, 4))
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = [n for n in model.graph.nodes if op_name(n) == "aten.linear.default"]
    scales = [modules[n.args[2].target].calculate_qparams()[0].item() for n in layers]
    assert scales[0] != scales[1]
    assert layers[0].args[1] is layers[1].args[1]  # the weights are one tensor, quantized once
