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


@pytest.mark.parametrize(
    "words", [("-m", "openneutron"), ("-X", "utf8", "-mopenneutron"), ("-Bm", "openneutron")]
)
def test_a_module_of_the_current_folder_is_not_imported(tmp_path, words):
    """`python -m` puts that folder first on the path: whoever writes there would run code."""
    for name in (
        "json",
        "typing",
        "argparse",
        "difflib",
        "dataclasses",
        "rich",
        "torch",
        "logging",
        "tomllib",
    ):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit(9)\n")
    for command in (["--version"], ["ops"], ["explain", "ON699"]):
        done = subprocess.run(
            [sys.executable, *words, *command], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0 and done.stdout, done.stderr
    assert not (tmp_path / "imported").exists()


def test_the_folder_of_another_program_stays(tmp_path):
    """A program of the user that is run with -m and imports openneutron finds its own modules."""
    (tmp_path / "tool.py").write_text("import openneutron\nimport neighbour\n")
    (tmp_path / "neighbour.py").write_text("print('found')\n")
    done = subprocess.run([sys.executable, "-m", "tool"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "found\n", done.stderr
