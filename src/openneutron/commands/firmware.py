"""Build a Cortex-M33 firmware that runs the delegates of a program, and run it under QEMU.

The runtime's C files are compiled with arm-none-eabi-gcc and linked with the program's microcode and weights.
With --run the image is executed on QEMU's mps2-an505 board, and every output byte is compared with the host
simulator's. Inputs are those of the delegates, one --input for each, in order; without them they are random.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openneutron.firmware.build import Firmware
    from openneutron.firmware.emulator import FirmwareRun

NAME = "firmware"
HELP = "build a Cortex-M33 firmware of a .pte, and run it under QEMU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from openneutron.commands.compile import parse_size

    add = parser.add_argument
    add("file", metavar="FILE.pte", help="a program of the open converter")
    add("--kernel-selection", metavar="F.c", help="link only these kernels (default: all)")
    add("--run", action="store_true", help="run it under QEMU and compare with the host")
    add("--input", action="append", default=[], metavar="FILE", help="an .npy, once per delegate input")
    add("--seed", type=int, default=0, help="of random inputs")
    add(
        "--sram", type=parse_size, metavar="BYTES", help="SRAM the firmware may use, e.g. 512K (default: all)"
    )
    add("-o", "--output", metavar="DIR", help="where to build (default: <program>_firmware)")
    add("--json", action="store_true", help="print the result as one JSON object")


def execute(args: argparse.Namespace) -> None:
    """Build, run, print."""
    from openneutron.commands.progress import Steps
    from openneutron.firmware.build import SRAM_BYTES, build_firmware
    from openneutron.firmware.program import read_firmware_program

    steps = Steps()
    program = read_firmware_program(Path(args.file))
    folder = Path(args.output or f"{program.name}_firmware")
    selection = Path(args.kernel_selection) if args.kernel_selection else None
    with steps.step("Building"):
        firmware = build_firmware(program, folder, selection=selection, sram_bytes=args.sram or SRAM_BYTES)
    data = _built(firmware)
    if args.run:
        with steps.step("Running under QEMU"):
            _add_run(data, *_run(args, firmware))
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        _print(data, bool(args.input))


def _run(args: argparse.Namespace, firmware: Firmware) -> tuple[FirmwareRun, int]:
    from openneutron.commands.samples import read_arrays
    from openneutron.firmware.emulator import compare, given_inputs, random_inputs, run_firmware, run_host

    program = firmware.program
    inputs = random_inputs(program, args.seed)
    if args.input:
        inputs = given_inputs(program, [array for name in args.input for array in read_arrays(Path(name))])
    run = run_firmware(firmware, inputs)
    return run, compare(program, run.outputs, run_host(program, inputs))


def _built(firmware: Firmware) -> dict[str, Any]:
    program, size = firmware.program, firmware.size
    return {
        "image": str(firmware.image),
        "delegates": len(program.delegates),
        "cpu_operators": list(program.cpu_operators),
        "pools": vars(program.pools),
        "flash_bytes": program.flash_bytes,
        "kernels": list(size.kernels),
        "kernel_text_bytes": size.kernel_text,
        "text_bytes": size.text,
        "sizes": [vars(part) for part in size.parts],
    }


def _add_run(data: dict[str, Any], run: FirmwareRun, compared: int) -> None:
    data["run"] = {
        "equal_bytes": compared,
        "instructions": run.instructions,
        "stack_bytes": run.stack_bytes,
        "counts": [vars(count) for count in run.counts],
    }


def _print(data: dict[str, Any], given: bool) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console

    console = make_console()
    table = Table("", "part", box=None, padding=(0, 2, 0, 0), title="Bytes linked", title_justify="left")
    for column in ("text", "data", "bss"):
        table.add_column(column, justify="right")
    for part in data["sizes"]:
        numbers = (f"{part[c]:,}" for c in ("text", "data", "bss"))
        table.add_row(part["group"], part["name"], *numbers)
    table.add_row("total", "", *(f"{sum(p[c] for p in data['sizes']):,}" for c in ("text", "data", "bss")))
    console.print(table)
    print(
        f"kernels: {data['kernel_text_bytes']:,} bytes of code and constants, {len(data['kernels'])} kernels"
    )
    pools = ", ".join(f"{name} {value:,}" for name, value in data["pools"].items())
    print(f"flash: {data['flash_bytes']:,} bytes of microcode and weights")
    print(f"pools: {pools} bytes (neutron_pools.h; planned is ExecuTorch's)")
    if data["cpu_operators"]:
        print(
            f"This firmware runs the program's {data['delegates']} delegate(s) only. The program also calls "
            f"{', '.join(data['cpu_operators'])} on the CPU: to run it all, link ExecuTorch's runtime with "
            "these operators and the delegate in runtime/executorch (docs/firmware.md)."
        )
    if "run" in data:
        _print_run(console, data["run"], given)
    print(f"image: {data['image']}")


def _print_run(console: Any, run: dict[str, Any], given: bool) -> None:
    from rich.table import Table

    table = Table("delegate", "kernel", box=None, padding=(0, 2, 0, 0), title="On QEMU's Cortex-M33",
                  title_justify="left")  # fmt: skip
    for column in ("calls", "instructions"):
        table.add_column(column, justify="right")
    for count in run["counts"]:
        row = (str(count["delegate"]), count["kernel"], f"{count['calls']:,}", f"{count['instructions']:,}")
        table.add_row(*row)
    table.add_row("total", "", "", f"{run['instructions']:,}")
    console.print(table)
    print("instructions, not cycles: the emulator does not model the pipeline; exact to 50 a call")
    print(f"stack: at most {run['stack_bytes']:,} bytes in use")
    inputs = "the given" if given else "random"
    print(f"outputs for {inputs} inputs: all {run['equal_bytes']:,} bytes equal the host simulator's")
