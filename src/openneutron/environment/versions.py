"""What differs between the versions of Python and of ExecuTorch: the one place that knows.

Nothing here imports ExecuTorch; its version is read from the installed package's metadata.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from openneutron.diagnostics import fail

__all__ = ["EXECUTORCH", "PYTHONS", "SEEN", "executorch_folder", "executorch_library", "executorch_version",
           "require_executorch", "tomllib"]  # fmt: skip

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ((3, 10), (3, 13))  # the first and the last that are tested
EXECUTORCH = "1.5.1"

# What was seen with other versions; `openneutron doctor` prints it.
SEEN = {
    "1.5.1": "works: everything is tested with it",
    "1.5.0": "refused: CifarNet ran the same when built against it, the rest is not tested",
    "1.4.1": "refused: its wheel has no libexecutorch.so that a delegate could register itself with",
}


def executorch_version() -> str | None:
    """The version of the installed executorch without its local label, or None."""
    try:
        return version("executorch").split("+")[0]
    except PackageNotFoundError:
        return None


def executorch_folder() -> Path:
    """Where the installed executorch wheel is."""
    spec = importlib.util.find_spec("executorch")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def executorch_library(name: str) -> Path:
    """A library of the installed executorch wheel."""
    return executorch_folder() / "lib" / name


@cache
def require_executorch() -> None:
    """Fail, in one sentence, unless the ExecuTorch that OpenNeutron is made for is installed."""
    version = executorch_version()
    if version != EXECUTORCH:
        what = f"executorch {version} is installed" if version else "executorch is not installed"
        fail(
            "ON520",
            "executorch",
            f"OpenNeutron needs executorch {EXECUTORCH}, and {what}",
            f"pip install executorch=={EXECUTORCH}",
        )
