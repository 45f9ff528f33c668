"""The ATen passes: what they ensure, and that a model computes the same afterwards."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from openneutron import ops
from openneutron.fx import op_name
from openneutron.passes import ATEN_PASSES, PTQ, QAT, Pass, run_passes
from openneutron.passes.base import check_order
from openneutron.passes.decompositions.decompose import DECOMPOSITIONS

aten = torch.ops.aten


class Call(nn.Module):
    """A function of a module with a few constants, and its inputs."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(1)
        self.function = function
        self.matrix, self.row = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
        self.table = nn.Buffer(torch.rand(4) + 1)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def transform(model, *inputs, mode=PTQ):
    program = torch.export.export(copy.deepcopy(model).eval(), inputs)
    return run_passes(program.module(check_guards=False), ATEN_PASSES, mode)


def names(model):
    return [op_name(n) for n in model.graph.nodes if op_name(n)]


def assert_same(model, *inputs, mode=PTQ):
    """The transformed model gives what the model gives, and holds nothing that the table does not have."""
    transformed = transform(model, *inputs, mode=mode)
    torch.testing.assert_close(transformed(*inputs), model.eval()(*inputs), atol=1e-5, rtol=1e-5)
    assert [n for n in names(transformed) if ops.find(n) is None] == []
    for node in transformed.graph.nodes:
        if op_name(node):
            assert "val" in node.meta and node.meta["val"].shape is not None
    return transformed


X = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
FUNCTIONS = {
    "split": lambda m, x: torch.cat([p * (i + 1) for i, p in enumerate(x.split(3, 1))], 1),
    "split_with_sizes": lambda m, x: torch.cat(x.split([1, 3], 2)[::-1], 2),
    "chunk": lambda m, x: x.chunk(2, -1)[1] * 2,
    "chunk that does not divide": lambda m, x: torch.cat(x.chunk(3, 1)[::-1], 1),
    "unbind": lambda m, x: x.unbind(1)[2] + 1,
    "stack": lambda m, x: torch.stack([x, x * 2], -1),
    "matmul 2d": lambda m, x: x[0] @ x[1],
    "matmul 1d": lambda m, x: (x[0] @ x[1, 0]) + (x[0, 1] @ x[1]),
    "matmul 4d": lambda m, x: x.reshape(2, 1, 4, 4) @ x.reshape(1, 2, 4, 4),
    "matmul broadcast": lambda m, x: x[0] @ x,
    "matmul constant": lambda m, x: x @ m.matrix + m.row,
    "einsum": lambda m, x: torch.einsum("bij,bkj->bik", x, x),
    "einsum constant": lambda m, x: torch.einsum("bij,jk->bik", x, m.matrix),
    "var": lambda m, x: x.var(1) + x.var(unbiased=False) + x.std(2),
    "max": lambda m, x: x.max() + x.min(),
    "roll": lambda m, x: x.roll((1, -1), (1, 2)),
    "square": lambda m, x: x.square(),
    "glu": lambda m, x: F.glu(x, 1),
    "addcmul": lambda m, x: torch.addcmul(x, x, x.mT, value=0.5),
    "baddbmm": lambda m, x: torch.baddbmm(x, x, x, beta=0.5, alpha=2),
    "views": lambda m, x: x.mT.movedim(0, 1).swapaxes(1, 2).unflatten(1, (2, 2)).narrow(1, 1, 1),
    "rsub": lambda m, x: 2 - x,
    "scalars": lambda m, x: (x + 1) * 3 - 0.5,
    "alpha": lambda m, x: torch.add(torch.sub(x, x.mT, alpha=2), 3, alpha=0.5),
    "division": lambda m, x: x / 3 + x / m.table,
    "in place": lambda m, x: (x * 2).relu_().add_(1).mul_(x).clamp_(0, 1),
    "no-ops": lambda m, x: F.dropout(x.contiguous().detach().clone().to(torch.float32), training=False) + 1,
    "new constants": lambda m, x: x + torch.tensor([1.0, 2, 3, 4]) * torch.ones(4, 1),
    "constants": lambda m, x: x * (m.matrix.exp() + 1) + m.row.reshape(4, 1),
    "attention": lambda m, x: F.scaled_dot_product_attention(x, x, x),
    "attention 4d": lambda m, x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 4, 4)] * 3, scale=0.3),
    "causal attention": lambda m, x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "masked attention": lambda m, x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(4) > 0),
    "layer_norm": lambda m, x: F.layer_norm(x, (4,), m.row, m.row),
    "layer_norm 2d": lambda m, x: F.layer_norm(x, (4, 4)),
    "rms_norm": lambda m, x: F.rms_norm(x, (4,), m.row),
    "group_norm": lambda m, x: F.group_norm(x, 2, m.row, m.row),
    "instance_norm": lambda m, x: F.instance_norm(x, weight=m.row),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_results_in_operators_of_the_table(name):
    assert_same(Call(FUNCTIONS[name]), X)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel", [2, 3, (4, 1)])
def test_padding_by_name_before_a_norm(padding, kernel):
    """An even window pads one more at the end, which no convolution says in numbers."""
    model = nn.Sequential(nn.Conv2d(4, 3, kernel, padding=padding), nn.BatchNorm2d(3))
    assert_same(model, torch.randn(1, 4, 5, 6), mode=QAT)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_recurrent_layers_are_unrolled(kind, layers, bidirectional):
    torch.manual_seed(0)
    layer = getattr(nn, kind)(
        4, 3, layers, bidirectional=bidirectional, batch_first=layers == 1, bias=layers == 1
    )
    assert_same(layer, torch.randn(2, 4, 4))


@pytest.mark.parametrize("bias", [False, True])
def test_lstm_with_a_projected_state(bias):
    torch.manual_seed(0)
    assert_same(nn.LSTM(4, 6, 2, proj_size=3, bias=bias, bidirectional=bias), torch.randn(3, 2, 4))


def test_recurrent_layer_with_a_given_state():
    assert_same(nn.GRU(4, 3), torch.randn(2, 1, 4), torch.randn(1, 1, 3))


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layer(norm_first):
    torch.manual_seed(0)
    assert_same(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first), torch.randn(1, 5, 8)
    )


def test_multi_head_attention():
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    assert_same(Call(lambda m, x: attention(x, x, x, need_weights=False)[0]), torch.randn(1, 5, 8))


@pytest.mark.parametrize("mode", [PTQ, QAT])
@pytest.mark.parametrize(("channels", "out", "groups", "padding"), [(4, 6, 2, 1), (8, 4, 4, "same")])
def test_group_convolutions_stay_whole(mode, channels, out, groups, padding):
    model = nn.Conv2d(channels, out, 3, groups=groups, padding=padding)
    transformed = assert_same(model, torch.randn(1, channels, 6, 6), mode=mode)
    assert sum(n.startswith("aten.conv2d") for n in names(transformed)) == 1


@pytest.mark.parametrize("mode", [PTQ, QAT])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(3, 1, 1, 1), ((1, 3, 3), 1, 0, 1), ((2, 3, 1), (2, 1, 1), (1, 0, 0), 1), (2, 1, (2, 1, 0), (2, 1, 1))],
)
def test_volume_convolutions_are_convolutions_of_slices(mode, kernel, stride, padding, dilation):
    model = nn.Conv3d(2, 3, kernel, stride, padding, dilation)
    transformed = assert_same(model, torch.randn(1, 2, 5, 6, 7), mode=mode)
    depth = model(torch.randn(1, 2, 5, 6, 7)).shape[2]
    assert names(transformed).count("aten.conv2d.default") == depth
    assert "aten.conv3d.default" not in names(transformed)


def test_depthwise_convolutions_are_not_split():
    transformed = assert_same(nn.Conv2d(4, 8, 3, groups=4), torch.randn(1, 4, 6, 6))
    assert names(transformed) == ["aten.conv2d.default"]


def test_a_product_and_a_sum_with_constants_are_a_linear_layer():
    transformed = assert_same(Call(lambda m, x: x @ m.matrix + m.row), X)
    assert names(transformed) == ["aten.linear.default"]


def test_a_larger_constant_is_no_bias():
    transformed = assert_same(Call(lambda m, x: x @ m.matrix + m.row.reshape(4, 1)), X)
    assert names(transformed) == ["aten.linear.default", "aten.add.Tensor"]


def test_activation_moves_before_a_concatenation_of_convolutions():
    a, b = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 3, 1)
    both = Call(lambda m, x: F.relu(torch.cat([a(x), b(x)], 1)))
    conv, relu = "aten.conv2d.default", "aten.relu.default"
    assert names(assert_same(both, torch.randn(1, 4, 3, 3))) == [conv, conv, relu, relu, "aten.cat.default"]


def test_activation_stays_after_a_concatenation_of_anything_else():
    conv = nn.Conv2d(4, 2, 1)
    one = Call(lambda m, x: F.relu(torch.cat([conv(x), x], 1)))
    assert names(assert_same(one, torch.randn(1, 4, 3, 3)))[-1] == "aten.relu.default"


def test_in_place_changes_reach_later_readers():
    def function(m, x):
        y = x * 2
        y.relu_()
        return y + x

    assert not [n for n in names(assert_same(Call(function), X)) if n.endswith("_.default")]


def _set(y, place, value):
    y[place] = value
    return y


WRITES = {
    "a column": lambda m, x: _set(x * 2, (slice(None), 0), 1.0),
    "every other column": lambda m, x: _set(x * 2, (slice(None), slice(0, None, 2)), x[:, 1:3]),
    "a list of columns": lambda m, x: _set(x * 2, (slice(None), [3, 1]), x[:, :2]),
    "where a mask says": lambda m, x: _set(x * 2, x > 0, 0.5),
    "a row from another": lambda m, x: (lambda y: _set(y, 1, y[0] + 1))(x * 2),
    "all of it": lambda m, x: _set(x * 2, ..., 3.0),
    "a diagonal": lambda m, x: (x * 2).fill_diagonal_(0.5),
    "scattered": lambda m, x: (x * 2).scatter_(1, torch.tensor([[0, 3]] * 4), x[:, 2:]),
}


@pytest.mark.parametrize("name", list(WRITES))
def test_a_write_is_a_new_tensor(name):
    made = names(assert_same(Call(WRITES[name]), X[0]))
    assert not [n for n in made if n.endswith(("_.default", "_.Tensor", "_.Scalar", "scatter.default"))]


def test_a_write_through_a_view_reaches_all_views():
    def function(m, x):
        y = x * 2
        row, rows = y[:, 0], y.view(2, 8)
        first, _ = y.chunk(2, 1)
        row.add_(1)
        y.t().narrow(0, 1, 2).mul_(3)
        rows[1, 2:4] = row[:2]
        z = y.reshape(16)
        z[5:].relu_()
        return y, row, rows, first, z, y.diagonal()

    assert_same(Call(function), X[0])


def test_a_copy_is_no_view():
    def function(m, x):
        y = x * 2
        copied, same = y.t().reshape(-1), F.dropout(y, 0.5, False)
        same.add_(1)  # in evaluation a dropout gives back its input
        return y, copied

    assert_same(Call(function), X[0])


def test_trained_parameters_stay_parameters():
    transformed = transform(Call(lambda m, x: x * (m.matrix * 2)), X, mode=QAT)
    assert names(transformed) == ["aten.mul.Tensor", "aten.mul.Tensor"]
    transformed(X).sum().backward()
    assert any(p.grad is not None for p in transformed.parameters())


def test_dropout_stays_in_training():
    program = torch.export.export(nn.Dropout().train(), (X,))
    assert names(run_passes(program.module(check_guards=False), ATEN_PASSES, QAT)) == ["aten.dropout.default"]


def test_provenance_is_kept():
    transformed = transform(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), X)
    assert all("nn_module_stack" in n.meta for n in transformed.graph.nodes if op_name(n))


def test_no_decomposition_hides_an_entry_of_the_table():
    # Of a max pool whose indices nobody reads only the values are left; quantized programs have both forms.
    hidden = {name for name in DECOMPOSITIONS if ops.find(name) is not None}
    assert hidden == {"aten.max_pool2d_with_indices.default"}


def test_passes_say_what_they_need():
    check_order(ATEN_PASSES)
    with pytest.raises(AssertionError, match="B must run after A"):
        check_order((Pass("B", "", bool, requires=("A",)), Pass("A", "", bool)))


class _Standardized(nn.Module):
    """A normed convolution whose weights are computed from parameters, and one whose weights are buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bias = nn.Conv2d(3, 8, 3), nn.Parameter(torch.ones(1))
        self.fixed = nn.Buffer(torch.randn(4, 8, 1, 1))
        self.first, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(4)

    def forward(self, x):
        weight = self.conv.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True)
        x = torch.relu(self.first(F.conv2d(x, weight, self.bias.expand(8))))
        return self.second(F.conv2d(x, self.fixed))


def test_a_norm_is_folded_into_weights_that_are_no_parameters():
    from openneutron.pipeline import quantize_model

    torch.manual_seed(0)
    model, x = _Standardized().eval(), torch.randn(1, 3, 8, 8)
    quantized = quantize_model(model, [(x,)], accuracy="fast")
    assert not [n for n in names(quantized) if "batch_norm" in n]
    wanted = model(x)
    assert (quantized(x) - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_reshapes_that_lead_back_are_dropped():
    model = Call(lambda m, x: x.unsqueeze(1).flatten(0, 1).reshape(2, 1, 4, 4).squeeze(1) * 2)
    assert names(transform(model, X)) == ["aten.mul.Tensor"]
    kept = Call(lambda m, x: (x.reshape(8, 4).transpose(0, 1), x.reshape(8, 4).reshape(2, 4, 4) * 2))
    assert "aten.reshape.default" in names(transform(kept, X))
