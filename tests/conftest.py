"""Settings shared by all tests."""

import os
import shutil

# The suite runs with two workers: a thread pool in each would only make them wait for one another.
# Set before torch is imported, which is when it reads them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
from hypothesis import settings

# No deadline: the first example of a test pays for imports. Derandomized in CI, so that a red build is one
# everybody can repeat; `HYPOTHESIS_PROFILE=explore` searches afresh.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

CROSS_TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `firmware` is skipped without the cross tools, but fails where they are required (CI)."""
    missing = [tool for tool in CROSS_TOOLS if shutil.which(tool) is None]
    if missing and item.get_closest_marker("firmware"):
        reason = f"not installed: {', '.join(missing)}"
        if os.environ.get("OPENNEUTRON_REQUIRE_FIRMWARE") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
