"""Build a Cortex-M firmware that runs a program, and run it under QEMU.

The image consists of ExecuTorch's runtime, the Neutron delegate and exactly the kernels the program calls;
with --bare it runs the delegates alone, without ExecuTorch. With --run QEMU executes every method on given
or random inputs, and every output is compared with the host's run. Inputs are those of the program, one
--input for each, in order; with --bare those of its delegates.

Several programs become one image: every method keeps its program's name, and all work in one memory, one
after the other, with each kernel linked once. With --application F.c, once for every file, the image runs an
application of your own, which calls the methods as runtime/firmware/executorch/application.h declares them;
with --run it reads and writes files of the output folder, and what it prints is printed.

With --serve the image takes any program over a serial line instead, as NXP's modelrunner does: programs are
then given with `openneutron run FILE.pte --board PORT`. It has the CPU operators of the given programs, or
those a board usually has.

ExecuTorch's source and CMSIS-NN's are those of --executorch-source and --cmsis-nn-source, or of the variables
EXECUTORCH_SOURCE and CMSIS_NN_SOURCE (a clone, or a tarball), or in ~/.local/share/openneutron/sources.
--sources says what is there, whether it fits, and how to get what is missing.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import fail, printable
from openneutron.inputs.seeds import check_seed
from openneutron.targets.table import DEFAULT_TARGET

if TYPE_CHECKING:
    from openneutron.firmware.cores import Core
    from openneutron.firmware.sources import Sources
    from openneutron.firmware.whole import WholeFirmware, WholeProgram
    from openneutron.firmware.whole_run import Runs, WholeRun

FORMATS = ("cmake", "mcux", "zephyr")
NAME = "firmware"
HELP = "build a Cortex-M firmware of a .pte, and run it under QEMU"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from openneutron.commands.compiling.arguments import parse_size
    from openneutron.firmware.cores import CORES, DEFAULT

    add = parser.add_argument
    add(
        "files",
        nargs="*",
        metavar="FILE.pte",
        help="programs of the open converter; several share one memory",
    )
    add("--serve", action="store_true", help="an image that takes programs over a serial line")
    add("--all-operators", action="store_true", help="with --serve: all of ExecuTorch's operators")
    add("--port", type=int, metavar="N", help="with --serve --run: a TCP port (default: a pty)")
    add("--sources", action="store_true", help="say which sources are there, and how to get them")
    add("--core", metavar="CORE", help=f"{', '.join(CORES)} (default: the chip's, {DEFAULT.name})")
    add(
        "--target",
        metavar="TARGET",
        help="of --serve and of programs without delegates (default: the program's)",
    )
    add("--bare", action="store_true", help="the delegates alone, without ExecuTorch's runtime")
    add("--smallest", action="store_true", help="as --bare, if no operator is outside the delegates")
    add("--executorch-source", metavar="PATH", help="a clone or tarball (default: $EXECUTORCH_SOURCE)")
    add("--cmsis-nn-source", metavar="PATH", help="likewise, for cortex_m operators ($CMSIS_NN_SOURCE)")
    add("--kernel-selection", metavar="F.c", help="link these Neutron kernels (default: the program's own)")
    add("--export", metavar="DIR", help="write what an application of one's own needs, as a project")
    add("--format", choices=FORMATS, help="of --export: CMake's, MCUXpresso's or Zephyr's (default: cmake)")
    add(
        "--application", action="append", default=[], metavar="F.c", help="run this C or C++ code, not a loop"
    )
    add("--run", action="store_true", help="run it under QEMU and compare with the host")
    add("--input", action="append", default=[], metavar="FILE", help="an .npy, once per input")
    add("--samples", type=int, default=1, metavar="N", help="how many random inputs to run (default: 1)")
    add("--seed", type=int, default=0, help="of random inputs")
    add("--sram", type=parse_size, metavar="BYTES", help="SRAM it may use, e.g. 512K (default: all)")
    add("-o", "--output", metavar="DIR", help="where to build (default: <program>_firmware)")
    add("--json", action="store_true", help="print the result as one JSON object")


def execute(args: argparse.Namespace) -> int:
    """Build, run, print."""
    from openneutron.commands.devices import firmware_bare
    from openneutron.firmware.whole import read_several

    if args.sources:
        return _sources(args)
    if args.serve:
        from openneutron.commands.devices.firmware_serve import serve

        return serve(args)
    if not args.files:
        fail("ON104", "FILE.pte", "there is no program", "Give one, or --serve for an image that takes any.")
    if len(args.files) > 1 and (args.bare or args.format == "mcux"):
        fail("ON104", "FILE.pte", "several programs share ExecuTorch's runtime, in an image or CMake project",
             "Give one, or leave out --bare and --format mcux.")  # fmt: skip
    if args.application and (args.bare or args.input or args.export):
        fail("ON104", "option --application", "goes with a whole program alone, which it feeds itself",
             "Leave out --bare, --input and --export.")  # fmt: skip
    for name in ("all_operators", "port"):
        if getattr(args, name):
            fail("ON104", f"option --{name.replace('_', '-')}", "has an effect with --serve only")
    args.file = args.files[0]
    check_seed(args.seed)
    if args.samples < 1:
        fail("ON104", "option --samples", f"must be positive (got {args.samples})")
    if args.bare and args.export:
        fail("ON104", "option --export", "exports a program for ExecuTorch's runtime", "Leave out --bare.")
    if args.format and not args.export:
        fail("ON104", "option --format", "is the format of --export", "Add --export DIR.")
    if args.export and args.format == "mcux" and _export_stock(args):
        return 0
    if args.bare:
        firmware_bare.execute(args)
        return 0
    program = read_several([Path(f) for f in args.files], args.target, named=bool(args.application))
    if (
        args.smallest
        and len(args.files) == 1
        and not args.application
        and program.delegates
        and not program.operators
    ):
        firmware_bare.execute(args)
        return 0
    _whole(args, program)
    return 0


def _export_stock(args: argparse.Namespace) -> bool:
    """A program of NXP's converter is exported without being run: no emulator has the NPU."""
    from openneutron.firmware.export_sdk import export_mcux, is_stock_program, stock_firmware

    if not is_stock_program(Path(args.file)):
        return False
    if args.run:
        fail("ON104", "option --run", "NXP's microcode does not run under QEMU", "Leave it out.")
    firmware, sources = stock_firmware(Path(args.file), args.executorch_source, args.target or DEFAULT_TARGET)
    export_mcux(firmware, Path(args.export), sources)
    data = {"export": args.export, "cpu_operators": list(firmware.program.operators),
            "pools": asdict(firmware.pools)}  # fmt: skip
    print(json.dumps(data, indent=2) if args.json else f"export: {args.export}")
    return True


def _sources(args: argparse.Namespace) -> int:
    """Where both sources are and whether they fit; 1 if a program could not be built."""
    from openneutron.firmware.sources import source_states, sources_folder

    states = source_states()
    if args.json:
        rows = [{**vars(s), "place": s.place and str(s.place)} for s in states]
        print(json.dumps({"folder": str(sources_folder()), "sources": rows}, indent=2))
    else:
        for state in states:
            state_text = "fits the installed executorch" if not state.problem else state.problem
            print(f"{state.name}: {f'{state.place}: ' if state.place else ''}{state_text}")
            if state.problem:
                print(f"  {state.command}")
    return 1 if any(state.problem for state in states) else 0


def _whole(args: argparse.Namespace, program: WholeProgram) -> None:
    from openneutron.commands.progress import Steps
    from openneutron.firmware.check import check_whole
    from openneutron.firmware.cores import find_firmware_core
    from openneutron.firmware.export import export_program
    from openneutron.firmware.export_sdk import export_mcux, export_zephyr
    from openneutron.firmware.whole import build_whole
    from openneutron.firmware.whole_run import measure

    steps, core, sram = Steps(), find_firmware_core(args.core, program.target), args.sram
    name = Path(args.file).stem if len(args.files) == 1 else program.name  # where a report looks for counts
    folder = Path(args.output or f"{name}_firmware")
    selection = Path(args.kernel_selection) if args.kernel_selection else None
    inputs = _inputs(args, program)
    sources = check_whole(program, core, args.executorch_source, args.cmsis_nn_source, sram_bytes=sram)
    if args.application:
        _own(args, program, folder, sources, core)
        return
    with steps.step("Building"):
        firmware = build_whole(program, folder, sources, core=core, selection=selection, sram_bytes=sram)
    with steps.step("Measuring its memory"):
        firmware = measure(firmware, sram)
    data = _built(firmware)
    if args.run:
        with steps.step("Running under QEMU"):
            _add_run(data, firmware, inputs)
    if args.export:
        with steps.step("Exporting"):
            export = {"cmake": export_program, "mcux": export_mcux, "zephyr": export_zephyr}
            export[args.format or "cmake"](firmware, Path(args.export), sources)
        data["export"] = args.export
    if args.json:
        print(json.dumps(data, indent=2))
    else:
        _print(data, bool(args.input))


def _own(args: argparse.Namespace, program: WholeProgram, folder: Path, sources: Sources, core: Core) -> None:
    """An image with the user's application; what its pools need is known when it has run."""
    from openneutron.commands.progress import Steps
    from openneutron.firmware.application import build_application, measure_application

    files, steps = [Path(file) for file in args.application], Steps()
    with steps.step("Building"):
        firmware = build_application(program, files, folder, sources, core=core, sram_bytes=args.sram)
    data = _built(firmware)
    if args.run:
        with steps.step("Running under QEMU"):
            firmware, run = measure_application(firmware, args.sram)
        data = _built(firmware)
        data["application"] = {"text": run.text, "runs": run.runs, "instructions": run.instructions,
                               "own_instructions": run.own_instructions}  # fmt: skip
    if args.json:
        print(json.dumps(data, indent=2))
        return
    _print(data, False)
    for name, runs in run.runs.items() if args.run else ():
        print(f"{name}: {runs:,} runs, {run.instructions[name]:,} instructions")
    if args.run:
        print(f"application: {run.own_instructions:,} instructions of its own")
        print(run.text)


def _inputs(args: argparse.Namespace, program: WholeProgram) -> Runs:
    from openneutron.firmware.whole_run import given_runs, random_runs
    from openneutron.inputs.samples import read_arrays

    if not args.input:
        return random_runs(program, args.samples, args.seed)
    return given_runs(program, [array for name in args.input for array in read_arrays(Path(name))])


def _built(firmware: WholeFirmware) -> dict[str, Any]:
    program, size = firmware.program, firmware.size
    return {
        "image": str(firmware.image),
        "core": firmware.core.name,
        "methods": list(program.info.methods),
        "delegates": len(program.delegates),
        "cpu_operators": list(program.operators),
        "pools": asdict(firmware.pools),
        "sram_bytes": firmware.pools.total + sum(p.data + p.bss for p in size.parts),
        "flash_bytes": len(program.data),
        "kernels": list(size.kernels),
        "text_bytes": size.text,
        "groups": [_size(part) for part in size.groups],
        "sizes": [_size(part) for part in size.parts],
    }


def _size(part: Any) -> dict[str, Any]:
    return dict(vars(part))


def _add_run(data: dict[str, Any], firmware: WholeFirmware, inputs: Runs) -> None:
    from openneutron.firmware.counts import counted_steps, write_counts
    from openneutron.firmware.whole_run import compare_runs, host_runs, run_whole

    run: WholeRun = run_whole(firmware, inputs)
    comparison = compare_runs(firmware.program, run.outputs, host_runs(firmware.program, inputs))
    steps = counted_steps(firmware.program, run)
    write_counts(firmware, steps)
    data["run"] = {
        "runs": sum(len(runs) for runs in inputs.values()),
        "values": comparison.values,
        "equal": comparison.equal,
        "largest_difference": comparison.worst,
        "instructions": {name: run.instructions(name) for name in firmware.program.info.methods},
        "steps": [step.as_data() for step in steps],
    }


def _print(data: dict[str, Any], given: bool) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console

    console = make_console()
    columns = ("text", "data", "bss")
    table = Table("", "part", box=None, padding=(0, 2, 0, 0), title="Bytes linked", title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for group in data["groups"]:
        table.add_row(group["group"], "", *(f"{group[c]:,}" for c in columns))
        parts = [p for p in data["sizes"] if p["group"] == group["group"] and "kernel" in p["group"]]
        for part in parts:
            table.add_row("", part["name"], *(f"{part[c]:,}" for c in columns))
    table.add_row("total", "", *(f"{sum(p[c] for p in data['groups']):,}" for c in columns))
    console.print(table)
    pools = ", ".join(f"{name} {value:,}" for name, value in data["pools"].items() if name != "lookup")
    print(f"flash: {data['flash_bytes']:,} bytes of program, {data['text_bytes']:,} of code and constants")
    print(f"SRAM: {data['sram_bytes']:,} bytes; pools: {pools} (measured; neutron_pools.h)")
    if "run" in data:
        _print_run(console, data, given)
    if "export" in data:
        print(f"export: {printable(str(data['export']))}")
    print(f"image: {printable(str(data['image']))}")


def _print_run(console: Any, data: dict[str, Any], given: bool) -> None:
    from rich.table import Table

    run = data["run"]
    table = Table("method", "step", box=None, padding=(0, 2, 0, 0), title=f"On QEMU's {data['core']}",
                  title_justify="left")  # fmt: skip
    for column in ("instructions", "estimated cycles on the chip"):
        table.add_column(column, justify="right")
    for step in run["steps"]:
        numbers = (f"{step['instructions']:,}", f"{step['estimated_cycles']:,}")
        table.add_row(step["method"], step["operator"], *numbers)
        for kernel, count in step["kernels"].items():
            table.add_row("", f"  {kernel}", f"{count:,}")
        if step["kernels"]:
            table.add_row("", "  border", f"{step['border']:,}")
    for name, total in run["instructions"].items():
        table.add_row(name, "total", f"{total:,}")
    console.print(table)
    print("instructions, not cycles: the emulator does not model the pipeline; exact to 50 a step")
    kind = "the given" if given else "random"
    equal = f"{run['equal']:,} of {run['values']:,} values equal the host's"
    what = f"{run['runs']} run(s) on {kind} inputs: {equal}"
    rest = f", the others within {run['largest_difference']:.1e} of the largest"
    print(what + (rest if run["equal"] != run["values"] else ""))
