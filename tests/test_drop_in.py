"""Scripts for ExecuTorch's NXP backend: its names, used as its example script and its tests use them."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch import nn

import openneutron
from openneutron import (
    CustomDelegationOptions,
    NeutronEdgePassManager,
    NeutronHWVersion,
    NeutronPartitioner,
    NeutronQuantizer,
    NeutronTargetSpec,
    OpenNeutronError,
    RemoveAdditionalQDQClustersPass,
    RemoveIOQuantOpsPass,
    calibrate_and_quantize,
    core_aten_ops_exception_list,
    generate_neutron_compile_spec,
    load_program,
)
from openneutron.environment.versions import executorch_folder
from openneutron.package.pte import inspect_program


class Net(nn.Module):
    """Two partitions: what stands between them is for the CPU."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3)

    def forward(self, x):
        return self.second(torch.abs(torch.relu(self.first(x)) - 0.5))


@pytest.fixture(scope="module")
def quantized():
    torch.manual_seed(0)
    inputs = (torch.randn(1, 1, 12, 12),)
    exported = torch.export.export(Net().eval(), inputs)
    return calibrate_and_quantize(exported, [inputs], NeutronQuantizer(NeutronTargetSpec("imxrt700"))), inputs


def test_the_page_for_those_who_come_from_it_names_what_there_is():
    page = Path(__file__).parents[1] / "docs/migrating.md"
    rows = re.findall(r"^\| (`\..*?) \| `from openneutron import (.*?)` \|$", page.read_text(), re.MULTILINE)
    assert len(rows) >= 14
    for theirs, ours in rows:
        assert all(hasattr(openneutron, name) and name in openneutron.__all__ for name in ours.split(", "))
        for place in re.findall(r"`\.([\w.]+)`", theirs):
            module, _, name = place.rpartition(".")
            file = executorch_folder() / "backends/nxp" / f"{module.replace('.', '/')}.py"
            if file.exists():  # not a module of a later release
                assert re.search(rf"^(class |def |)({name})\b", file.read_text(), re.MULTILINE), place
            else:
                assert "(1.6)" in theirs, place


def test_the_example_script(quantized, tmp_path: Path):
    module, inputs = quantized
    target = NeutronTargetSpec("imxrt700")
    spec = generate_neutron_compile_spec(
        "imxrt700", operators_not_to_delegate=["aten::abs"], intermediates_dir=str(tmp_path / "steps")
    )
    state = dict(module.state_dict())
    options = CustomDelegationOptions()
    partitioner = NeutronPartitioner(
        spec, target, options, state, preserve_ops=[torch.ops.aten.prelu.default]
    )
    assert partitioner.custom_delegation_options is options and partitioner.neutron_target_spec is target
    assert partitioner.post_quantization_state_dict is state and partitioner.check_op_support is None
    assert partitioner.preserve_ops == [torch.ops.aten.prelu.default]

    def lower():
        return to_edge_transform_and_lower(
            torch.export.export(module, inputs),
            transform_passes=NeutronEdgePassManager(),
            partitioner=[partitioner],
            compile_config=EdgeCompileConfig(_core_aten_ops_exception_list=core_aten_ops_exception_list),
        )

    float_ports = lower().to_executorch().buffer
    names = sorted(file.name for file in (tmp_path / "steps").iterdir())
    assert names[0].startswith("tag0_") and all(n.endswith((".et.tflite",)) for n in names)
    assert {n for n in names if "_pure" in n} == {"tag0_pure.et.tflite", "tag1_pure.et.tflite"}

    edge = lower()
    edge = edge.transform([RemoveIOQuantOpsPass(edge_program_manager=edge)])
    edge = edge.transform(NeutronEdgePassManager([RemoveAdditionalQDQClustersPass()]))
    program = edge.to_executorch().buffer
    (before,), (after,) = (list(inspect_program(p).methods["forward"].inputs) for p in (float_ports, program))
    assert "float" in str(before) and "int8" in str(after)

    first, second = load_program(float_ports), load_program(program)
    (wanted,) = first.run(inputs)
    known = {
        f"{p}0_{w}": second.run((), f"{p}0_{w}")[0].item()
        for p in ("input", "output")
        for w in ("scale", "zp")
    }
    ints = torch.round(inputs[0] / known["input0_scale"]) + known["input0_zp"]
    (found,) = second.run((torch.clamp(ints, -128, 127).to(torch.int8),))
    values = (found.astype(np.float32) - known["output0_zp"]) * known["output0_scale"]
    np.testing.assert_allclose(values, wanted, atol=1.01 * known["output0_scale"])
    assert len(set(found.flatten())) > 4, "something is computed"


def test_the_target():
    target = NeutronTargetSpec("imxrt700")
    assert target.get_name() == "imxrt700" and target.is_subsystem() is False
    assert (target.get_num_units(), target.get_num_pipes(), target.get_num_macs()) == (1, 8, 8)
    assert target.get_hw_version() is NeutronHWVersion.N3
    assert (NeutronHWVersion.N1.value, NeutronHWVersion.N3.value) == (1, 2)


def test_what_is_fused():
    class Every(nn.Module):
        def forward(self, x, w):
            x = nn.functional.linear(x, w)
            for function in (torch.relu, torch.sigmoid, torch.tanh, nn.functional.relu6, torch.abs):
                x = function(x)
            return nn.functional.hardtanh(x, -2.0, 2.0)

    exported = torch.export.export(Every(), (torch.ones(2, 2), torch.ones(2, 2)))
    info = NeutronTargetSpec().neutron_target_info

    def answers(nodes, kind):
        nodes = [n for n in nodes if n.op == "call_function"]
        fused = [n.name for n in nodes if getattr(info, f"is_supported_fused_activation__{kind}")(n)]
        return fused, [n.name for n in nodes if getattr(info, f"is_fusable_conv_or_linear__{kind}")(n)]

    fused, layers = answers(exported.graph.nodes, "aten")
    assert (
        len(fused) == 4 and not any("abs" in n or n == "hardtanh_1" for n in fused) and layers == ["linear"]
    )
    edge = to_edge_transform_and_lower(exported).exported_program()
    fused, layers = answers(edge.graph.nodes, "edge")
    assert len(fused) >= 3 and layers


def test_the_quantizer_is_one():
    quantizer = NeutronQuantizer()
    assert quantizer.quantizers == [quantizer]


def test_errors_are_caught_as_there():
    with pytest.raises(ValueError, match="ON101"):
        NeutronTargetSpec("imxrt7000")
    with pytest.raises(ValueError, match="ON104") as wrong:
        generate_neutron_compile_spec("imxrt700", use_profiling=3)
    with pytest.raises(RuntimeError, match="ON511") as failed:
        load_program(b"no program at all, but long enough to be looked at")
    with pytest.raises(RuntimeError, match="ON510"):
        load_program(Path("nowhere.pte"))
    for error in (wrong.value, failed.value):
        assert isinstance(error, OpenNeutronError)
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is type(error) and copied.diagnostic == error.diagnostic


def test_every_public_name_is_there():
    for name in openneutron.__all__:
        assert getattr(openneutron, name) is not None, name
