"""Builders of firmware; objects are shared by all tests through the user's cache."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from openneutron.firmware.build import Firmware, build_firmware
from openneutron.firmware.program import FirmwareProgram
from openneutron.firmware.sources import Sources
from tests.firmware.whole import find_test_sources

# Zephyr's sources are nobody's package: with a workspace of west the exported application is built for real.
collect_ignore = [] if os.environ.get("ZEPHYR_BASE") else ["test_zephyr.py"]


@pytest.fixture
def build(tmp_path) -> Callable[..., Firmware]:
    """Build a program's delegates, with only these kernels if a selection's text is given."""

    def make(what: FirmwareProgram, code: str | None = None, **more: object) -> Firmware:
        selection = None
        if code is not None:
            selection = tmp_path / "some_kernel_selection.c"
            selection.write_text(code)
        folder = tmp_path / ("all" if code is None else "selected")
        return build_firmware(what, folder, selection=selection, **more)

    return make


@pytest.fixture(scope="session")
def sources() -> Sources:
    """ExecuTorch and CMSIS-NN, as the environment names them or in the user's own place."""
    return find_test_sources()
