"""Print the microcode of a .pte (or of a .tflite, compiled on the way)."""

from __future__ import annotations

import argparse
from pathlib import Path

NAME = "disasm"
HELP = "print the microcode of a program"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="a .pte or a .tflite")


def execute(args: argparse.Namespace) -> None:
    """Print every delegate's microcode."""
    from openneutron.compiler.microcode.format import decode, disassemble

    for number, (title, microcode, is_open) in enumerate(_microcodes(Path(args.file))):
        print(f"{'' if number == 0 else chr(10)}; delegate {number}: {title}")
        if is_open:
            print("\n".join(disassemble(decode(microcode, f"{args.file}: delegate {number}"))))
        else:
            print("; made by NXP's converter: its microcode is not public and is not shown")


def _microcodes(path: Path) -> list[tuple[str, bytes, bool]]:
    if path.suffix == ".tflite":
        from openneutron.run.litert import load_litert

        return [("compiled from LiteRT by this version", load_litert(path).compiled.microcode, True)]
    from openneutron.package.pte import inspect_program

    payloads = inspect_program(path).payloads()
    if not payloads:
        return []
    return [(f"{p.stamp.converter}, runs on {p.stamp.runs_on}", p.microcode, p.is_open) for p in payloads]
