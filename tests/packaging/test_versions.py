"""Python and ExecuTorch versions: what is refused, and that the pins hold together."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from openneutron.diagnostics import OpenNeutronError
from openneutron.environment import versions as compat
from openneutron.environment.versions import tomllib
from openneutron.run import delegate

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [f"3.{minor}" for minor in range(compat.PYTHONS[0][1], compat.PYTHONS[1][1] + 1)]


@pytest.fixture
def installed(monkeypatch):
    def install(version):
        monkeypatch.setattr(compat, "executorch_version", lambda: version)
        compat.require_executorch.cache_clear()

    yield install
    compat.require_executorch.cache_clear()


@pytest.mark.parametrize(
    ("version", "said"), [("1.4.1", "executorch 1.4.1 is installed"), (None, "not installed")]
)
def test_another_executorch_is_refused_in_one_sentence(version, said, installed):
    installed(version)
    import openneutron

    with pytest.raises(OpenNeutronError, match=said) as raised:
        openneutron.compile_model  # noqa: B018
    assert raised.value.diagnostic.code == "ON520"
    assert f"pip install executorch=={compat.EXECUTORCH}" in str(raised.value)
    assert openneutron.NeutronTargetSpec  # needs none


def test_libraries_built_for_another_executorch_are_not_loaded(monkeypatch, tmp_path):
    (tmp_path / "executorch-version").write_text("1.5.0")
    monkeypatch.setattr(delegate, "NATIVE", tmp_path)
    with pytest.raises(OpenNeutronError, match=r"built for executorch 1\.5\.0, but 1\.5\.1 is installed"):
        delegate._check_built_for("1.5.1")


def test_the_installed_executorch_is_the_one_that_is_asked_for():
    assert f"executorch=={compat.EXECUTORCH}" in PROJECT["dependencies"]
    assert compat.executorch_version() == compat.EXECUTORCH in compat.SEEN


def test_every_python_has_its_pins():
    first, last = compat.PYTHONS
    assert PROJECT["requires-python"] == f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"
    assert {file.stem.removeprefix("python") for file in (ROOT / "constraints").glob("python*.txt")} == set(
        PYTHONS
    )


def test_nothing_needs_a_newer_python_than_the_oldest():
    """Only what runs the tests is here; the others must at least parse what they are given."""
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, timeout=20)
    import ast

    for file in files.stdout.split():
        ast.parse((ROOT / file).read_text(), file, feature_version=compat.PYTHONS[0])
    only_newer = re.compile(
        r"^\s*(import tomllib|from typing import .*\b(Self|override)\b|from enum import .*StrEnum)", re.M
    )
    found = [f for f in files.stdout.split() if only_newer.search((ROOT / f).read_text())]
    assert found == ["src/openneutron/environment/versions.py"] or not files.stdout, sys.version
