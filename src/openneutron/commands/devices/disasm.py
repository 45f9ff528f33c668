"""Print the microcode of a .pte (or of a .tflite, compiled on the way).

Of a program that another flow made, what can be known of its delegates is printed, and what cannot is said.
"""

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

    path = Path(args.file)
    if path.suffix == ".tflite":
        from openneutron.run.litert import load_litert

        print("; delegate 0: compiled from LiteRT by this version")
        print("\n".join(disassemble(decode(load_litert(path).compiled.microcode, args.file))))
        return
    from openneutron.board.describe import describe_program
    from openneutron.package.pte import check_program, parse_program, read_program

    data, where = read_program(path)
    info = parse_program(data, where, check_program(data, where))
    payloads = [d.known_payload() for d in info.delegates]
    if not payloads or any(p is None or not p.is_open for p in payloads):
        print("\n".join(f"; {line}" for line in describe_program(data, info, where)))
    for number, payload in enumerate(payloads):
        if payload is not None and payload.is_open:
            stamp = payload.stamp
            print(f"{'' if number == 0 else chr(10)}; delegate {number}: {stamp.converter}, "
                  f"runs on {stamp.runs_on}")  # fmt: skip
            print("\n".join(disassemble(decode(payload.microcode, f"{args.file}: delegate {number}"))))
