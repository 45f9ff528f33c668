"""Make one kernel-selection file of several, for an application with several models.

    python -m openneutron.merge_kernel_selection_code -input-files a.c b.c ... -output-file merged.c

`openneutron merge-kernels` is the same. Besides the C files a compile writes, .pte programs are taken: which
kernels a program needs is in its microcode.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from openneutron.converter.kernel_selection import (
    KernelSelection,
    check_unedited,
    merge_selections,
    read_selection,
)
from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import read_text, write_atomically


class Program(Protocol):
    """What is asked of a .pte: its delegates' payloads (`package.pte.ProgramInfo`)."""

    def payloads(self) -> Sequence[Any]: ...


Inspect = Callable[[Path], Program]


def merge_files(inputs: Sequence[Path], output: Path, inspect: Inspect) -> KernelSelection:
    """Write the union of the selections; nothing is written unless all of them are sound and fit.

    `inspect` reads a .pte, which is a later stage's matter.
    """
    named, texts = [], []
    for path in inputs:
        if path.suffix == ".pte":
            named += program_selections(path, inspect)
            continue
        text = _read(path)
        named.append((str(path), read_selection(text, str(path))))
        texts.append((text, named[-1][1], str(path)))
    # Versions first: a file of another version is also laid out otherwise, but that is not what is wrong.
    merged = merge_selections(named)
    for text, selection, where in texts:
        check_unedited(text, selection, where)
    write_atomically(output, merged.code().encode())
    return merged


def program_selections(path: Path, inspect: Inspect) -> list[tuple[str, KernelSelection]]:
    """The selection of every delegate in a .pte, with a name for messages."""
    from openneutron.compiler.microcode.format import decode

    payloads = inspect(path).payloads()
    if not payloads or not all(p.is_open for p in payloads):
        fail("ON706", str(path), "the program has no delegate that was made by the open converter"
             if not payloads else "NXP's converter made a delegate of this program",
             "Only programs of the open converter say which kernels they need.")  # fmt: skip
    selections = []
    for number, payload in enumerate(payloads):
        where = f"{path}: delegate {number}"
        program = decode(payload.microcode, where)
        stamp = payload.stamp
        selections.append(
            (where, KernelSelection(stamp.converter, program.target, frozenset(program.kernels)))
        )
    return selections


def _read(path: Path) -> str:
    return read_text(path, "ON422")


def main(argv: Sequence[str], inspect: Inspect) -> int:
    """The command in the spelling of ExecuTorch's NXP backend."""
    parser = argparse.ArgumentParser(
        prog="python -m openneutron.merge_kernel_selection_code",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-input-files", "--input-files", nargs="+", required=True, type=Path, metavar="FILE")
    parser.add_argument("-output-file", "--output-file", required=True, type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    try:
        merged = merge_files(args.input_files, args.output_file, inspect)
    except OpenNeutronError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{args.output_file}: {len(merged.kernels)} kernels of {len(args.input_files)} files")
    return 0
