"""What goes to others: the site's pages, the step of a CI."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from openneutron.cli import build_parser
from openneutron.commands import COMMANDS
from openneutron.commands.reference.completion import vocabulary
from tests import warm

ROOT = Path(__file__).resolve().parents[2]


def site(tmp_path):
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PAGES = tmp_path / "docs" / "pages"
    module.main()
    return module.PAGES


def test_the_site_has_a_page_for_every_command_with_every_option(tmp_path):
    pages = site(tmp_path)
    for command in vocabulary(build_parser()):
        text = (pages / "commands" / f"{command.name}.md").read_text()
        for option in command.options:
            assert all(name in text for name in option.names), (command.name, option)
    nav = (pages.parent / "mkdocs.yml").read_text()
    assert all(f"commands/{c.NAME}.md" in nav for c in COMMANDS)
    for page in pages.glob("*.md"):
        assert page.name in nav, f"{page.name} is not in mkdocs.yml"
    assert "images/" in (pages / "gallery.md").read_text()


def test_a_step_of_ci_fails_with_the_figures_in_a_table(tmp_path):
    (tmp_path / "budget.toml").write_text('[[model]]\nmodel = "gone.pte"\nmax_flash = 10\n')
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    environment = {
        **os.environ,
        "PATH": f"{warm.commands()}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(output),
    }
    step = ["bash", str(ROOT / "tools" / "check-budget.sh"), "budget.toml"]

    def run(*words):
        return subprocess.run(
            [*step, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )

    done = run()
    assert done.returncode == 1, done.stderr
    assert "| gone.pte | ON510" in summary.read_text() and "**FAIL**" in done.stdout
    assert output.read_text() == f"report={tmp_path}/openneutron-check.json\n"

    # Names of a budget file are text in the summary: no markup, no link, nothing for a terminal.
    name = r"a\u001b]0;x\u0007\n| <script> [b](http://c) `d` **e**"
    (tmp_path / "budget.toml").write_text(f'[[model]]\nname = "{name}"\nmodel = "gone.pte"\nmax_flash = 10\n')
    summary.unlink()
    (tmp_path / "json.py").write_text("open('imported', 'w')")  # the project that is checked
    assert run("").returncode == 1
    row = summary.read_text().splitlines()[-1]
    assert row.startswith(r"| a?\]0;x??\| &lt;script&gt; \[b\](http\://c) \`d\` \*\*e\*\* | ON510\: "), row
    assert not (tmp_path / "imported").exists()

    # Code that a budget names is run with --trust only, and nothing else passes for that.
    (tmp_path / "net.py").write_text("open('ran', 'w').close()\n\ndef net():\n    return 1\n")
    (tmp_path / "budget.toml").write_text('[[model]]\nmodel = "net.py:net"\nmax_flash = 10\n')
    assert run().returncode == 2 and not (tmp_path / "ran").exists()
    assert run("--debug").returncode == 2 and not (tmp_path / "ran").exists()
    assert run("--trust").returncode == 1 and (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", ["-r evil.txt", "--index-url=http://x", " -e .", "a\n-r b", "\t--pre"])
def test_a_requirement_of_a_ci_job_is_no_option_of_pip(tmp_path, text):
    tool = tmp_path / "python"
    tool.write_text("#!/bin/sh\ntouch started\n")
    tool.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path)}
    command = ["bash", str(ROOT / "tools" / "install-for-ci.sh"), text]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "error: requirement" in done.stderr
    assert not (tmp_path / "started").exists()


def test_actions_are_pinned():
    """By commit where the commit is known; never by a branch, which anybody with access moves."""
    used = re.compile(r"uses: *(\S+)@(\S+)")
    for file in (ROOT / "action.yml", ROOT / "examples" / "ci" / "openneutron.yml"):
        for name, version in used.findall(file.read_text()):
            pattern = r"v\d+\.\d+\.\d+" if name == "openneutron/openneutron" else r"[0-9a-f]{40}"
            assert re.fullmatch(pattern, version), (file.name, name, version)
