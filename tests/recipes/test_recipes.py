"""Every network through the recipes: the .pte runs here and computes what the quantized model computes."""

from __future__ import annotations

import os
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch.fx import GraphModule, Node

from openneutron import CompileOptions, compile_model, quantize_model
from openneutron.fx import op_name
from openneutron.package.program import CompiledProgram
from openneutron.partition.constants import DEQUANTIZE_TENSOR
from openneutron.recipes.recipe import RECIPES
from openneutron.run.program import load_program
from tests.recipes.networks import NETWORKS, ZOO, Inputs

SAMPLES = 3
FULL = os.environ.get("OPENNEUTRON_ALL_RECIPES") == "1"


def settle(prepared: GraphModule) -> None:
    """A training that changes nothing: what is tested is the way there and back."""


@cache
def compiled(name: str, recipe: str, channels_last: bool, qat: bool) -> tuple[GraphModule, CompiledProgram]:
    network = NETWORKS[name]
    samples = [network.sample(seed, channels_last) for seed in range(SAMPLES)]
    train = {"qat": True, "train_fn": settle} if qat else {}
    # Methods that make int8 more accurate are tried where both backends meet, and with the small networks.
    accuracy = "fast" if network in ZOO and recipe != "npu+cpu" else "balanced"
    quantized = quantize_model(network.build(), samples, recipe=recipe, accuracy=accuracy, **train)
    return quantized, compile_model(quantized, samples[0], recipe=recipe)


# Those without batch norms: torchao takes half a minute to fold any.
TRAINED = ("argmax_head", "embedding_start", "cumsum_island", "volume_island", "flipped_end", "ratio", "seed",
           "tiny_vit")  # fmt: skip


def cases() -> list[pytest.param]:
    """Each network with each recipe; layout and training alternate, so that each pair of the four occurs.

    OPENNEUTRON_ALL_RECIPES=1 gives the full product: a quarter of an hour on two cores.
    """
    found = []
    for (i, name), (j, recipe) in product(enumerate(NETWORKS), enumerate(RECIPES)):
        trains, turns = name in TRAINED and (i + j) % 3 == 0, (i + i // 3 + j) % 2 == 0
        images = any(len(shape) == 4 for shape in NETWORKS[name].shapes)
        for last, qat in product((False, True), repeat=2):
            chosen = last == (images and turns) and qat == trains
            if chosen or (FULL and (images or not last)):
                label = f"{name}-{recipe}-{'last' if last else 'contiguous'}-{'qat' if qat else 'ptq'}"
                found.append(pytest.param(name, recipe, last, qat, id=label))
    return found


@pytest.mark.slow  # each recipe lowers, the QAT ones train
@pytest.mark.parametrize(("name", "recipe", "channels_last", "qat"), cases())
def test_program_computes_what_the_model_computes(name, recipe, channels_last, qat):
    quantized, program = compiled(name, recipe, channels_last, qat)
    network = NETWORKS[name]
    assert program.verification is not None and program.verification.worst is not None
    check_steps(program, quantized, network.sample(SAMPLES, channels_last))
    if recipe == "npu+cpu":
        floats = {e.op for e in program.rejected if not e.int8 and e.reject.code != "ON210"}
        assert floats == network.floats
    if recipe != "cortex-m" and network in ZOO:
        assert not [entry for entry in program.rejected if entry.reject.code != "ON210"]


def check_steps(program: CompiledProgram, quantized: GraphModule, inputs: Inputs) -> None:
    """The outputs are within one step for every operator on the way, of the coarsest scale on the way."""
    with torch.no_grad():
        wanted = quantized(*inputs)
    wanted = wanted if isinstance(wanted, tuple | list) else (wanted,)
    found = load_program(program.pte).run(inputs)
    outputs = quantized.graph.output_node().args[0]
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    operators = len(program.npu_nodes) + len(program.rejected)
    for got, want, node in zip(found, wanted, outputs, strict=True):
        if not want.is_floating_point():
            continue  # an argmax may jump; the check at compile time judges it
        if isinstance(node, Node) and op_name(node) == DEQUANTIZE_TENSOR:
            step = float(node.args[1])
            assert np.abs(got - want.numpy()).max() <= (operators + 1) * step


def _kept_from_the_npu(name, *operators):
    """A network of which some operators are the CPU's: Neutron has all that Cortex-M has."""
    network = NETWORKS[name]
    samples = [network.sample(seed) for seed in range(SAMPLES)]
    options = CompileOptions(operators_not_to_delegate=operators)
    return compile_model(network.build(), samples[0], calibration=samples, recipe="imxrt700", options=options)


def test_the_two_agree_on_parameters():
    """Between a delegate and a Cortex-M kernel there are no dequantize and quantize steps."""
    program = _kept_from_the_npu("middle", "aten::log1p")
    graph = program.edge.graph
    (kernel,) = [n for n in graph.nodes if op_name(n) == "cortex_m.quantized_activation.default"]
    assert "getitem" in kernel.args[0].name and all("delegate" in user.name for user in kernel.users)
    steps = [n for n in graph.nodes if "quantize_per_tensor" in op_name(n)]
    assert len(steps) == 4  # at the program's two ends, and around atan, which nobody computes in int8


def test_no_operator_is_quantized_twice():
    """What is outside the delegates is Cortex-M's, and the delegates hold no operator of its."""
    program = _kept_from_the_npu("ratio", "aten::div", "aten::log10")
    kernels = {entry.op: entry.kernel for entry in program.rejected}
    assert kernels["aten.div.Tensor"] == "cortex_m.quantized_div.default"
    assert kernels["aten.log10.default"] == "cortex_m.quantized_activation.default"
    assert len(program.npu_nodes) >= 3 and not any(
        "div" in name or "log10" in name for name in program.npu_nodes
    )


def test_options_decide_who_quantizes():
    """What the user keeps from the NPU is computed on the CPU in int8."""
    network = NETWORKS["flipped_end"]
    samples = [network.sample(seed) for seed in range(SAMPLES)]
    options = CompileOptions(operators_not_to_delegate=("aten::conv2d",))
    program = compile_model(
        network.build(), samples[0], calibration=samples, recipe="imxrt700", options=options
    )
    kernels = [entry.kernel for entry in program.rejected if entry.op.startswith("aten.conv")]
    assert kernels == ["cortex_m.quantized_conv2d_nhwc.default"] * 2
    assert all(entry.int8 for entry in program.rejected) and program.macs_cpu == 7 * 6 * 6 * (27 + 6)
    assert program.summary()["cpu_kernels"].count("cortex_m.quantized_conv2d_nhwc.default") == 1


def test_several_methods():
    """Every method is divided, and the report has the nodes of all."""
    middle, ratio = NETWORKS["middle"], NETWORKS["ratio"]
    parts = {"forward": middle, "ratio": ratio}
    program = compile_model(
        {name: network.build() for name, network in parts.items()},
        {name: network.sample(0) for name, network in parts.items()},
        calibration={name: [network.sample(s) for s in range(SAMPLES)] for name, network in parts.items()},
        recipe="imxrt700",
        options=CompileOptions(operators_not_to_delegate=("aten::log1p", "aten::div")),
    )
    assert program.summary()["methods"] == ["forward", "ratio"]
    assert {"aten.log1p.default", "aten.div.Tensor"} <= {entry.op for entry in program.rejected}
    loaded = load_program(program.pte)
    assert loaded.run(middle.sample(9))[0].shape == (1, 5)
    assert loaded.run(ratio.sample(9), "ratio")[0].shape == (1, 6, 6, 5)
