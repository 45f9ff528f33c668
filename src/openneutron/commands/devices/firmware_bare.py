"""Firmware that runs the delegates of a program alone, without ExecuTorch: `openneutron firmware --bare`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import printable

if TYPE_CHECKING:
    from openneutron.firmware.build import Firmware
    from openneutron.firmware.emulator import FirmwareRun


def execute(args: argparse.Namespace) -> None:
    """Build, run, print."""
    from openneutron.commands.progress import Steps
    from openneutron.firmware.build import build_firmware
    from openneutron.firmware.cores import find_firmware_core
    from openneutron.firmware.program import read_firmware_program

    steps = Steps()
    program = read_firmware_program(Path(args.file))
    core = find_firmware_core(args.core, program.target)
    folder = Path(args.output or f"{Path(args.file).stem}_firmware")
    selection = Path(args.kernel_selection) if args.kernel_selection else None
    with steps.step("Building"):
        firmware = build_firmware(
            program,
            folder,
            core=core,
            selection=selection,
            select=True,
            sram_bytes=args.sram,
        )
    data = _built(firmware) | {"core": core.name}
    if args.run:
        with steps.step("Running under QEMU"):
            _add_run(data, *_run(args, firmware))
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        _print(data, bool(args.input))


def _run(args: argparse.Namespace, firmware: Firmware) -> tuple[FirmwareRun, int]:
    from openneutron.firmware.emulator import compare, given_inputs, random_inputs, run_firmware, run_host
    from openneutron.inputs.samples import read_arrays

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
            f"{', '.join(data['cpu_operators'])} on the CPU: to run it all, leave out --bare."
        )
    if "run" in data:
        _print_run(console, data, given)
    print(f"image: {printable(str(data['image']))}")


def _print_run(console: Any, data: dict[str, Any], given: bool) -> None:
    from rich.table import Table

    run = data["run"]
    table = Table("delegate", "kernel", box=None, padding=(0, 2, 0, 0), title=f"On QEMU's {data['core']}",
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
