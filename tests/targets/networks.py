"""The zoo, the networks of tests/architectures.py and LiteRT files on a chip: verified, run under QEMU.

    python -m tests.targets.networks --target mcxn94x [--whole] [NAME | FILE.tflite ...]

Prints a row for each: what it needs of the chip's memory, or the sum it is refused with. The delegates alone
run on the emulated core with the chip's memory; with --whole all of the program, in ExecuTorch's runtime.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from openneutron import CompileOptions, compile_model
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.build import build_firmware
from openneutron.firmware.emulator import compare, random_inputs, run_firmware, run_host
from openneutron.firmware.program import read_firmware_program
from openneutron.firmware.whole import build_whole, read_whole_program
from openneutron.firmware.whole_run import compare_runs, host_runs, measure, random_runs, run_whole
from openneutron.litert.reference import Reference
from openneutron.models.zoo import ZOO, find_model
from openneutron.package.program import CompiledProgram
from openneutron.pipeline import compile_litert
from openneutron.targets.table import find_target
from tests import architectures

COLUMNS = ("network", "weights", "verified", "SRAM used", "outputs under QEMU and on the host")
SMALL = "small_"  # before the name of one of tests/architectures.py


def compiled(name: str, target: str) -> CompiledProgram:
    """A network compiled for a chip and verified on a sample."""
    options = CompileOptions(target)
    if name.endswith(".tflite"):
        return compile_litert(Path(name).read_bytes(), options, name)
    if name.startswith(SMALL):
        model, samples = architectures.make(name.removeprefix(SMALL))
    else:
        entry = find_model(name)
        model, samples = entry.build(), [entry.example_inputs(seed) for seed in range(2)]
    return compile_model(model, samples[0], calibration=samples, accuracy="fast", options=options)


def run_bare(made: CompiledProgram, folder: Path) -> tuple[str, str]:
    """Run the delegates; the SRAM it needed, and how its outputs compare."""
    program = read_firmware_program(made.pte)
    firmware = build_firmware(program, folder, select=True)
    inputs = random_inputs(program)
    run = run_firmware(firmware, inputs)
    equal = compare(program, run.outputs, run_host(program, inputs))
    return f"{program.pools.delegates_bytes + run.stack_bytes:,}", f"{equal:,} bytes equal"


def run_all(made: CompiledProgram, folder: Path) -> tuple[str, str]:
    """The same of the whole program in ExecuTorch's runtime."""
    from tests.firmware.whole import find_test_sources

    program = read_whole_program(made.pte)
    firmware = measure(build_whole(program, folder, find_test_sources()))
    inputs = random_runs(program, 1)
    found = compare_runs(program, run_whole(firmware, inputs).outputs, host_runs(program, inputs))
    said = f"{found.values:,} equal" if found.equal == found.values else str(found)
    return f"{firmware.pools.total:,}", said


def verified(made: CompiledProgram, name: str) -> str:
    """What the compile's own check says; of a LiteRT file whether LiteRT's reference kernels agree."""
    if made.verification:
        return str(made.verification)
    program = read_firmware_program(made.pte)
    inputs = random_inputs(program)
    pairs = zip(Reference(Path(name).read_bytes()).run(inputs[0]), run_host(program, inputs)[0], strict=True)
    same = all((np.asarray(a) == b).all() for a, b in pairs)
    return "equals LiteRT's reference" if same else "WRONG: not LiteRT's reference"


def row(name: str, target: str, whole: bool) -> tuple[str, tuple[str, str, str, str]]:
    """What became of a network (ran, compiled or refused), and the cells of its row."""
    try:
        made = compiled(name, target)
    except OpenNeutronError as error:
        return "refused", ("", "", "", f"refused: {error.diagnostic.problem}")
    head = (f"{made.weights_bytes:,}", verified(made, name))
    try:
        with tempfile.TemporaryDirectory() as folder:
            return "ran", (*head, *(run_all if whole else run_bare)(made, Path(folder)))
    except OpenNeutronError as error:
        return "compiled", (*head, "", f"does not run: {error.diagnostic.problem}")


def main() -> int:
    """Print the table; 1 if a network that compiled did not run, or made other outputs."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--target", default="mcxn94x")
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args()
    counts: dict[str, int] = {}
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in args.names or [*ZOO, *(f"{SMALL}{name}" for name in architectures.NETWORKS)]:
        result, cells = row(name, args.target, args.whole)
        counts[result] = counts.get(result, 0) + 1
        print(f"| {' | '.join((Path(name).name, *cells))} |", flush=True)
    print(f"{args.target}, {find_target(args.target).sram_bytes:,} bytes of SRAM: {counts}")
    return 1 if "compiled" in counts else 0


if __name__ == "__main__":
    sys.exit(main())
