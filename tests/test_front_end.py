"""What models from outside bring: each is taken as it is, or stays on the CPU with the reason for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from openneutron import NeutronQuantizer
from openneutron.diagnostics import OpenNeutronError
from openneutron.fx import op_name
from openneutron.inputs.samples import load_samples
from openneutron.package.program import CompiledProgram
from openneutron.passes.canonical.constants import fold_constants
from openneutron.pipeline import compile_model, prepare_qat, quantize_model
from openneutron.run.program import load_program
from openneutron.tensors import is_plain, plain

INF, NAN = float("inf"), float("nan")
RECIPES = ("neutron", "imxrt700")


class Function(nn.Module):
    """A function of inputs, which may use the layers it is given."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*self.layers, *inputs)


def build(
    function: Any, *inputs: torch.Tensor, layers: tuple[nn.Module, ...] = (), **options: Any
) -> CompiledProgram:
    """Quantize, compile and verify."""
    torch.manual_seed(0)
    module = function if isinstance(function, nn.Module) else Function(function, *layers)
    return compile_model(module.eval(), inputs, calibration=[inputs], **options)


def assert_delegated(program: CompiledProgram) -> None:
    assert [entry.as_dict() for entry in program.rejected] == []
    assert len(program.partitions) == 1


def reasons(program: CompiledProgram) -> list[tuple[str, str, str]]:
    return [(entry.op, entry.reject.code, entry.reject.reason) for entry in program.rejected]


# ----------------------------------------------------------------------------------------------------
# Layers without a batch, biases of any shape


@pytest.mark.parametrize("recipe", RECIPES)
def test_layers_without_a_batch_dimension(recipe: str) -> None:
    images = (
        nn.Conv2d(4, 5, 3, 2),
        nn.ConvTranspose2d(4, 3, 3, 2),
        nn.Conv2d(4, 4, 3, padding="same", groups=4),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1)),
        nn.AvgPool2d(2),
    )
    lines = (
        nn.Conv1d(8, 6, 3, padding=1),
        nn.ConvTranspose1d(8, 3, 3, 2),
        nn.Conv1d(8, 8, 3, padding="same"),
    )

    def forward(*values: Any) -> tuple[torch.Tensor, ...]:
        *layers, x, y = values
        return tuple(layer(x if layer in images else y) for layer in layers)

    inputs = torch.randn(4, 7, 6), torch.randn(8, 12)
    assert_delegated(build(forward, *inputs, layers=(*images, *lines), recipe=recipe))


BIASES = ((3, 7), (1,), (3, 1), (7,), (1, 7), (1, 1), ())


def test_biases_of_every_shape() -> None:
    torch.manual_seed(0)
    weight, biases = torch.randn(5, 7), [torch.randn(shape) for shape in BIASES]

    def forward(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        constant = [torch.addmm(bias, x, weight) for bias in biases]
        given = [
            torch.addmm(b, x, y),
            torch.addmm(b, x, weight, beta=0.5, alpha=2),
            torch.baddbmm(b, x[None], y[None]),
        ]
        linear = [F.linear(x, weight.t(), b), F.linear(x, weight.t(), biases[1])]
        return (*constant, *given, *linear)

    assert_delegated(build(forward, torch.randn(3, 5), torch.randn(5, 7), torch.randn(7)))


# ----------------------------------------------------------------------------------------------------
# Calls that do nothing

NO_OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "permute": lambda x: x.permute(0, 1, 2),
    "transpose": lambda x: x.transpose(1, 1),
    "view": lambda x: x.view(2, 3, 4),
    "expand": lambda x: x.expand(2, 3, 4),
    "slice": lambda x: x[:, :, 0:4],
    "cat": lambda x: torch.cat([x]),
    "pad": lambda x: F.pad(x, (0, 0)),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "times one": lambda x: x * 1,
    "plus zero": lambda x: x + 0,
    "over one": lambda x: x / 1,
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "flatten": lambda x: x.flatten(2),
    "squeeze": lambda x: x.squeeze(0),
    "repeat": lambda x: x.repeat(1, 1, 1),
    "nothing": lambda x: x,
}


def test_no_ops_among_other_outputs() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sigmoid(x)
        return (y, *(f(x) for f in NO_OPS.values()), *(f(y) for f in NO_OPS.values()), y)

    program = build(forward, torch.randn(2, 3, 4))
    assert_delegated(program)
    assert program.npu_nodes == ("aten_sigmoid_default",)


def test_nothing_but_a_no_op() -> None:
    program = build(lambda x: tuple(f(x) for f in NO_OPS.values()), torch.randn(2, 3, 4))
    assert not program.partitions
    assert not program.rejected


class _AsItIs(NeutronQuantizer):
    """Annotates the graph as it was exported: what another quantizer's users lower."""

    def transform_for_annotation(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        return model


def test_a_partition_may_give_back_its_input_and_a_result_twice() -> None:
    module = Function(lambda x: (torch.relu(x), x.permute(0, 1, 2), F.pad(x, (0, 0)), x.repeat(1, 1, 1)))
    x = torch.randn(2, 3, 4)
    prepared = prepare_pt2e(torch.export.export(module, (x,)).module(check_guards=False), _AsItIs())
    prepared(x)
    program = compile_model(convert_pt2e(prepared), (x,))
    assert_delegated(program)
    assert len(program.partitions[0].lowered.graph.outputs) == 4


# ----------------------------------------------------------------------------------------------------
# Bounds and values that are not finite


def test_bounds_that_bound_nothing_or_cross() -> None:
    bounds = ((-INF, INF), (-INF, None), (None, INF), (0, INF), (-INF, 2), (2, 1), (1, 1), (0, 6))
    assert_delegated(build(lambda x: tuple(torch.clamp(x, *b) for b in bounds), torch.randn(3, 5) * 4))


@pytest.mark.parametrize("bounds", [(INF, None), (None, -INF), (INF, -INF), (NAN, 1), (None, NAN)])
def test_bounds_that_are_not_finite_stay_on_the_cpu(bounds: tuple[Any, Any]) -> None:
    program = build(lambda x: torch.clamp(x, *bounds), torch.randn(3, 5))
    ((op, code, reason),) = reasons(program)
    assert (op, code) == ("aten.clamp.default", "ON203")
    assert reason.startswith("Numbers must be finite")


# ----------------------------------------------------------------------------------------------------
# Memory of the user's tensors


def odd_tensors() -> list[torch.Tensor]:
    x = torch.randn(1, 3, 8, 8)
    return [
        torch.from_numpy(x.numpy()[0][None]),
        x[:, :1].expand(1, 3, 8, 8),
        x.transpose(2, 3),
        x.permute(0, 3, 2, 1)[:, :3]
        .transpose(1, 3)[:, :, :, :3]
        .permute(0, 3, 1, 2)[:, :, :3, :]
        .expand(1, 3, 3, 8),
        torch.randn(1, 3, 16, 16)[:, :, ::2, ::2],
        x.flip(3),
        x.contiguous(memory_format=torch.channels_last),
    ]


def test_plain_tensors_keep_their_values() -> None:
    for x in (
        *odd_tensors(),
        torch.randn(3).expand(2, 3),
        torch.tensor(1.0),
        torch.randn(4, 3, 2).permute(2, 1, 0),
    ):
        assert is_plain(plain(x))
        torch.testing.assert_close(plain(x), x, rtol=0, atol=0)


def test_examples_and_runs_take_any_strides() -> None:
    layer = nn.Conv2d(3, 4, 3)
    for example in odd_tensors()[:3]:
        program = build(layer, example)
        loaded = load_program(program.pte)
        for x in odd_tensors():
            if x.shape == example.shape:
                (got,), (want,) = (
                    loaded.run([x]),
                    loaded.run([x.clone(memory_format=torch.contiguous_format)]),
                )
                np.testing.assert_array_equal(got, want)
        backwards = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)[::-1, :, ::-1]
        np.testing.assert_array_equal(loaded.run([backwards])[0], loaded.run([backwards.copy()])[0])


def test_an_exported_program_with_odd_strides() -> None:
    example = odd_tensors()[1]
    exported = torch.export.export(nn.Conv2d(3, 4, 3), (example,))
    assert_delegated(compile_model(exported, (example,), calibration=[(example,)]))


def test_samples_of_a_file_are_plain(tmp_path: Any) -> None:
    np.savez(tmp_path / "x.npz", input_0=np.random.rand(4, 3, 8, 8).astype(np.float32))
    for (x,) in load_samples(tmp_path / "x.npz", (torch.zeros(1, 3, 8, 8),), 4):
        assert is_plain(x)


def test_an_empty_tensor_is_named() -> None:
    program = build(nn.Linear(4, 4), torch.randn(0, 4))
    assert not program.partitions
    assert {(code, reason) for _, code, reason in reasons(program)} == {
        ("ON203", "Tensors must not be empty (got [0, 4])")
    }


# ----------------------------------------------------------------------------------------------------
# Regions, requantization, constants


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            y = self.backbone(x).mean((2, 3))
            with torch.amp.autocast("cpu", enabled=False):
                z = torch.matmul(y, y.transpose(-1, -2))
        with torch.amp.autocast("cuda", enabled=False):
            w = torch.sigmoid(self.head(y))
        with torch.enable_grad():
            return w + z.mean(), y


@pytest.mark.parametrize("recipe", RECIPES)
def test_regions_are_part_of_the_model(recipe: str) -> None:
    assert_delegated(build(Regions(), torch.randn(2, 3, 6, 6), recipe=recipe))


def test_requantization_is_inside_a_partition() -> None:
    layers = nn.Linear(4, 4), nn.Linear(4, 4)
    program = build(
        lambda a, b, x: torch.cat([a(x), torch.sigmoid(b(x))], -1), torch.randn(3, 4), layers=layers
    )
    assert_delegated(program)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_tensor_joined_to_a_part_of_itself(recipe: str) -> None:
    assert_delegated(build(lambda x: torch.cat([x[:, :1], x, x[:, 1:]], 1), torch.randn(2, 4), recipe=recipe))


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("scales", torch.tensor([1.5, 2.0, 8.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x.new_zeros((8, 16))
        mask[0:4, 0:8] = 1
        mask[4:, 8:] += 2
        windows = mask.view(2, 4, 16).permute(1, 0, 2).reshape(8, 16)
        windows = windows.masked_fill(windows != 0, -100.0)
        rows, columns = torch.meshgrid(torch.arange(8) + 0.5, torch.arange(16) + 0.5, indexing="ij")
        anchors = torch.stack([rows, columns], -1).view(-1, 2).mean(-1).view(8, 16)
        strides = torch.full((8, 1), self.scales[0].item())
        return (self.linear(x) * mask + anchors) * strides * self.scales[1] + windows


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_no_input_changes_is_folded(recipe: str) -> None:
    program = build(Constants(), torch.randn(8, 16), recipe=recipe)
    assert_delegated(program)
    assert len(program.npu_nodes) == 6


def _folded(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    model = torch.export.export(Function(function), inputs).module(check_guards=False)
    fold_constants(model)
    model.graph.eliminate_dead_code()
    model.recompile()
    return model


def test_folding_sees_a_constant_as_it_is_at_the_time() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.zeros(4)
        first = x * mask
        mask[1:3] = 1
        second = x * mask
        mask[2:] = x[2:]  # no constant from here on
        return first, second, x * mask

    x = torch.randn(4)
    model = _folded(forward, x)
    for got, want in zip(model(x), forward(x), strict=True):
        torch.testing.assert_close(got, want)
    assert sum(n.op == "get_attr" and "folded" in str(n.target) for n in model.graph.nodes) == 2


def test_folding_leaves_state_and_large_results() -> None:
    class State(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count * 2 + torch.ones(3000, 3000).mean()

    model = torch.export.export(State(), (torch.zeros(4),)).module(check_guards=False)
    fold_constants(model)
    model.recompile()
    assert [model(torch.zeros(4))[0].item() for _ in range(2)] == [3, 5]
    assert "aten.ones.default" in map(op_name, model.graph.nodes)


# ----------------------------------------------------------------------------------------------------
# Reasons


def test_every_part_of_an_operator_has_its_own_name() -> None:
    cell = nn.LSTMCell(4, 5)
    program = compile_model(cell, (torch.randn(2, 4),))
    assert {entry.op for entry in program.rejected} >= {
        "aten.sigmoid.default",
        "aten.tanh.default",
        "aten.mul.Tensor",
    }
    assert all(entry.op == entry.kernel for entry in program.rejected)


@pytest.mark.parametrize("recipe", RECIPES)
def test_operators_outside_core_aten_run(recipe: str) -> None:
    def forward(linear: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = linear(x)
        return (
            torch.median(y),
            torch.median(y, 1)[0],
            torch.round(y, decimals=1),
            F.adaptive_max_pool3d(y[None], 2),
        )

    program = build(forward, torch.randn(2, 4, 4), layers=(nn.Linear(4, 4),), recipe=recipe)
    assert program.partitions
    assert {op for op, _, _ in reasons(program)} == {"aten.topk.default"}  # what a median is made of


# ----------------------------------------------------------------------------------------------------
# The recipe for two processors runs its trial on the user's samples


def test_the_trial_does_not_divide_by_zero() -> None:
    x, i, j = torch.rand(3, 4) + 1, torch.randint(5, 9, (3, 4)), torch.randint(1, 4, (3, 4))
    program = build(lambda x, i, j: (x / (x + 1), x + torch.floor_divide(i, j)), x, i, j, recipe="imxrt700")
    assert program.verification is not None


def test_a_comparison_is_of_the_numbers() -> None:
    """Not of the integers that stand for them: squares have their zero at the lower end."""
    program = build(lambda x: torch.where(x * x > 0, x * x, x), torch.randn(2, 8), recipe="imxrt700")
    assert program.verification is not None


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("mode", ["circular", "replicate", "reflect"])
def test_padding_modes(mode: str, recipe: str) -> None:
    layer = nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode=mode)
    assert_delegated(build(layer, torch.randn(1, 3, 6, 6), recipe=recipe))


# ----------------------------------------------------------------------------------------------------
# What the caller gave


def _dynamic() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    size = torch.export.Dim("size", min=8, max=32)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    return torch.export.export(module, (torch.randn(16, 4),), dynamic_shapes=({0: size},))


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_dynamic_dimension_stays_dynamic(calibrated: bool) -> None:
    exported, x = _dynamic(), torch.randn(16, 4)
    shapes = [str(n.meta["val"].shape) for n in exported.graph.nodes if n.op != "output"]
    weights, text = copy.deepcopy(exported.state_dict), str(exported.graph)
    for _ in range(2):  # the second time is as the first
        program = compile_model(exported, (x,), calibration=[(x,)] if calibrated else None)
        loaded = load_program(program.pte)
        for size in (8, 16, 20, 32):
            given = x[torch.arange(size) % 16]  # within what calibration has seen
            (got,) = loaded.run([given])
            assert got.shape == (size, 3)
            error = np.abs(got - exported.module()(given).detach().numpy()).max()
            assert error < (0.2 if calibrated else 1e-5)
        assert {code for _, code, _ in reasons(program)} == ({"ON205"} if calibrated else {"ON202"})
        with pytest.raises(OpenNeutronError, match=r"ON514.*float32\[32, 4\] or smaller"):
            loaded.run([torch.randn(33, 4)])
    assert [str(n.meta["val"].shape) for n in exported.graph.nodes if n.op != "output"] == shapes
    assert str(exported.graph) == text
    assert all(torch.equal(value, weights[name]) for name, value in exported.state_dict.items())


@pytest.mark.parametrize("recipe", RECIPES)
def test_compiling_changes_nothing_the_caller_has(recipe: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    module.eval()
    x = odd_tensors()[2][:, :, :6, :6]
    exported = torch.export.export(module, (x,))
    before = copy.deepcopy(module.state_dict()), x.clone(), x.stride(), str(exported.graph)
    for model in (module, exported):
        compile_model(model, (x,), calibration=[(x,)], recipe=recipe)
    compile_model(exported, (x,))
    for state in (module.state_dict(), exported.state_dict):
        assert all(torch.equal(state[name], value) for name, value in before[0].items())
    assert (x.stride(), str(exported.graph)) == before[2:]
    assert torch.equal(x, before[1])
    assert not module.training


def test_training_a_copy_leaves_the_exported_program() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    exported = torch.export.export(module, (torch.randn(2, 4),))
    before = copy.deepcopy(exported.state_dict)
    prepared = prepare_qat(exported, (torch.randn(2, 4),))
    optimizer = torch.optim.SGD(prepared.parameters(), lr=1.0)
    prepared(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(exported.state_dict[name], value) for name, value in before.items())


# ----------------------------------------------------------------------------------------------------
# What models return


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


RESULTS: dict[str, Callable[..., Any]] = {
    "values and indices": lambda x: torch.max(x, 1),
    "several of these": lambda x: {
        "a": x.topk(2),
        "b": [x.sort(descending=True), x.median(1), x.aminmax(dim=1)],
    },
    "a named tuple": lambda x: Pair(x.relu(), x + 1),
    "None among others": lambda x: (None, x.relu(), None, [x * 2]),
    "numbers": lambda x: (x.relu(), 3, 0.5, True, x.shape[0]),
    "the input, a constant": lambda x: (x, torch.ones(3), x.relu(), x),
    "no dimensions": lambda x: (x.std(), x.mean() * 2, 1 - x.max()),
    "views": lambda x: (*x.relu().split(3, 1), *x.unbind(0)),
}


@pytest.mark.parametrize("name", list(RESULTS))
def test_results_of_every_kind(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8)
    wanted = [v for v in pytree.tree_leaves(RESULTS[name](x)) if v is not None]
    found = load_program(build(RESULTS[name], x, accuracy="fast").pte).run((x,))
    assert [np.shape(value) for value in found] == [np.shape(value) for value in wanted]
    for a, b in zip(found, wanted, strict=True):
        if np.asarray(b).dtype.kind == "f":
            np.testing.assert_allclose(a, b, atol=0.06)


@pytest.mark.parametrize("recipe", RECIPES)
def test_indices_that_are_read(recipe: str) -> None:
    def forward(conv: nn.Module, x: torch.Tensor) -> Any:
        y = conv(x)
        return F.max_pool2d(y, 2, return_indices=True), y.max(1)[1], F.max_pool2d(y, 3)

    inputs = torch.randn(1, 4, 6, 6)
    program = build(forward, inputs, layers=(nn.Conv2d(4, 4, 3, padding=1),), recipe=recipe, accuracy="fast")
    assert {entry.op for entry in program.rejected} == {"aten.max_pool2d_with_indices.default"}


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: None, "ON213"),
        (lambda x: (x.relu(), "text"), "ON213"),
        (lambda x: x.relu() if x.sum() > 0 else x, "ON212"),
        (lambda x, y: x + y, "ON212"),
        (lambda x: torch.bincount(x.argmax(1), minlength=8), "ON205"),
        (lambda x: torch.nonzero(x.relu()).t(), "ON205"),
    ],
)
def test_what_cannot_be_a_program_is_said(function: Callable[..., Any], code: str) -> None:
    with pytest.raises(OpenNeutronError, match=code):
        build(function, torch.randn(2, 8))


def test_a_size_that_only_the_run_tells_is_the_cpus() -> None:
    def forward(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = linear(x)
        y[y > 0.5] -= 1
        return y

    x = torch.randn(2, 8)
    program = build(forward, x, layers=(nn.Linear(8, 8),), accuracy="fast")
    assert "aten.index.Tensor" in {entry.op for entry in program.rejected}


def test_places_that_are_not_zero_lie_in_rows() -> None:
    """PyTorch's lie in columns, and ExecuTorch describes its own so: what its kernel writes are rows."""

    def forward(linear: nn.Module, x: torch.Tensor) -> Any:
        y = linear(x)
        places = torch.nonzero(y > 0)
        return places, y[places[:, 0], places[:, 1]], places + 1

    torch.manual_seed(0)
    x = torch.randn(3, 8)
    quantized = quantize_model(Function(forward, nn.Linear(8, 5)).eval(), [(x,)], accuracy="fast")
    found = load_program(compile_model(quantized, (x,)).pte).run((x,))
    for value, wanted in zip(found, quantized(x), strict=True):
        np.testing.assert_allclose(value, wanted.numpy(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_that_nothing_quantizes_run_on_the_cpu(dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    torch.manual_seed(0)
    program = build(lambda linear, x: linear(x), x, layers=(nn.Linear(6, 6).to(dtype),), accuracy="fast")
    assert [entry.reject.reason for entry in program.rejected] == [
        f"it computes in {str(dtype).removeprefix('torch.')}; only float32 is quantized"
    ]
    (found,) = load_program(program.pte).run((x,))
    assert found.dtype == (np.float32 if dtype is torch.bfloat16 else str(dtype).removeprefix("torch."))


def test_layers_of_slices_of_a_flat_tensor() -> None:
    """They look like the parts of a grouped convolution, but no convolution reads them together."""

    def forward(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
        parts = x[:, None, None, :4], x[:, None, None, 4:]
        columns = [
            layer(part.permute(0, 3, 1, 2)) for layer, part in zip((first, second), parts, strict=True)
        ]
        return torch.cat(columns, 1)

    program = build(forward, torch.randn(1, 8), layers=(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)))
    assert not program.rejected
    fold = build(
        lambda linear, x: F.fold(linear(x).transpose(1, 2), (8, 8), (2, 2), stride=2),
        torch.randn(1, 16, 12),
        layers=(nn.Linear(12, 16),),
    )
    assert not fold.rejected


def _centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean((2, 3), keepdim=True)


POWERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a choice behind a power of two tensors": lambda x: F.threshold(
        (_centred(x).abs() + 0.1) ** 1.5, 0.3, 0.1
    ),
    "a mean of powers": lambda x: (_centred(x).abs() ** 1.7).mean((2, 3)),
    "an Lp norm": lambda x: x / ((x.abs() ** 3.3).sum(1, keepdim=True) ** (1 / 3.3) + 0.1),
    "the last step": lambda x: (_centred(x).abs() + 0.1) ** 1.5,
    "twice a power": lambda x: (lambda y: y + y * 0.5)((_centred(x).abs() + 0.1) ** 1.5),
    "twice an exponential": lambda x: (lambda y: y + y * 0.5)(torch.exp(_centred(x))),
}


@pytest.mark.parametrize("name", list(POWERS))
def test_powers_that_only_a_table_computes(name: str) -> None:
    """A power is exact for few exponents; any other is of one int8 tensor or the last of an island."""
    torch.manual_seed(0)
    assert not build(POWERS[name], torch.randn(1, 3, 8, 8), accuracy="fast").rejected


def test_an_early_result_of_a_group_is_read_before_its_last_operator() -> None:
    def forward(x: torch.Tensor) -> Any:
        chosen = torch.where(x.flip(3) > x, x.flip(3), x * 0.5)
        return chosen * x.flip(3) + chosen, torch.exp(chosen)

    assert not build(forward, torch.randn(1, 3, 8, 8), accuracy="fast").rejected
