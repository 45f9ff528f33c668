"""Test support: whole programs in ExecuTorch's runtime on an emulated microcontroller."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.firmware.check import check_whole
from openneutron.firmware.cores import CORES
from openneutron.firmware.sources import (
    CMSIS_NN,
    EXECUTORCH,
    Sources,
    find_sources,
    source_place,
    sources_folder,
)
from openneutron.firmware.whole import WholeFirmware, WholeProgram, build_whole, read_whole_program
from openneutron.firmware.whole_run import (
    Comparison,
    Runs,
    WholeRun,
    compare_runs,
    host_runs,
    measure,
    random_runs,
    run_whole,
)
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from tests.recipes.networks import NETWORKS, Network

RUNS = 5
# What the networks are about: kept from the NPU, which has most of it by now, so that the CPU computes it.
ON_CPU = {
    "middle": ("aten::log1p",),
    "erf": ("aten::erf",),
    "argmax_head": ("aten::argmax",),
    "embedding_start": ("aten::embedding", "aten::log2"),
    "cumsum_island": ("aten::linear",),  # a running sum is a product with a matrix
    "volume_island": ("aten::log1p",),
    "flipped_end": ("aten::index_select",),  # and flipping a choice
    "ratio": ("aten::div", "aten::log10"),
    "seed": ("aten::constant_pad_nd", "aten::max_pool2d", "aten::minimum"),
}


def find_test_sources() -> Sources:
    """The sources, where a user has them too; a test that needs them is skipped without."""
    missing = [name for name in (EXECUTORCH, CMSIS_NN) if source_place(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not set, and not in {sources_folder()}")
    return find_sources()


def without_softmax(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.nn.Module:
    """A softmax at the end hides differences: the network without it."""
    graph_module = torch.export.export(module, inputs).module(check_guards=False)
    (output,) = [n for n in graph_module.graph.nodes if n.op == "output"]
    for node in list(output.all_input_nodes):
        if str(node.target).startswith(("aten.softmax", "aten._softmax")):
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def compiled(name: str, recipe: str, core: str = "cortex-m33") -> WholeProgram:
    """A network of the recipes' tests as a program."""
    # `core` says nothing where the CPU's kernels are ExecuTorch's portable ones.
    return compile_network(NETWORKS[name], recipe, "" if recipe == "neutron" else core, ON_CPU.get(name, ()))


@cache
def compile_network(
    network: Network, recipe: str, core: str, on_cpu: tuple[str, ...] = (), int8: bool = False
) -> WholeProgram:
    """A network as a program, with int8 in and out if wanted; the CPU computes these operators."""
    calibration = [network.sample(seed) for seed in range(4)]
    module = without_softmax(network.build(), calibration[0])
    more: dict = {"int8_io": int8} | ({"core": core} if core else {})
    options = CompileOptions(operators_not_to_delegate=() if recipe == "cortex-m" else on_cpu)
    made = compile_model(
        module, calibration[0], calibration=calibration, recipe=recipe, options=options, **more
    )
    return read_whole_program(made.pte)


def samples(network: Network, count: int = RUNS) -> Runs:
    """Inputs for the network's one method."""
    return {"forward": [[np.asarray(x) for x in network.sample(100 + i)] for i in range(count)]}


def build_measured(
    program: WholeProgram, folder: Path, sources: Sources, core: str = "cortex-m33", **more: object
) -> WholeFirmware:
    """Check, build, and give it pools of exactly the size it needs."""
    check_whole(program, CORES[core])
    return measure(build_whole(program, folder, sources, core=CORES[core], **more))


def run_and_compare(firmware: WholeFirmware, inputs: Runs | None = None) -> tuple[WholeRun, Comparison]:
    """Run under QEMU with the exact pools; outputs must be the host's."""
    inputs = inputs or random_runs(firmware.program, RUNS)
    run = run_whole(firmware, inputs)
    return run, compare_runs(firmware.program, run.outputs, host_runs(firmware.program, inputs))
