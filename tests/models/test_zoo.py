"""The zoo: shapes, published MAC counts, names users know."""

import subprocess
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from openneutron.diagnostics import OpenNeutronError
from openneutron.models import ZOO, build_model, example_inputs, find_model
from openneutron.models.layers import SameConv2d, same_padding

OUTPUT_SHAPES = {
    "cifarnet": (1, 10),
    "mobilenet_v2": (1, 1000),
    "mobilenet_v1_vww": (1, 2),
    "mobilenet_v1_025_128": (1, 1001),
    "mobilenet_v1": (1, 1001),
    "resnet8": (1, 10),
    "dscnn": (1, 12),
    "autoencoder": (1, 640),
    "tcn": (1, 10),
    "gru": (1, 10),
    "tiny_vit": (1, 10),
    "keywords": (1, 12),
    "keywords_stream": (1, 12),
    "tiny_lm": (1, 1, 256),
}

# The first three are published for the RT700, so that our figures are about the same networks.
MACS = {
    "cifarnet": 12_298_240,
    "dscnn": 2_656_768,
    "mobilenet_v1_025_128": 13_570_304,
    "mobilenet_v1": 568_741_376,
    "mobilenet_v1_vww": 7_489_664,
    "resnet8": 12_501_632,
    "autoencoder": 264_192,
    "mobilenet_v2": 300_774_272,
    "gru": 16 * 3 * 32 * (16 + 32) + 32 * 10,
    # Patches, four projections, two products of attention, MLP, head.
    "tiny_vit": 16 * 64 * 192 + 4 * 16 * 64 * 64 + 2 * 16 * 16 * 64 + 2 * 16 * 64 * 128 + 640,
    "keywords": 64 * (48 * 40 * 3 + 4 * 48 * (5 + 48)) + 48 * 12,
    "keywords_stream": 48 * 40 * 3 + 4 * 48 * (5 + 48) + 48 * 12,
    # Three blocks: projections, attention over the whole cache, the MLP; then the head.
    "tiny_lm": 3 * (160 * 32 * (4 + 2 + 2 + 4) + 2 * 4 * 32 * 256 + 3 * 160 * 480) + 160 * 256,
    "tcn": 64 * 32 * (16 * 3 + 16 + 7 * 32 * 3) + 320,
}


def count_macs(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    """MACs of convolutions and matrix products in one run; taps on padding count, as they do in hardware."""
    # The fused attention kernels of the CPU are unknown to torch's counter, their matrix products are not.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", ZOO)
def test_model_runs_and_has_the_published_macs(name):
    model, inputs = build_model(name), example_inputs(name)
    assert not model.training
    with torch.no_grad():
        output = model(*inputs)
    assert tuple(output.shape) == OUTPUT_SHAPES[name]
    assert torch.isfinite(output).all()
    assert count_macs(model, inputs) == MACS[name]
    classes = find_model(name).classes
    assert classes is None or output.shape[1] == classes


def test_same_seed_same_model_and_global_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    first, second, other = build_model("gru"), build_model("gru"), build_model("gru", seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    x = example_inputs("gru")
    assert torch.equal(first(*x), second(*x))
    assert not torch.equal(first(*x), other(*x))
    assert torch.equal(x[0], example_inputs("gru")[0])


@pytest.mark.parametrize(("alias", "name"), [("cifar10", "cifarnet"), ("mobilenetv2", "mobilenet_v2")])
def test_names_of_the_incumbents_example_work(alias, name):
    assert find_model(alias) is ZOO[name]


def test_unknown_model_suggests_the_nearest():
    with pytest.raises(OpenNeutronError) as error:
        build_model("cifarnt")
    assert error.value.diagnostic.code == "ON106"
    assert "Did you mean 'cifarnet'?" in str(error.value)
    assert all(name in str(error.value) for name in ZOO)


def test_mobilenet_v2_has_torchvisions_parameters():
    state = build_model("mobilenet_v2").state_dict()
    known = {
        "features.0.0.weight": (32, 3, 3, 3),
        "features.0.1.running_mean": (32,),
        "features.1.conv.0.0.weight": (32, 1, 3, 3),
        "features.1.conv.1.weight": (16, 32, 1, 1),
        "features.1.conv.2.bias": (16,),
        "features.2.conv.0.0.weight": (96, 16, 1, 1),
        "features.2.conv.1.0.weight": (96, 1, 3, 3),
        "features.2.conv.2.weight": (24, 96, 1, 1),
        "features.2.conv.3.num_batches_tracked": (),
        "features.17.conv.2.weight": (320, 960, 1, 1),
        "features.18.0.weight": (1280, 320, 1, 1),
        "features.18.1.running_var": (1280,),
        "classifier.1.weight": (1000, 1280),
        "classifier.1.bias": (1000,),
    }
    assert {key: tuple(state[key].shape) for key in known} == known
    # torchvision's model has 314 entries and 3,504,872 parameters.
    assert len(state) == 314
    assert sum(p.numel() for p in build_model("mobilenet_v2").parameters()) == 3_504_872


def test_mobilenet_v2_takes_other_widths_and_resolutions():
    model = build_model("mobilenet_v2", width=0.35, num_classes=7)
    # The same figure as torchvision 0.28's MobileNetV2(width_mult=0.35).features.
    assert sum(p.numel() for p in model.features.parameters()) == 396_128
    assert model(torch.randn(2, 3, 96, 96)).shape == (2, 7)


@pytest.mark.parametrize("name", ["cifarnet", "resnet8", "dscnn", "mobilenet_v1_vww"])
def test_softmax_is_only_for_deployment_and_changes_no_parameter_name(name):
    deployed, trained = build_model(name), build_model(name, softmax=False)
    trained.load_state_dict(deployed.state_dict())
    x = example_inputs(name)
    with torch.no_grad():
        probabilities, logits = deployed(*x), trained(*x)
    assert torch.allclose(probabilities.sum(), torch.tensor(1.0), atol=1e-5)
    assert torch.allclose(probabilities, logits.softmax(1))
    assert not torch.allclose(probabilities, logits)


def test_same_padding_is_tensorflows():
    assert same_padding(49, 10, 2) == (4, 5)
    assert same_padding(10, 4, 2) == (1, 1)
    assert same_padding(32, 3, 2) == (0, 1)
    assert same_padding(32, 3, 1) == (1, 1)
    assert same_padding(8, 1, 2) == (0, 0)
    for size in (7, 8, 9):
        conv = SameConv2d(1, 1, (3, 3), 2, (size, size))
        assert conv(torch.randn(1, 1, size, size)).shape[2:] == (-(-size // 2),) * 2


def test_tcn_is_causal():
    model = build_model("tcn")
    x = example_inputs("tcn")[0]
    later = x.clone()
    later[:, :, 40:] += 1
    with torch.no_grad():
        a, b = model.blocks(x), model.blocks(later)
    assert torch.equal(a[:, :, :40], b[:, :, :40])
    assert not torch.equal(a[:, :, 40:], b[:, :, 40:])


def test_the_registry_does_not_import_torch():
    code = "import sys, openneutron.models, openneutron.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
