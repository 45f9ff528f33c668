"""The page as text: it is whole, nothing in a name can break out of it, and it may load nothing."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from openneutron.report.page import SCRIPTS, embed_json, render_page
from tests.report.pages import build, hostile

FOLDER = files("openneutron.report.page")


@pytest.fixture(scope="module")
def data():
    return json.loads(json.dumps(build("split")))


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": [], "h1": []}
        self._open: str | None = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._open = tag if tag in self.texts else self._open
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self._open = None if tag == self._open else self._open

    def handle_data(self, data):
        if self._open:
            self.texts[self._open][-1] += data


def test_the_data_is_in_the_page(data):
    page = Elements(render_page(data))
    assert json.loads(page.texts["script"][0]) == data
    assert page.texts["title"] == ["split on i.MX RT700"] and page.texts["h1"] == ["split"]


def test_no_name_breaks_out(data):
    """The parser sees the same elements whatever the names are."""
    plain, bad = Elements(render_page(data)), Elements(render_page(hostile(data)))
    assert [tag for tag, _ in bad.found] == [tag for tag, _ in plain.found]
    assert json.loads(bad.texts["script"][0]) == hostile(data)
    assert bad.texts["h1"] == [hostile(data)["name"]]
    assert bad.texts["script"][1] == plain.texts["script"][1]


def test_json_for_a_script_element():
    text = embed_json({"a": "</script><!--&\u2028", "b": [float("inf"), float("nan"), 1.5], "c": (1, None)})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028", "b": [None, None, 1.5], "c": [1, None]}


def test_the_policy_allows_only_what_is_in_the_page(data):
    page = Elements(render_page(data))
    policy = next(a["content"] for tag, a in page.found if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    for rule, text in (("script-src", page.texts["script"][1]), ("style-src", page.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_nothing_points_outside(data):
    for tag, attributes in Elements(render_page(data)).found:
        assert "style" not in attributes and not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)


def test_every_script_is_used_and_sets_no_html():
    names = {path.name for path in FOLDER.iterdir() if path.name.endswith(".js")}
    assert names == {f"{name}.js" for name in SCRIPTS}
    for name in names:
        text = FOLDER.joinpath(name).read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        )
        assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|import\(|navigator\.send", text)


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_text_has_contrast(theme):
    """WCAG AA, 4.5 to 1, for every colour of text on every ground."""
    rules = re.findall(r"\{[^{}]*--ground:[^{}]*\}", FOLDER.joinpath("page.css").read_text())
    assert len(rules) == 3  # light, dark by choice, dark by the system
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", rules[theme]))
    for ink in ("ink", "muted", "accent", "good", "bad"):
        for ground in ("ground", "surface", "note"):
            light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


def test_both_dark_themes_are_one():
    rules = re.findall(r"\{[^{}]*--ground:[^{}]*\}", FOLDER.joinpath("page.css").read_text())
    assert rules[1].split() == rules[2].split()


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
