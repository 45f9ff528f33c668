"""Every network of the recipes' tests, under every recipe, on every core: built, run, compared with the host.

    python -m tests.firmware.matrix [-n NETWORK ...] [-r RECIPE ...] [-c CORE ...]

CI runs a part of it (test_whole.py). Prints a row for each, and ends with 1 if one failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.cores import CORES
from openneutron.firmware.sources import find_sources
from tests.firmware.whole import build_measured, compiled, run_and_compare, samples
from tests.recipes.networks import NETWORKS

RECIPES = ("neutron", "cortex-m", "imxrt700")


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    for letter, name, known in (
        ("n", "networks", NETWORKS),
        ("r", "recipes", RECIPES),
        ("c", "cores", CORES),
    ):
        parser.add_argument(f"-{letter}", f"--{name}", nargs="+", default=list(known), choices=list(known))
    args = parser.parse_args()
    sources, failed = find_sources(), 0
    heads = f"{'equal':>17}{'worst':>9}{'text':>10}{'SRAM':>10}{'stack':>7}{'instructions':>15}{'seconds':>9}"
    print(f"{'network':<18}{'recipe':<10}{'core':<12}{heads}", flush=True)
    for name in args.networks:
        for recipe in args.recipes:
            for core in args.cores:
                began = time.perf_counter()
                row = f"{name:<18}{recipe:<10}{core:<12}"
                try:
                    program = compiled(name, recipe, core)
                    with tempfile.TemporaryDirectory() as folder:
                        firmware = build_measured(program, Path(folder), sources, core)
                        run, found = run_and_compare(firmware, samples(NETWORKS[name]))
                except OpenNeutronError as error:
                    failed += 1
                    print(f"{row} FAILED {error}", flush=True)
                    continue
                equal = f"{found.equal}/{found.values}"
                row += f"{equal:>17}{found.worst:>9.1e}{firmware.size.text:>10,}{firmware.pools.total:>10,}"
                took = time.perf_counter() - began
                row += f"{firmware.pools.stack:>7,}{run.instructions('forward'):>15,}{took:>9.1f}"
                print(row, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
