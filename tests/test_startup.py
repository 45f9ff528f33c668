"""What starts fast stays fast: these imports must not pull in torch or executorch."""

import subprocess
import sys

import pytest

LIGHT = ["openneutron", "openneutron.ops", "openneutron.cli", "openneutron.options", "openneutron.models"]


@pytest.mark.parametrize("module", LIGHT)
def test_import_is_light(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'executorch', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stdout + done.stderr
