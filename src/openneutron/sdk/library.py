"""`eiq_neutron_sdk.neutron_library_utils`: the targets, and kernel selections of several models made one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from openneutron.converter.merge_kernels import main, merge_files
from openneutron.diagnostics import fail
from openneutron.sdk.targets import getNeutronTarget, getNeutronTargets, isNeutronTarget

__all__ = [
    "getNeutronTarget",
    "getNeutronTargets",
    "isNeutronTarget",
    "merge_command",
    "merge_kernel_selection_files",
]


def merge_kernel_selection_files(
    files: Iterable[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> None:
    """Write one kernel-selection file for all that are given."""
    merge_files([Path(file) for file in files], Path(output), _no_program)


def merge_command(argv: Sequence[str] | None = None) -> int:
    """`python -m eiq_neutron_sdk.neutron_library_utils.merge_kernel_selection_code`."""
    return main(sys.argv[1:] if argv is None else argv, _no_program)


def _no_program(path: Path) -> NoReturn:
    fail(
        "ON422",
        str(path),
        "is not a kernel-selection file",
        "`openneutron merge-kernels` takes programs too.",
    )
