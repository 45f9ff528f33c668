"""Every network of the zoo and of the recipes' tests, under every recipe, on every core.

    python -m tests.firmware.matrix [-n NETWORK ...] [-r RECIPE ...] [-c CORE ...]

Each is compiled, built, given pools of exactly its size, run on five inputs and compared with the host. The
networks that are about operators on the CPU come twice: with these kept from the NPU, and (`.npu`) without.
CI runs a part of it (test_whole.py). Prints a row for each, and ends with 1 if one failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.cores import CORES
from openneutron.firmware.sources import Sources, find_sources
from openneutron.models.zoo import find_model
from tests.firmware.whole import ON_CPU, build_measured, compile_network, run_and_compare, samples
from tests.recipes.networks import NETWORKS, Network

RECIPES = ("neutron", "cortex-m", "npu+cpu")


class Erf(nn.Module):
    """The error function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.erf(x)


NPU = ".npu"
# The zoo's others; full-width MobileNets at 96 x 96, as 224 x 224 takes the emulator minutes for each input.
LARGE = (
    Network("mobilenet_v1_025_128", find_model("mobilenet_v1_025_128").build, ((1, 3, 128, 128),)),
    Network("mobilenet_v1", lambda: find_model("mobilenet_v1").build(resolution=96), ((1, 3, 96, 96),)),
    Network("mobilenet_v2_96", find_model("mobilenet_v2").build, ((1, 3, 96, 96),)),
)
SMALL = (
    Network("erf", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Erf(), nn.Conv2d(8, 4, 1)), ((1, 3, 8, 8),)),
)
ALL = {**NETWORKS, **{network.name: network for network in (*SMALL, *LARGE)}}
NAMES = (*ALL, *(name + NPU for name in ON_CPU))


def rows(networks: list[str], recipes: list[str], cores: list[str]) -> list[tuple[str, str, str]]:
    """What is asked for; the recipe that has no NPU does not come twice."""
    return [
        (name, recipe, core)
        for name in networks
        for recipe in recipes
        if not (name.endswith(NPU) and recipe == "cortex-m")
        for core in cores
    ]


def run_row(name: str, recipe: str, core: str, sources: Sources) -> str:
    """Compile, build, run, compare: what was found."""
    network = ALL[name.removesuffix(NPU)]
    program = compile_network(network, recipe, "" if recipe == "neutron" else core, ON_CPU.get(name, ()))
    with tempfile.TemporaryDirectory() as folder:
        firmware = build_measured(program, Path(folder), sources, core)
        run, found = run_and_compare(firmware, samples(network))
    equal = f"{found.equal}/{found.values}"
    return (
        f"{len(program.delegates):>4}{len(program.operators):>4}{equal:>17}{found.worst:>9.1e}"
        f"{firmware.size.text:>10,}{firmware.pools.total:>10,}{firmware.pools.stack:>7,}"
        f"{run.instructions('forward'):>15,}"
    )


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    for letter, name, known in (("n", "networks", NAMES), ("r", "recipes", RECIPES), ("c", "cores", CORES)):
        parser.add_argument(f"-{letter}", f"--{name}", nargs="+", default=list(known), choices=list(known))
    args = parser.parse_args()
    sources, failed = find_sources(), 0
    print(f"{'network':<24}{'recipe':<10}{'core':<12}{'npu':>4}{'ops':>4}{'equal':>17}{'worst':>9}"
          f"{'text':>10}{'SRAM':>10}{'stack':>7}{'instructions':>15}{'seconds':>9}", flush=True)  # fmt: skip
    for name, recipe, core in rows(args.networks, args.recipes, args.cores):
        began = time.perf_counter()
        try:
            what = run_row(name, recipe, core, sources)
        except OpenNeutronError as error:
            failed += 1
            what = f" FAILED {error}"
        took = time.perf_counter() - began
        print(f"{name:<24}{recipe:<10}{core:<12}{what}{took:>9.1f}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
