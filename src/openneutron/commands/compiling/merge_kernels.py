"""Make one kernel-selection file of several, for an application with several models.

Takes the *_kernel_selection.c files that `compile --dump_kernel_selection_code` writes, and .pte programs.
All must come from one version of openneutron and be for one target.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from openneutron.diagnostics import printable

NAME = "merge-kernels"
HELP = "merge kernel-selection files of several models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="*_kernel_selection.c or .pte files")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.c", help="the file to write")


def execute(args: argparse.Namespace) -> None:
    """Read, check, merge, write."""
    from openneutron.converter.merge_kernels import merge_files
    from openneutron.package.pte import inspect_program

    merged = merge_files([Path(f) for f in args.files], Path(args.output), inspect_program)
    names = ", ".join(kernel.name for kernel in sorted(merged.kernels))
    print(f"{printable(args.output)}: {len(merged.kernels)} kernels ({names})")
