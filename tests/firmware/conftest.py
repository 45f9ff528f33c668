"""The runtime for the Cortex-M33, built once, and a builder of firmware."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from openneutron.firmware.build import Firmware, build_firmware, build_library
from openneutron.firmware.program import FirmwareProgram


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    return build_library(tmp_path_factory.mktemp("cortex_m33"))


@pytest.fixture
def build(library, tmp_path) -> Callable[..., Firmware]:
    """Build a program, with only these kernels if a selection's text is given."""

    def make(what: FirmwareProgram, code: str | None = None, **more: object) -> Firmware:
        selection = None
        if code is not None:
            selection = tmp_path / "some_kernel_selection.c"
            selection.write_text(code)
        folder = tmp_path / ("all" if code is None else "selected")
        return build_firmware(what, folder, selection=selection, library=library, **more)

    return make
