"""`pytest -p openneutron.sdk.plugin`: tests of ExecuTorch's NXP backend over the open converter.

The session begins when pytest loads the plugin, before any test module or conftest.py. What the converter
refused is shown with the test that failed of it. Workers of pytest-xdist join the session of the process that
started them.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from openneutron.sdk.session import open_sdk, project_folder, said

_open = ExitStack()
_folder = _open.enter_context(open_sdk())


def pytest_sessionstart(session: Any) -> None:
    """ExecuTorch's wheel has its tests, but not the settings of the simulator that they look for."""
    del session
    os.environ["PROJECT_DIR"] = str(project_folder(Path(_folder)))


def pytest_runtest_setup(item: Any) -> None:
    """What is said from here on belongs to this test."""
    item.stash_said = len(said())


def pytest_exception_interact(node: Any, report: Any) -> None:
    """Show what the converter refused."""
    if lines := said()[getattr(node, "stash_said", 0) :]:
        report.sections.append(("openneutron.sdk", "\n".join(lines)))


def pytest_unconfigure(config: Any) -> None:
    """End the session."""
    del config
    _open.close()
