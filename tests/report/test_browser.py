"""The page in a real browser: what a reader sees, hovers, sorts, searches, clicks and links to."""

from __future__ import annotations

import fcntl
import json
import os
from urllib.parse import quote

import pytest

from openneutron.report.page import render_page
from tests.report.pages import bare, build, hostile

pytestmark = [pytest.mark.browser, pytest.mark.slow]  # pages in a browser

LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "phone": {"width": 400, "height": 800, "touch": True},
    "dark phone": {"width": 400, "height": 800, "touch": True, "dark": True},
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Data and file of a report by name, made when first asked for."""
    folder, made = tmp_path_factory.mktemp("pages"), {}
    several = "PYTEST_XDIST_WORKER" in os.environ
    shared = tmp_path_factory.getbasetemp().parent if several else folder  # compiling twice would take long

    def built(name):
        kept = shared / f"report-{name}.json"
        with open(shared / f"report-{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(build(name)))
        return json.loads(kept.read_text())

    def get(name):
        if name not in made:
            change = {"hostile": hostile, "bare": bare}.get(name)
            data = change(built("split")) if change else built(name)
            path = folder / f"{name}.html"
            path.write_text(render_page(data), "utf-8")
            made[name] = data, path
        return made[name]

    return get


@pytest.fixture
def visit(browser, reports):
    """Open a report; whatever a test does with it, the page must not complain nor ask for anything."""
    opened = []

    def go(name, **options):
        opened.append(browser.open(reports(name)[1], **options))
        return opened[-1]

    yield go
    for page in opened:
        complaints, requests = page.complaints(), page.requests()
        page.close()
        assert complaints == [] and requests == []


def texts(page, selector):
    return page.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")


def tip(page):
    return page.evaluate(
        "document.getElementById('tip').hidden ? null : document.getElementById('tip').innerText"
    )


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["cifarnet", "mobilenet_v2", "split"])
def test_it_opens(visit, reports, name, look):
    page = visit(name, **LOOKS[look])
    data, _ = reports(name)
    width = LOOKS[look].get("width", 1280)
    assert (
        page.evaluate("document.documentElement.scrollWidth") <= width
    )  # only charts and tables scroll sideways
    assert texts(page, "h1") == [name]
    assert "Fits the SRAM" in texts(page, ".verdict")[0]
    assert f"{data['summary']['cycles_estimated']:,} cycles" in texts(page, ".tiles")[0]
    assert len(texts(page, "#graph .box")) == len(data["nodes"])
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 128) == ("dark" in look)
    inside = "r => r.left >= 0 && r.right <= innerWidth"
    for part in ("h2", ".tile", ".card", ".change", ".figure", ".scroller", "input"):
        found = f"[...document.querySelectorAll('{part}')].map(e => e.getBoundingClientRect())"
        assert page.evaluate(f"{found}.filter(r => r.width).every({inside})"), part


@pytest.mark.parametrize("name", ["cifarnet", "mobilenet_v2", "split"])
def test_figures_agree(visit, reports, name):
    """The timeline ends at the summary's estimate; the memory map is as high as the scratch area."""
    data, _ = reports(name)
    page = visit(name)
    assert (
        page.evaluate("+document.querySelector('#timeline [data-total]').dataset.total")
        == (data["summary"]["cycles_estimated"])
    )
    page.click("#timeline summary")
    assert len(texts(page, "#table-steps tbody tr")) == len(data["timeline"])
    seen = []
    for number, area in enumerate(data["memory"]):
        if len(data["memory"]) > 1:
            page.click(f"#memory .tabs button:nth-child({number + 1})")
        highest = page.evaluate(
            "[...document.querySelectorAll('#memory [data-highest]')].map(e => +e.dataset.highest)"
        )
        assert highest == [size for size in (area["scratch_bytes"], area["prefetch_bytes"]) if size]
        assert len(texts(page, "#memory .mark")) == len(area["buffers"])
        seen.append(highest[0])
    assert max(seen) == data["summary"]["scratch_bytes"]


def test_hovering_tells(visit, reports):
    page = visit("split")
    data, _ = reports("split")
    atan = next(n for n in data["nodes"] if "atan" in n["op"])
    page.hover(f"#graph [data-node='{atan['id']}']")
    assert atan["name"] in tip(page) and atan["reason"]["reason"] in tip(page)
    assert f"{atan['cycles']:,} cycles" in tip(page)
    step = max((s for s in data["timeline"] if s["kind"] == "kernel"), key=lambda s: s["cycles"])
    page.hover(f"#timeline [data-key='call-{step['index']}']")
    assert f"{step['cycles']:,} cycles" in tip(page) and "multiply-accumulate units" in tip(page)
    page.hover("#memory .mark")
    assert "convolution" in tip(page) and "address" in tip(page)
    page.hover("#roofline .dot")
    assert "of the peak" in tip(page)
    page.hover("#errors .mark")
    assert "SQNR" in tip(page)
    page.hover("h1")
    assert tip(page) is None


def test_sorting_and_searching(visit, reports):
    page = visit("mobilenet_v2")
    nodes = [n for n in reports("mobilenet_v2")[0]["nodes"] if n["where"] != "io"]
    rows = "#table-operators tbody tr"
    assert texts(page, f"{rows} code") == [n["name"] for n in nodes]
    cycles = "#table-operators th:nth-child(5)"
    page.click(f"{cycles} button")
    shown = [int(text.replace(",", "") or 0) for text in texts(page, f"{rows} td:nth-child(5)")]
    assert shown == sorted((n["cycles"] for n in nodes), reverse=True)
    assert page.evaluate(f"document.querySelector('{cycles}').getAttribute('aria-sort')") == "descending"
    page.click(f"{cycles} button")
    shown = [int(text.replace(",", "") or 0) for text in texts(page, f"{rows} td:nth-child(5)")]
    assert shown == sorted(n["cycles"] for n in nodes)
    page.write("#operators input", "CONVOLUTION _1")
    found = {n["name"] for n in nodes if "convolution" in n["name"] and "_1" in n["name"]}
    assert set(texts(page, f"{rows} code")) == found
    assert texts(page, "#operators .status") == [f"{len(found)} of {len(nodes)}"]
    page.write("#operators input", "no such operator")
    assert texts(page, rows) == ["Nothing matches."]
    page.write("#operators input", "")
    assert len(texts(page, rows)) == len(nodes)
    page.evaluate("document.activeElement.blur()")
    page.press("/")
    assert page.evaluate("document.activeElement === document.querySelector('#operators input')")


def test_one_selection_in_every_view(visit, reports):
    page = visit("mobilenet_v2")
    data, _ = reports("mobilenet_v2")
    node = next(n for n in data["nodes"] if n["name"] == "aten_convolution_default_3")
    page.click("#timeline summary")
    page.click(f"#graph [data-node='{node['id']}']")
    assert page.evaluate("location.hash") == "#node=aten_convolution_default_3"
    chosen = "[...document.querySelectorAll('{}')].map(e => e.dataset.{})"
    assert page.evaluate(chosen.format("#graph .box.selected", "node")) == [str(node["id"])]
    assert page.evaluate(chosen.format("#table-operators .selected", "row")) == [str(node["id"])]
    calls = {f"call-{i}" for i in node["calls"]}
    assert set(page.evaluate(chosen.format("#timeline .mark.selected", "key"))) == calls
    assert set(page.evaluate(chosen.format("#table-steps .selected", "row"))) == calls
    assert len(page.evaluate(chosen.format("#roofline .dot.selected", "key"))) == 1
    assert len(page.evaluate(chosen.format("#memory .mark.selected", "key"))) == 1
    assert "aten_convolution_default_3" in texts(page, "#selected")[0]
    page.press("Escape")
    assert page.evaluate("document.querySelectorAll('.selected').length") == 0
    assert page.evaluate("location.hash") == ""
    # The other way: from the memory map and from the roofline to the graph.
    page.click("#memory .mark:nth-of-type(5)")
    assert page.evaluate("document.querySelectorAll('#graph .box.selected').length") == 1
    page.press("Escape")
    page.click("#roofline .dot:last-child")
    assert page.evaluate("document.querySelectorAll('#graph .box.selected').length") == 1


def test_addresses(visit, reports):
    page = visit("split", fragment="#memory")
    assert 0 <= page.evaluate("document.getElementById('memory').getBoundingClientRect().top") < 120
    page.evaluate("location.hash = '#operators&node=aten_atan_default'")
    page.until("document.querySelector('#table-operators .selected') !== null")
    assert texts(page, "#table-operators .selected code")[0] == "aten_atan_default"
    assert 0 <= page.evaluate("document.getElementById('operators').getBoundingClientRect().top") < 120
    page.evaluate("location.hash = '#node=%zz'")  # no such node, and no valid address
    page.settle()
    other = visit("split", fragment="#node=aten_atan_default")
    assert other.evaluate("document.querySelector('#graph .box.selected').textContent").startswith("atan")
    assert "ON201" in texts(other, "#selected")[0]


def test_themes(visit):
    page = visit("cifarnet")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.click("#theme")
    dark = page.evaluate(colour)
    assert (
        dark != light
        and page.evaluate("document.getElementById('theme').ariaLabel") == "Switch to the light theme"
    )
    page.click("#theme")
    assert page.evaluate(colour) == light
    page.theme(dark=True)  # the reader's choice outweighs the system's
    assert page.evaluate(colour) == light
    page.evaluate("localStorage.clear()")


def test_keyboard(visit):
    page = visit("split")
    page.evaluate("document.querySelector('#graph .box').focus()")
    page.press("ArrowDown")
    page.press("ArrowDown")
    page.press("Enter")
    assert page.evaluate("document.querySelector('#graph .box.selected .op').textContent") == "convolution"
    page.press("Enter")
    assert page.evaluate("document.querySelectorAll('.selected').length") == 0
    page.evaluate("document.querySelector('#timeline .mark').focus()")
    page.press("ArrowRight")
    page.press("Enter")
    assert page.evaluate("document.querySelectorAll('#timeline .mark.selected').length") > 0
    assert page.evaluate("document.activeElement.closest('#timeline') !== null")  # the chart keeps the focus
    nameless = "e => !(e.ariaLabel || e.textContent.trim())"
    assert (
        page.evaluate(
            f"[...document.querySelectorAll('button, [role=button], input')].filter({nameless}).length"
        )
        == 0
    )


def test_moving_and_zooming(visit, reports):
    page = visit("mobilenet_v2")
    where = "document.querySelector('#graph svg > g').getAttribute('transform')"
    before = page.evaluate(where)
    page.drag("#graph .graph-view", 80, 30)
    moved = page.evaluate(where)
    assert moved != before and page.evaluate("document.querySelectorAll('.selected').length") == 0
    page.wheel("#graph .graph-view", -300, ctrl=True)
    zoomed = page.evaluate(where)
    assert float(zoomed.split("scale(")[1][:-1]) > float(moved.split("scale(")[1][:-1])
    page.click("#graph [aria-label='Show all']")
    page.click("#graph [aria-label='Fill the window']")
    assert page.evaluate("document.querySelector('#graph .figure').getBoundingClientRect().width") > 1200
    page.press("Escape")
    # A step of less than a pixel is drawn with the least width there is, until it is chosen in another view.
    data, _ = reports("mobilenet_v2")
    step = max((s for s in data["timeline"] if s["kind"] == "kernel"), key=lambda s: s["cycles"])
    name = next(n["name"] for n in data["nodes"] if step["index"] in n["calls"])
    page.evaluate(f"location.hash = '#node={name}'")
    page.until("document.querySelector('#timeline .mark.selected') !== null")
    mark = f"document.querySelector('#timeline [data-key=call-{step['index']}] rect')"
    wide = f"{mark}.getBoundingClientRect().width"
    first = page.evaluate(wide)
    assert first > 4
    page.click("#timeline [aria-label='Zoom in']")
    page.settle()
    assert page.evaluate(wide) > 1.4 * first


def test_errors_and_what_if(visit, reports):
    page = visit("split")
    data, _ = reports("split")
    assert len(texts(page, "#errors .mark")) == len(data["errors"])
    worst = sorted(data["errors"], key=lambda row: row["sqnr_db"])
    assert texts(page, "#table-layers tbody code") == [row["name"] for row in worst]
    cards = texts(page, "#what-if .card")
    assert len(cards) == 2 and "aten.atan.default on the NPU" in cards[0] and "would cost" in cards[1]
    assert "saves" in cards[0] and "partitions 2 → 1" in cards[0] and "border steps 8 → 2" in cards[0]
    empty = visit("cifarnet")
    assert "No errors were measured" in texts(empty, "#errors")[0]
    assert "nothing to try" in texts(empty, "#what-if")[0]


def test_what_is_not_known_is_said(visit):
    page = visit("bare")
    assert texts(page, ".verdict")[0].startswith("Does not fit the SRAM by")
    assert "the eiq converter does not tell" in texts(page, "#summary")[0]
    assert "tells nothing about its calls" in texts(page, "#timeline")[0]
    for section in ("memory", "roofline", "errors", "what-if"):
        assert len(texts(page, f"#{section} .empty")) == 1, section
    page.click("#table-operators tbody tr:nth-child(2)")
    assert page.evaluate("document.querySelectorAll('#graph .box.selected').length") == 1


def test_names_are_only_text(visit, reports):
    page = visit("hostile")
    data, _ = reports("hostile")
    assert texts(page, "h1") == [data["name"]]
    assert page.evaluate("document.title").startswith("</script>")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    page.hover("#graph .box:nth-child(3)")
    assert data["nodes"][2]["name"] in tip(page)
    for node in data["nodes"][:6]:
        page.evaluate(f"location.hash = '#node={quote(node['name'], safe='')}'")
        page.until(f"document.querySelector('#graph .box.selected')?.dataset.node === '{node['id']}'")


def test_nothing_can_leave(browser, reports):
    """Even a script that got in could not send anything: the browser itself refuses."""
    page = browser.open(reports("cifarnet")[1])
    tried = page.evaluate("fetch('https://example.com/').then(() => 'sent', () => 'refused')")
    picture = (
        "new Promise(done => { const image = new Image(); image.onload = () => done('sent');"
        " image.onerror = () => done('refused'); image.src = 'https://example.com/a.png' })"
    )
    assert (tried, page.evaluate(picture)) == ("refused", "refused")
    assert any("Content Security Policy" in text for text in page.complaints())
    page.close()
