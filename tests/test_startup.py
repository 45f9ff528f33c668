"""What starts fast stays fast: these imports must not pull in torch or executorch."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_no_compiler_of_torchs_is_loaded_before_it_is_needed():
    """Inductor was a second of every compile; the pass of torch.export that wants it still does its work."""
    code = """
import sys, torch
import openneutron.pipeline
assert "torch._inductor.lowering" not in sys.modules
from torch.export._remove_auto_functionalized_pass import unsafe_remove_auto_functionalized_pass as remove

@torch.library.custom_op("test::double_", mutates_args={"x"})
def double_(x: torch.Tensor) -> None:
    x.mul_(2)

class Doubled(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        double_(y)
        return y

program = torch.export.export(Doubled(), (torch.ones(3),)).run_decompositions({})
assert "auto_functionalized" in str(program.graph)
program = remove(program)
assert "auto_functionalized" not in str(program.graph) and "double_" in str(program.graph)
assert program.module()(torch.ones(3)).tolist() == [4, 4, 4]
from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized, post_grad_passes
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [("-m", "openneutron"), ("-X", "utf8", "-mopenneutron"), ("-Bm", "openneutron")]
)
def test_a_module_of_the_current_folder_is_not_imported(tmp_path, words):
    """`python -m` puts that folder first on the path: whoever writes there would run code."""
    # Without site-packages' own start, which has an editable installation import much beforehand.
    own = "import runpy, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    bare = [sys.executable, "-S"]
    started = subprocess.run([*bare, "-c", own], capture_output=True, text=True, check=True).stdout.split()
    for name in {*sys.stdlib_module_names, "rich", "torch"}.difference(started):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\nraise SystemExit(9)\n")
    path = [str(Path(__file__).parents[1] / "src"), *(p for p in sys.path if p.endswith("site-packages"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    for command in (["--version"], ["ops"], ["explain", "ON699"]):
        done = subprocess.run(
            [*bare, *words, *command], cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0 and done.stdout, done.stderr
    assert not (tmp_path / "imported").exists()


def test_the_folder_of_another_program_stays(tmp_path):
    """A program of the user that is run with -m and imports openneutron finds its own modules."""
    (tmp_path / "tool.py").write_text("import openneutron\nimport neighbour\n")
    (tmp_path / "neighbour.py").write_text("print('found')\n")
    done = subprocess.run([sys.executable, "-m", "tool"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "found\n", done.stderr
