"""The C half of the examples' library, compiled for this machine as for the chip."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from examples.apps.frame import LIB
from tests.native import COMMON


def library(name: str, folder: Path, *others: str) -> ctypes.CDLL:
    """A file of examples/apps/lib, with others that it calls."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    path = folder / f"lib{name}.so"
    flags = [*COMMON, "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
    files = [str(LIB / f"{each}.c") for each in (name, *others)]
    subprocess.run(["gcc", *flags, *files, "-o", str(path), "-lm"], check=True)
    return ctypes.CDLL(str(path))
