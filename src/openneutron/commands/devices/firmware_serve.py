"""`firmware --serve`: an image that takes programs over a serial line, and QEMU running it."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from openneutron.diagnostics import fail, printable
from openneutron.targets.table import DEFAULT_TARGET

if TYPE_CHECKING:
    from openneutron.firmware.cores import Core

_REFUSED = ("bare", "smallest", "export", "kernel_selection", "input", "sram")
_PTY = re.compile(r"redirected to (\S+)")


def serve(args: argparse.Namespace) -> int:
    """Build the image; with --run, emulate it until it is interrupted."""
    from openneutron.commands.progress import Steps
    from openneutron.firmware.cores import find_firmware_core
    from openneutron.firmware.operators import wheel_operators
    from openneutron.firmware.serve import build_server, default_operators

    for name in _REFUSED:
        if getattr(args, name):
            fail("ON104", f"option --{name.replace('_', '-')}", "has no effect with --serve", "Leave it out.")
    if args.port is not None and not (args.run and 0 < args.port < 65536):
        fail("ON104", "option --port", f"is a TCP port of --serve --run, from 1 to 65535 (got {args.port})")
    core = find_firmware_core(args.core, args.target or DEFAULT_TARGET)
    operators = _operators(args.files) if args.files else default_operators()
    if args.all_operators:
        operators = tuple(sorted({*wheel_operators(), *operators}))
    folder = Path(args.output or "serve_firmware")
    with Steps().step("Building"):
        image = build_server(core, operators, folder, executorch=args.executorch_source,
                             cmsis_nn=args.cmsis_nn_source)  # fmt: skip
    if args.json:
        print(
            json.dumps({"image": str(image), "core": core.name, "cpu_operators": list(operators)}, indent=2)
        )
    else:
        print(f"CPU operators: {len(operators)}; Neutron kernels: all")
        print(f"image: {printable(str(image))}")
    return _emulate(core, image, args.port) if args.run else 0


def _operators(files: list[str]) -> tuple[str, ...]:
    from openneutron.package.pte import inspect_program

    infos = [inspect_program(Path(file)) for file in files]
    return tuple(sorted({op for info in infos for m in info.methods.values() for op in m.operators}))


def _emulate(core: Core, image: Path, port: int | None) -> int:
    from openneutron.firmware.emulator import end_with_parent
    from openneutron.firmware.serve import emulator_command

    serial = "pty" if port is None else f"tcp:127.0.0.1:{port},server=on,wait=off"
    process = subprocess.Popen(
        emulator_command(core, image, serial),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=end_with_parent(),
    )
    assert process.stdout is not None
    try:
        if port is not None:
            print(f"board: socket://127.0.0.1:{port} (Ctrl-C ends it)", flush=True)
        said = ""
        for line in process.stdout:
            said += line
            if terminal := _PTY.search(line):
                print(f"board: {terminal[1]} (Ctrl-C ends it)", flush=True)
        fail(
            "ON704",
            "qemu",
            f"the emulator ended: {said.strip()[-300:] or process.wait()}",
            "Is the port free?",
        )
    finally:
        process.kill()
        process.wait()
