"""The patches of docs/upstream.md apply, to the files of the installed ExecuTorch that they change."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from openneutron.environment.versions import executorch_folder
from tests.upstream.run import ROOT

PATCHES = sorted((ROOT / "docs/upstream").glob("*.patch"))
FLOW = "backends/test/suite/flows/openneutron.py"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_a_patch_applies(tmp_path, patch):
    assert f"upstream/{patch.name}" in (ROOT / "docs/upstream.md").read_text()
    changed = re.findall(r"^--- a/(.*)$", patch.read_text(), re.MULTILINE)
    assert changed
    for name in changed:
        source = executorch_folder() / name
        if source.exists():  # the wheel has no documents
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, tmp_path / name)
        else:
            assert name.startswith("docs/")
    words = ["git", "apply", "--exclude=docs/*", str(patch)]
    environment = {"PATH": "/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    for path in tmp_path.rglob("*.py"):
        compile(path.read_text(), path, "exec")


def test_the_flow_that_is_offered_is_the_one_that_is_tested():
    text = (ROOT / "docs/upstream/openneutron-flow.patch").read_text()
    flow = (ROOT / "tests/upstream/flow.py").read_text()
    added = text.split(f"+++ b/{FLOW}\n")[1].split("\n", 1)[1]
    assert "".join(line[1:] for line in added.splitlines(True)) == flow
