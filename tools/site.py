"""The documentation as a site: the pages of docs/, one page for each command, and a gallery; `make docs`.

Writes the sources of the site to build/docs/pages, for MkDocs to render. What is made of the program itself
(commands, exit codes) is written here and nowhere kept.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path

from openneutron.cli import build_parser
from openneutron.environment.versions import tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "docs" / "pages"
FROM_THE_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#:]+)((?:#[^)]*)?\))")


def main() -> None:
    """Write the sources of the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name in FROM_THE_ROOT:
        shutil.copy(ROOT / name, PAGES / name)
    for page in list(PAGES.glob("*.md")):
        home = ROOT if page.name in FROM_THE_ROOT else ROOT / "docs"
        page.write_text(LINK.sub(lambda link, home=home: _moved(link, home), page.read_text()))
    (PAGES / "commands").mkdir()
    for name, parser in _commands().items():
        (PAGES / "commands" / f"{name}.md").write_text(command_page(name, parser))
    (PAGES / "commands" / "index.md").write_text(_command_index())
    (PAGES / "gallery.md").write_text(gallery_page())
    index = "      - commands/index.md\n"
    pages = "".join(f"      - {name}: commands/{name}.md\n" for name in _commands())
    settings = (ROOT / "mkdocs.yml").read_text().replace(index, index + pages)
    (PAGES.parent / "mkdocs.yml").write_text(settings)


def _moved(link: re.Match[str], home: Path) -> str:
    """A link of a page in `home` as it is from the top of the site; files that are no pages come along."""
    begin, target, end = link.groups()
    file = (home / target).resolve()
    if file.is_relative_to(ROOT / "docs"):
        return f"{begin}{file.relative_to(ROOT / 'docs')}{end}"
    if file.name in FROM_THE_ROOT and file.parent == ROOT:
        return f"{begin}{file.name}{end}"
    if file.is_file():
        copy = PAGES / "files" / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
        return f"{begin}files/{file.relative_to(ROOT)}{end}"
    return link.group(0)  # MkDocs says that it leads nowhere


def _commands() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    return dict(next(a for a in actions if isinstance(a, argparse._SubParsersAction)).choices)


def command_page(name: str, parser: argparse.ArgumentParser) -> str:
    """What `openneutron NAME --help` says, as a page."""
    lines = [f"# openneutron {name}", ""]
    for paragraph in (parser.description or "").strip().split("\n\n"):
        is_listing = any(line.startswith("  ") for line in paragraph.splitlines())
        lines += ["```text", paragraph, "```", ""] if is_listing else [paragraph, ""]
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    lines += ["```text", re.sub(r"\n {12,}", "\n    ", usage), "```", ""]
    for group in parser._action_groups:
        rows = [_row(action, parser) for action in group._group_actions if action.help != argparse.SUPPRESS]
        if rows:
            lines += [f"## {(group.title or '').capitalize()}", "", "| | |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _row(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    spelled = ", ".join(action.option_strings) or (action.metavar or action.dest)
    values = ""
    if action.option_strings and action.nargs != 0:
        values = " " + formatter._format_args(action, (action.metavar or action.dest).upper())
    said = " ".join(((action.help or "") % {**vars(action), "prog": parser.prog}).split())
    return f"| `{spelled}{values}` | {said.replace('|', chr(92) + '|').replace('<', '&lt;')} |"


def _command_index() -> str:
    helps = {
        choice.dest: choice.help
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }
    rows = [f"| [{name}]({name}.md) | {text} |" for name, text in helps.items()]
    return "\n".join(
        ["# Commands", "", "| | |", "|---|---|", *rows, "", "[Exit codes](../exit-codes.md)", ""]
    )


def gallery_page() -> str:
    """The pictures of docs/images with the commands that made what they show."""
    shown = tomllib.loads((ROOT / "docs" / "images" / "gallery.toml").read_text())["picture"]
    lines = ["# Gallery", "", "Pages that OpenNeutron wrote, each one file that opens in any browser.", ""]
    for picture in shown:
        lines += [f"## {picture['title']}", "", picture["text"], ""]
        lines += ["```console", *(f"$ {line}" for line in picture["commands"]), "```", ""]
        lines += [f"![{picture['title']}](images/{picture['file']})", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
