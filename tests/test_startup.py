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


def test_the_edge_dialect_is_read_quickly_and_the_same():
    """Half a second of every compile was the pure Python reader of one YAML file."""
    code = """
import sys, time, yaml, ruamel.yaml
slow = ruamel.yaml.YAML.load
ruamel.yaml.YAML.load = lambda *args: sys.exit("ruamel reads the operators")
import openneutron
from executorch.exir.dialects.edge import _ops
ruamel.yaml.YAML.load = slow
assert _ops.YAML is ruamel.yaml.YAML
from importlib import resources
text = resources.files("executorch.exir.dialects.edge").joinpath("edge.yaml").read_text()
assert ruamel.yaml.YAML(typ="safe").load(text) == yaml.load(text, Loader=yaml.CSafeLoader)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
