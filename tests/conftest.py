"""Settings shared by all tests."""

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# The suite runs with two workers: a thread pool in each would only make them wait for one another.
# Set before torch is imported, which is when it reads them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
from hypothesis import settings

from openneutron.firmware.sources import CMSIS_NN, EXECUTORCH, source_place
from tests.durations import Durations
from tests.trained import SHARED

# Python looks for garbage each time 700 more objects live: with all that torch has imported, a fifth of the
# suite's work. Every compile makes some hundred thousand objects, so that nothing piles up.
gc.set_threshold(50_000, 20, 20)

# No deadline: the first example of a test pays for imports. Derandomized in CI, so that a red build is one
# everybody can repeat; `HYPOTHESIS_PROFILE=explore` searches afresh.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What a marked test needs besides Python (one of each), and the variable that makes its absence a failure.
NEEDS = {
    "firmware": ((("arm-none-eabi-gcc",), ("qemu-system-arm",)), "OPENNEUTRON_REQUIRE_FIRMWARE"),
    "aarch64": ((("aarch64-linux-gnu-gcc",), ("qemu-aarch64",)), "OPENNEUTRON_REQUIRE_AARCH64"),
    "browser": ((("chromium", "chromium-browser", "google-chrome"),), "OPENNEUTRON_REQUIRE_BROWSER"),
}


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Rehearsals are remembered for one session, not in the user's own folder.

    Objects of firmware stay there, where all workers and later sessions find them: a name says all they are
    made of.
    """
    with pytest.MonkeyPatch.context() as patch:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        if "OPENNEUTRON_CACHE" not in os.environ:
            patch.setenv("OPENNEUTRON_CACHE", str(base / "openneutron" / "firmware"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OPENNEUTRON_NO_CACHE", "1")  # a test of the compiler compiles
        yield


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """No test leaves gradients switched off for the whole process, as a generator inside `no_grad` can."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("gradients are switched off behind this test")


def pytest_configure(config: pytest.Config) -> None:
    """Durations are recorded in every run."""
    config.pluginmanager.register(Durations())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each worker's share begins with its files of slow tests: those left to be shared at the end are quick.

    `--dist worksteal` gives every worker an equal number of tests that follow each other.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    shares: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))]
    for file in sorted(files, key=lambda file: file not in slow):
        min(shares, key=len).extend(files[file])
    items[:] = [item for share in shares for item in share]


def pytest_report_header() -> str:
    """One line about what is not in the repository."""
    models = "there" if (SHARED / "models").is_dir() else "not there, the zoo's networks stand in"
    found = all(source_place(name) for name in (EXECUTORCH, CMSIS_NN))
    sources = "there" if found else "not there, firmware with ExecuTorch's runtime is not tested"
    return f"../shared/models: {models}; sources of ExecuTorch and CMSIS-NN: {sources}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs tools is skipped without them, but fails where they are required (CI)."""
    for marker, (tools, required) in NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        missing = [names[0] for names in tools if not any(map(shutil.which, names))]
        if missing:
            reason = f"not installed: {', '.join(missing)}"
            if os.environ.get(required) == "1":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)
