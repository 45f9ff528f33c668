"""Size of the firmware for a Cortex-M33: all kernels against selected ones, per model and for two merged.

    python benchmarks/bench_firmware.py [--whole]

Kernel code is that of the kernels and of what only they call, from the linker's map; text is all code and
constants of the image without microcode and weights. Instructions are QEMU's count for one inference, beside
those of the portable kernels (-DNEUTRON_PORTABLE) in the same run; the outputs of both are compared with the
host's. The bar: at most half of the portable kernels' for CifarNet.

`--whole` is about ExecuTorch's runtime instead (it wants EXECUTORCH_SOURCE and CMSIS_NN_SOURCE): CifarNet's
image with the operators it names, and with every operator ExecuTorch has a kernel for.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

from networks import NETWORKS

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode.format import Kernel
from openneutron.converter.kernel_selection import KernelSelection, merge_selections
from openneutron.firmware.build import Firmware, build_firmware
from openneutron.firmware.emulator import compare, random_inputs, run_firmware, run_host
from openneutron.firmware.operators import wheel_operators
from openneutron.firmware.program import FirmwareDelegate, FirmwareProgram
from openneutron.firmware.sources import find_sources
from openneutron.firmware.whole import WholeProgram, build_whole, read_whole_program
from openneutron.models.data import load_digits
from openneutron.models.zoo import find_model
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from openneutron.targets.table import DEFAULT_TARGET, find_target

CONVERTER = "openneutron"
MERGED = ("CifarNet", "DS-CNN (MLPerf Tiny)")
LEVELS = ("-O2", "-Os")
PORTABLE = ("-DNEUTRON_PORTABLE",)  # without the DSP extension's instructions


# Random numbers want an operating system, packed embeddings and their like sources that few clones have.
LEFT_OUT = re.compile(r"rand|dropout|quantized_decomposed::(?!(de)?quantize_per_)")


class Everything(WholeProgram):
    """A program that names every operator there is a kernel for."""

    @property
    def operators(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(sorted(op for op in wheel_operators() if not LEFT_OUT.search(op)))


def main() -> None:
    """Measure the delegates' images, or those of whole programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="ExecuTorch's operators instead of our kernels")
    if parser.parse_args().whole:
        measure_whole()
    else:
        measure_bare()


def measure_whole() -> None:
    """Print the parts of both images."""
    entry = find_model("cifarnet")
    shape = (1, 3, 32, 32)
    samples = [(load_digits(shape).train.inputs[i : i + 1],) for i in range(8)]
    made = compile_model(entry.build(), samples[0], calibration=samples)
    program = read_whole_program(made.pte)
    everything = Everything(program.name, program.data, program.info, program.delegates, program.converter)
    sources = find_sources()
    with tempfile.TemporaryDirectory() as place:
        for name, one in (("its operators", program), ("every operator", everything)):
            size = build_whole(one, Path(place) / name.replace(" ", "_"), sources).size
            print(f"{name}: {len(one.operators)} operators, {size.text:,} bytes of code and constants")
            for part in size.groups:
                print(f"  {part.group:<24}{part.text:>12,}{part.data:>8,}{part.bss:>8,}")


def measure_bare() -> None:
    """Print a table for each optimisation level."""
    programs = {}
    for name, make in NETWORKS.items():
        try:
            graph = compile_graph(make(), find_target(DEFAULT_TARGET), CompileOptions())
        except FileNotFoundError as error:
            print(f"{name}: skipped, {error.filename} is absent")
            continue
        delegate = FirmwareDelegate(graph.microcode, graph.weights, graph.program)
        file_name = "".join(c if c.isalnum() else "_" for c in name)
        programs[name] = FirmwareProgram(file_name, (delegate,), (), 0, CONVERTER)
    with tempfile.TemporaryDirectory() as place:
        for level in LEVELS:
            folder = Path(place) / level.strip("-")
            first = next(iter(programs.values()))
            full = build_firmware(first, folder / "full", optimize=level)
            print(f"\n{level}")
            heads = f"{'kernels':>8}{'kernel code':>12}{'of all':>8}{'text':>8}"
            heads += f"{'instructions':>15}{'portable':>13}{'ratio':>7}"
            print(f"{'linked for':<40}{heads}")
            _row("all kernels", full, full)
            for name, program in programs.items():
                firmware = _build(program, program.kernels, folder / program.name, level)
                plain = _build(program, program.kernels, folder / f"{program.name}_portable", level, PORTABLE)
                _row(name, firmware, full, _instructions(firmware), _instructions(plain))
            if set(MERGED) <= set(programs):
                kernels = _merged([programs[name] for name in MERGED])
                firmware = _build(programs[MERGED[0]], kernels, folder / "merged", level)
                _row(" and ".join(MERGED), firmware, full)


def _selection(kernels: frozenset[Kernel]) -> KernelSelection:
    return KernelSelection(CONVERTER, DEFAULT_TARGET, kernels)


def _merged(programs: list[FirmwareProgram]) -> frozenset[Kernel]:
    return merge_selections([(p.name, _selection(p.kernels)) for p in programs]).kernels


def _build(
    program: FirmwareProgram,
    kernels: frozenset[Kernel],
    folder: Path,
    level: str,
    defines: tuple[str, ...] = (),
) -> Firmware:
    folder.mkdir(parents=True)
    selection = folder / "some_kernel_selection.c"
    selection.write_text(_selection(kernels).code())
    return build_firmware(program, folder, selection=selection, optimize=level, defines=defines)


def _instructions(firmware: Firmware) -> int:
    inputs = random_inputs(firmware.program)
    run = run_firmware(firmware, inputs)
    compare(firmware.program, run.outputs, run_host(firmware.program, inputs))
    return run.instructions


def _row(
    name: str, firmware: Firmware, full: Firmware, instructions: int | None = None, portable: int = 0
) -> None:
    size = firmware.size
    share = size.kernel_text / full.size.kernel_text
    counts = f"{instructions:>15,}{portable:>13,}{instructions / portable:>7.2f}" if instructions else ""
    print(f"{name:<40}{len(size.kernels):>8}{size.kernel_text:>12,}{share:>8.1%}{size.text:>8,}{counts}")


if __name__ == "__main__":
    main()
