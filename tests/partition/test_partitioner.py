"""What a user of NeutronPartitioner sees: partitions, reasons, options."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import to_edge
from torch import nn

from openneutron import (
    CustomDelegationOptions,
    NeutronPartitioner,
    NeutronTargetSpec,
    OpenNeutronError,
    compile_model,
    generate_neutron_compile_spec,
)
from openneutron.fx import op_name
from openneutron.options import CompileOptions
from openneutron.partition.partitioner import spellings
from openneutron.run.program import load_program
from tests.lowering import compute_nodes, delegate, look, output_steps, quantize


class Interrupted(nn.Module):
    """Convolutions with an operator between them that Neutron does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.second(torch.atan(y))


def _inputs(*shape: int, channels_last: bool = False, seed: int = 0) -> tuple[torch.Tensor, ...]:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (x.to(memory_format=torch.channels_last) if channels_last else x,)


def _lower(module: nn.Module, *inputs: torch.Tensor, compile_spec: Any = None, **kwargs: Any) -> Any:
    return delegate(quantize(module, [inputs]), inputs, compile_spec, **kwargs)


def _spec(**kwargs: Any) -> Any:
    return generate_neutron_compile_spec("imxrt700", **kwargs)


@pytest.mark.parametrize("npu_transposes", [True, False])
@pytest.mark.parametrize("channels_last", [False, True])
def test_unsupported_operator_in_the_middle(channels_last: bool, npu_transposes: bool) -> None:
    torch.manual_seed(0)
    batches = [_inputs(1, 3, 8, 8, channels_last=channels_last, seed=s) for s in range(3)]
    quantized = quantize(Interrupted(), batches)
    spec = _spec(use_neutron_for_format_conversion=npu_transposes)
    delegated = delegate(quantized, batches[0], spec)
    assert len(delegated.partitioner.partitions) == 2
    assert [r.as_dict()["op"] for r in delegated.partitioner.rejected] == ["aten.atan.default"]
    reason = delegated.partitioner.rejected[0].reject
    assert (reason.code, reason.reason) == ("ON201", "aten.atan.default is not in the operator table")
    assert len(compute_nodes(delegated.program)) == 1
    step = output_steps(quantized)[0]
    for batch in batches:
        assert torch.max(torch.abs(quantized(*batch) - delegated.run(batch)[0])) <= 2.001 * step


def test_reasons_are_logged_in_the_style_of_executorch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="openneutron.partition.partitioner"):
        _lower(Interrupted(), *_inputs(1, 3, 8, 8))
    assert "was not partitioned because ON201: aten.atan.default is not in the operator table" in caplog.text


def test_no_arguments_delegate_as_much_as_possible() -> None:
    delegated = _lower(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)), *_inputs(1, 3, 8, 8)
    )
    assert compute_nodes(delegated.program) == []
    assert delegated.partitioner.rejected == []


def test_float_model_is_left_alone_and_says_why() -> None:
    inputs = _inputs(1, 3, 8, 8)
    module = torch.export.export(nn.Conv2d(3, 4, 3), inputs).module()
    partitioner = look(module, inputs)  # type: ignore[arg-type]
    assert partitioner.partitions == []
    assert [r.reject.code for r in partitioner.rejected] == ["ON202"]
    assert "not quantized" in partitioner.rejected[0].reject.reason
    assert partitioner.rejected[0].reject.hint


def test_to_edge_then_to_backend() -> None:
    """The older way: everything is decomposed, a linear layer's weight stands behind a permutation."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.AdaptiveAvgPool2d(1))
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5), nn.Softmax(-1))
    inputs = _inputs(1, 3, 8, 8)
    quantized = quantize(module, [inputs])
    partitioner = NeutronPartitioner(_spec(), NeutronTargetSpec("imxrt700"))
    manager = to_edge(torch.export.export(quantized, inputs)).to_backend(partitioner)
    assert partitioner.rejected == []
    assert compute_nodes(manager.exported_program()) == []
    got, want = load_program(manager.to_executorch().buffer).run(inputs)[0], quantized(*inputs)
    assert np.abs(np.asarray(got) - want.numpy()).max() <= 1.001 * output_steps(quantized)[0]


class Sums(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight) + x


@pytest.mark.parametrize(
    "name", ["aten::add", "aten::add.Tensor", "aten.add.Tensor", "aten.add", "aten_add", "aten_add_tensor"]
)
def test_excluding_add_does_not_exclude_addmm(name: str) -> None:
    inputs = _inputs(2, 8)
    partitioner = look(quantize(Sums(), [inputs]), inputs, _spec(operators_not_to_delegate=[name]))
    assert [r.op for r in partitioner.rejected] == ["aten.add.Tensor"]
    assert partitioner.rejected[0].reject.code == "ON204"
    parts = [part for p in partitioner.partitions for cluster in p for part in cluster.parts]
    assert [part.call.op for part in parts] == ["aten.addmm.default"]


def test_misspelt_exclusion_is_an_error_with_a_suggestion() -> None:
    inputs = _inputs(2, 8)
    with pytest.raises(OpenNeutronError) as error:
        look(quantize(Sums(), [inputs]), inputs, _spec(operators_not_to_delegate=["aten::addm"]))
    assert error.value.diagnostic.code == "ON105"
    assert "aten::addmm" in error.value.diagnostic.hint


def test_excluding_what_is_not_there_excludes_nothing() -> None:
    inputs = _inputs(2, 8)
    partitioner = look(quantize(Sums(), [inputs]), inputs, _spec(operators_not_to_delegate=["aten::flip"]))
    assert partitioner.rejected == []


class Rewritten(nn.Module):
    """Operators that passes write as others: products, choices, arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).cumsum(2).flip(3)
        return self.norm(y.permute(0, 2, 3, 1))


@pytest.mark.parametrize("names", [("cumsum",), ("flip", "layer_norm"), ("linear", "permute", "transpose")])
def test_excluding_what_passes_rewrite_excludes_what_they_wrote(names: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    inputs, excluded = _inputs(1, 3, 6, 6), [f"aten::{name}" for name in names]
    quantized = quantize(Rewritten(), [inputs])
    partitioner = look(quantized, inputs, _spec(operators_not_to_delegate=excluded))
    reasons = {r.reject.reason for r in partitioner.rejected if r.reject.code == "ON204"}
    assert reasons >= {f"The user excludes {name}" for name in excluded if name != "aten::transpose"}
    options = CompileOptions(operators_not_to_delegate=tuple(excluded))
    program = compile_model(quantized, inputs, options=options)  # which compares what it computes
    assert any(r.reject.code == "ON204" for r in program.rejected)


def test_check_op_support_can_refuse_a_node() -> None:
    inputs = _inputs(2, 8)
    partitioner = look(
        quantize(Sums(), [inputs]), inputs, check_op_support=lambda node: "add_tensor" not in node.name
    )
    assert {r.reject.code for r in partitioner.rejected} == {"ON204"}


def test_partition_of_no_ops_follows_the_option() -> None:
    class View(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 12)

    inputs = _inputs(2, 3, 4)
    quantized = quantize(View(), [inputs])
    refused = look(quantized, inputs)
    assert refused.partitions == []
    assert [r.reject.code for r in refused.rejected] == ["ON206"]
    allowed = delegate(
        quantized, inputs, custom_delegation_options=CustomDelegationOptions(allow_no_op_partitions=True)
    )
    assert len(allowed.partitioner.partitions) == 1
    assert torch.equal(allowed.run(inputs)[0], quantized(*inputs))


def test_dynamic_shapes_are_named() -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    inputs = (torch.randn(4, 8),)
    exported = torch.export.export(nn.Linear(8, 4), inputs, dynamic_shapes=({0: batch},)).module()
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from openneutron import NeutronQuantizer

    prepared = prepare_pt2e(exported, NeutronQuantizer())
    prepared(*inputs)
    from executorch.exir import to_edge_transform_and_lower

    partitioner = NeutronPartitioner()
    to_edge_transform_and_lower(
        torch.export.export(convert_pt2e(prepared), inputs, dynamic_shapes=({0: batch},)),
        partitioner=[partitioner],
    )
    assert {r.reject.code for r in partitioner.rejected} == {"ON205"}


def test_branches_around_a_cpu_operator_need_two_partitions_only() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b, c, d, e = self.convs
            # b could run at once, but joins what consumes it; d and e are independent of one another.
            return d(torch.atan(a(x)) + c(b(x))) + e(x)

    torch.manual_seed(0)
    inputs = _inputs(1, 3, 6, 6)
    delegated = _lower(Branches(), *inputs)
    assert len(delegated.partitioner.partitions) == 2
    got, want = delegated.run(inputs)[0], delegated.quantized(*inputs)
    assert torch.max(torch.abs(got - want)) <= 3.001 * output_steps(delegated.quantized)[0]


def test_a_second_backend_of_the_same_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openneutron.partition.partitioner.other_backends", lambda: ["somewhere.else"])
    inputs = _inputs(2, 8)
    with pytest.raises(
        OpenNeutronError, match=r"ON107: somewhere\.else: another backend named NeutronBackend"
    ):
        look(quantize(nn.Linear(8, 4), [inputs]), inputs)


def test_plain_lowering_writes_each_partitions_kernel_selection(tmp_path) -> None:
    inputs = _inputs(1, 3, 8, 8)
    spec = _spec(dump_kernel_selection_code=True, intermediates_dir=str(tmp_path / "steps"))
    partitioner = _lower(Interrupted(), *inputs, compile_spec=spec).partitioner
    codes = sorted((tmp_path / "steps").glob("*_kernel_selection.c"))
    assert len(codes) == len(partitioner.partitions) > 0
    assert all("NEUTRON_KERNEL_CONV_2D" in code.read_text() for code in codes)


def test_spellings() -> None:
    dotted = {"aten.add.Tensor", "aten.add", "aten::add", "aten::add.Tensor"}
    assert spellings("aten.add.Tensor") == dotted | {"aten_add", "aten_add_tensor"}
    assert "aten_relu_default" in spellings("aten.relu.default")
    assert spellings("") == set()


def test_a_program_of_core_operators_is_traced_once(monkeypatch) -> None:
    """exir traces the whole program for every decomposition it is asked for: most of the compile time."""
    traced = []
    original = torch.export.ExportedProgram.run_decompositions

    def counted(self, *args, **kwargs):
        traced.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.Softmax(1)
    delegated = _lower(nn.Sequential(*layers), *_inputs(1, 3, 8, 8))
    assert len(traced) == 1
    assert not compute_nodes(delegated.program)


def test_convolution_without_a_batch_is_delegated() -> None:
    delegated = _lower(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), *_inputs(3, 8, 8))
    assert compute_nodes(delegated.program) == []


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x) + x)


def test_a_sum_with_its_activation_is_one_operator_in_integers() -> None:
    partitioner = _lower(Residual(), *_inputs(1, 3, 8, 8)).partitioner
    bodies = [[node.name for node in cluster.body] for group in partitioner.partitions for cluster in group]
    assert [len(body) for body in bodies if any("add" in name for name in body)] == [2]
    assert all(len(cluster.parts) == 1 for group in partitioner.partitions for cluster in group)


class OneForAll(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(2, 3, 1), torch.nn.Conv2d(3, 3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.first(x))
        return self.second(y), torch.atan(y)


def test_a_dequantize_step_that_the_cpu_reads_too_keeps_nothing_from_the_npu() -> None:
    """torchao makes one for each reader; a graph that was tidied has one for all."""
    inputs = (torch.randn(1, 2, 6, 6),)
    quantized = quantize(OneForAll(), [inputs])
    steps = [n for n in quantized.graph.nodes if op_name(n).startswith("quantized_decomposed.dequantize")]
    for step in steps:
        same = next(n for n in steps if n.args == step.args)
        if same is not step:
            step.replace_all_uses_with(same)
    quantized.graph.eliminate_dead_code()
    quantized.recompile()
    assert compute_nodes(delegate(quantized, inputs).program) == ["aten_atan_default"]


@pytest.mark.parametrize(
    ("layers", "excluded"),
    [
        ([nn.Conv2d(3, 4, 3), nn.ReLU()], "aten::relu"),
        ([nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU6()], "aten::hardtanh"),
        ([nn.Linear(8, 8), nn.ReLU()], "aten.relu.default"),
        ([nn.Conv2d(3, 4, 3), nn.ReLU()], "aten::conv2d"),
        ([nn.Linear(8, 8), nn.ReLU()], "aten::linear"),
    ],
)
def test_an_exclusion_holds_for_what_is_fused_and_gives_it_as_the_reason(layers, excluded):
    inputs = (torch.randn(1, 3, 8, 8),)
    options = CompileOptions(operators_not_to_delegate=(excluded,))
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid(), *layers).eval()
    program = compile_model(model, inputs, calibration=[inputs], options=options)
    names = {r.op.split(".")[1] for r in program.rejected}
    assert (
        excluded.replace("::", ".").split(".")[1].replace("conv2d", "convolution").replace("linear", "addmm")
        in names
    )
    assert {"relu", "hardtanh"} & names
    assert all(r.reject.code == "ON204" and excluded in r.reject.reason for r in program.rejected)


def test_an_exclusion_that_finds_nothing_is_said(caplog):
    inputs = (torch.randn(1, 3, 8, 8),)
    options = CompileOptions(operators_not_to_delegate=("aten::batch_norm",))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    compile_model(model, inputs, calibration=[inputs], options=options)
    assert "no operator of the program is aten::batch_norm" in caplog.text


@pytest.mark.parametrize(
    ("layers", "excluded"),
    [
        ([nn.Flatten(), nn.Linear(192, 4)], "aten::addmm"),
        ([nn.Flatten(), nn.Linear(192, 4, bias=False)], "aten::mm"),
        ([nn.ZeroPad2d(1), nn.MaxPool2d(2)], "aten::constant_pad_nd"),
        ([nn.AdaptiveAvgPool2d(2)], "aten::_adaptive_avg_pool2d"),
        ([nn.AdaptiveAvgPool2d(1)], "aten::mean"),
        ([nn.LayerNorm(8)], "aten::native_layer_norm"),
        ([nn.MaxPool2d(2)], "aten::max_pool2d_with_indices"),
        ([nn.Softmax(1)], "aten::_softmax"),
    ],
)
def test_an_exclusion_by_the_name_in_edge_holds(layers, excluded, caplog):
    """Lists that were made for ExecuTorch's NXP backend have the names of Edge programs."""
    inputs = (torch.randn(1, 3, 8, 8),)
    options = CompileOptions(operators_not_to_delegate=(excluded,))
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sigmoid(), *layers).eval()
    program = compile_model(model, inputs, calibration=[inputs], options=options)
    assert any(excluded in r.reject.reason for r in program.rejected)
    assert "no operator of the program" not in caplog.text
