"""The pinned packages: all of what the project asks for, each archive with its hash."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from openneutron.environment.versions import tomllib

ROOT = Path(__file__).parents[2]
PINS = sorted((ROOT / "constraints").glob("python3.*.txt"))


def pins(file: Path) -> dict[str, int]:
    """How many hashes each pinned package has."""
    text = file.read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [re.match(r"([\w.-]+)==[\w.]+ ", line + " ") for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {_plain(m[1]): line.count("--hash=sha256:") for m, line in zip(found, lines, strict=True) if m}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("file", PINS, ids=lambda f: f.stem)
def test_everything_but_torch_is_pinned_with_hashes(file):
    found = pins(file)
    assert found and all(found.values()), [name for name, hashes in found.items() if not hashes]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["dependencies"], *project["optional-dependencies"].values()
    asked = {_plain(re.match(r"[\w.-]+", line)[0]) for group in groups for line in group}
    assert asked - found.keys() - {"tomli"} == {"torch", "openneutron"}
    assert ("tomli" in found) == (file.stem == "python3.10")
    exact = dict(line.split("==") for line in project["dependencies"] if "==" in line)
    for name, version in exact.items():
        assert name == "torch" or f"\n{name}=={version} " in "\n" + file.read_text()


def test_what_torch_asks_for_is_pinned_too():
    """PyPI's build brings CUDA's packages along: each has its hashes, and nothing else is downloaded."""
    found = pins(ROOT / "constraints" / "torch-cuda.txt")
    assert all(found.values()) and "torch" not in found and {"triton", "nvidia-cublas"} <= found.keys()
    for file in PINS:
        assert not found.keys() & pins(file).keys(), "one pin a package"
    recipe = (ROOT / "Makefile").read_text().partition("$(DEPS): ")[2].partition("touch")[0]
    installs = [line for line in recipe.splitlines() if "PIP) install" in line]
    assert len(installs) == 4
    assert all("--no-deps" in line for line in installs[:3]) and "not pinned" in recipe
    assert [line for line in installs[:3] if "--require-hashes" not in line] == [
        "\t$(PIP) install --progress-bar off --no-deps $(TORCH)"
    ]


@pytest.mark.parametrize("install", ["no", ""])
def test_make_says_what_it_would_install(tmp_path, install):
    """Before anything is installed, and without root nothing is: the tests that need it are skipped."""
    for tool in ("bash", "grep", "find", "sed", "uname", "make", "sh"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    log = tmp_path / "log"
    for tool in ("sudo", "apt-get"):
        (tmp_path / tool).write_text(f'#!/bin/bash\necho "{tool} $*" >> {log}\nexit 1\n')
        (tmp_path / tool).chmod(0o755)
    (tmp_path / "id").write_text("#!/bin/bash\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    command = ["make", "--no-print-directory", "-C", str(ROOT), f"INSTALL={install}", "cross-tools"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "firmware tests need: gcc-arm-none-eabi" in done.stdout
    assert "browser tests need: chromium" in done.stdout
    assert "cannot run" in done.stderr
    called = log.read_text().splitlines() if log.exists() else []
    assert set(called) == (set() if install else {"sudo -n true"})
