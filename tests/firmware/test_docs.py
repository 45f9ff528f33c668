"""The C code in the documentation compiles, without a warning, against the headers it names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.firmware.programs import program
from tests.native import COMMON

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "firmware.md"
FIRMWARE = [f"-I{ROOT / 'runtime/firmware' / folder}" for folder in ("", "executorch")]


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_compile(tmp_path, number):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    codes = re.findall(r"^```c\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(codes) == 2
    (tmp_path / "example.c").write_text(codes[number])
    (tmp_path / "neutron_pools.h").write_text(program("two_parts").pools_header())
    command = ["gcc", *COMMON, f"-I{tmp_path}", *FIRMWARE, "-fsyntax-only", str(tmp_path / "example.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
