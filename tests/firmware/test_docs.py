"""The C code in the documentation compiles, without a warning, against the headers it names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.firmware.programs import program
from tests.native import COMMON

PAGE = Path(__file__).resolve().parents[2] / "docs" / "firmware.md"


def test_the_example_compiles(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (code,) = re.findall(r"^```c\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "example.c").write_text(code)
    (tmp_path / "neutron_pools.h").write_text(program("two_parts").pools_header())
    command = ["gcc", *COMMON, f"-I{tmp_path}", "-fsyntax-only", str(tmp_path / "example.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
