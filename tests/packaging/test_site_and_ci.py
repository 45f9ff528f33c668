"""What goes to others: the site's pages, the step of a CI."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from openneutron.cli import build_parser
from openneutron.commands import COMMANDS
from openneutron.commands.completion import vocabulary

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
    tool = tmp_path / "bin" / "openneutron"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m openneutron "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "budget.toml").write_text('[[model]]\nmodel = "gone.pte"\nmax_flash = 10\n')
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    environment = {
        **os.environ,
        "PATH": f"{tool.parent}{os.pathsep}{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_OUTPUT": str(output),
    }
    step = ["bash", str(ROOT / "tools" / "check-budget.sh"), "budget.toml"]
    done = subprocess.run(step, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "| gone.pte | ON510" in summary.read_text() and "**FAIL**" in done.stdout
    assert output.read_text() == f"report={tmp_path}/openneutron-check.json\n"
