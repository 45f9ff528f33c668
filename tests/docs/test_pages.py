"""The documentation is run: every bash and python block of a page, in order, in one empty folder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from openneutron.commands import COMMANDS
from openneutron.commands.reference.explain import markdown as troubleshooting
from openneutron.commands.reference.ops import markdown as operators
from openneutron.inputs.formats import FORMATS
from openneutron.onnx.listing import markdown as onnx_operators
from openneutron.quantize.plan import METHODS
from tests import warm

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page that can be run."""
    if page.name == "CONTRIBUTING.md":
        return []  # an excerpt of the operator table
    return [(kind, body) for kind, body in BLOCK.findall(page.read_text()) if kind in ("bash", "python")]


class Session:
    """The python blocks of a page are one program, which goes on with each block."""

    PROGRAM = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    exec(compile(json.loads(line), "block", "exec"), names)
    print("the block has run", flush=True)
"""

    def __init__(self, python: Path, folder: Path, environment: dict[str, str]):
        self.messages = (folder.parent / f"{folder.name}.stderr").open("w+")
        self.process = subprocess.Popen(
            [python, "-c", self.PROGRAM], cwd=folder, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.messages, text=True,
        )  # fmt: skip

    def run(self, body: str) -> tuple[bool, str]:
        """Whether a block ran to its end, and all that was said on stderr."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(body) + "\n")
        stdin.flush()
        done = any(line == "the block has run\n" for line in stdout)
        self.messages.seek(0)
        return done, self.messages.read()

    def end(self) -> int:
        """Close it; its exit code."""
        self.process.communicate()
        self.messages.close()
        return self.process.returncode


def runnable() -> list:
    """Pages with something to run; those that build firmware need the cross tools."""
    pages = [page for page in PAGES if blocks(page)]
    needs = {
        p: [pytest.mark.firmware] for p in pages if any("openneutron firmware" in b for _, b in blocks(p))
    }
    return [pytest.param(page, marks=needs.get(page, []), id=page.name) for page in pages]


@pytest.mark.slow  # every command of a page
@pytest.mark.parametrize("page", runnable())
def test_every_block_runs(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    own = Path(sys.executable).parent
    folder = own if page.name == "README.md" else warm.commands()  # one page as its reader runs it
    path = os.pathsep.join([str(folder), str(own), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHON_EXECUTABLE": str(folder / "python")}
    session = Session(folder / "python", tmp_path, environment)
    for kind, body in blocks(page):
        if kind == "python":
            succeeded, messages = session.run(body)
        else:
            command = ["bash", "-euo", "pipefail", "-c", body]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
            )
            succeeded, messages = done.returncode == 0, done.stdout[-2000:] + done.stderr
        assert succeeded and "Traceback" not in messages, f"{body}\n{messages[-6000:]}"
    assert session.end() == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_that_are_only_shown_exist(page):
    """Console blocks need the repository or a fresh machine; what they name must be there."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    names = {command.NAME for command in COMMANDS}
    shown = [body for kind, body in BLOCK.findall(page.read_text()) if kind == "console"]
    for line in re.findall(r"^\$ (.*)", "\n".join(shown), re.M):
        words = line.split()
        if words[0] == "make":
            assert words[1] in targets, line
        if words[0] == "openneutron":
            assert words[1] in names, line


def test_files_that_pages_of_the_inside_name_exist():
    compiler = re.findall(
        r"`((?:graph|select|memory|emit|stripes|microcode)/\w+\.py)`", page_text("compiler.md")
    )
    assert len(compiler) > 15
    for name in compiler:
        assert (ROOT / "src/openneutron/compiler" / name).exists(), f"compiler.md: {name}"
    rooms = re.findall(r"`(\w+/(?:\w+/)*(?:\w+\.py)?)`", page_text("architecture.md"))
    places = [ROOT, *(ROOT / "src/openneutron" / part for part in ("", "compiler", "quantize", "passes"))]
    places += [ROOT / "runtime", ROOT / "src/openneutron/targets", ROOT / "src/openneutron/commands"]
    for name in rooms:
        assert any((place / name).exists() for place in places), f"architecture.md: {name}"


@pytest.mark.parametrize("page", ["README.md", "docs/getting-started.md", "docs/security.md"])
def test_every_format_of_models_is_named(page):
    text = (ROOT / page).read_text()
    assert not [suffix for suffix in FORMATS if suffix not in text]


def test_every_method_has_a_row():
    assert not [name for name in METHODS if f"\n| `{name}` |" not in page_text("quantization.md")]


def test_every_benchmark_is_on_the_page_of_figures():
    named = set(re.findall(r"`(bench_\w+\.py)`\]", page_text("benchmarks.md")))
    assert named == {path.name for path in (ROOT / "benchmarks").glob("bench_*.py")}


def page_text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_generated_pages_are_up_to_date():
    remedy = "run: openneutron ops|explain --markdown > docs/operators.md|troubleshooting.md"
    assert (ROOT / "docs/operators.md").read_text() == operators(), remedy
    assert (ROOT / "docs/troubleshooting.md").read_text() == troubleshooting(), remedy
    assert (ROOT / "docs/onnx-operators.md").read_text() == onnx_operators(), (
        "openneutron ops --onnx --markdown"
    )
