"""The C half of the examples' library, compiled for this machine as for the chip."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from examples.apps.frame import LIB
from tests.native import COMMON


def library(name: str, folder: Path) -> ctypes.CDLL:
    """A file of examples/apps/lib."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    path = folder / f"lib{name}.so"
    flags = [*COMMON, "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, str(LIB / f"{name}.c"), "-o", str(path), "-lm"], check=True)
    return ctypes.CDLL(str(path))
