"""The report page in Chromium: how large it is, and how long from opening it until it can be used."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the browser belongs to the tests

from openneutron.report.page import render_page
from tests.report.browser import Browser, BrowserError, Page
from tests.report.pages import PROGRAMS, build

SIZE_BAR, TIME_BAR = 3_000_000, 1_000  # bytes, milliseconds: of MobileNetV2's page
RUNS = 5

# Interactive is the first frame after the script is done. All from the start of the navigation.
FRAME = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
READY = "performance.getEntriesByName('ready')[0].startTime"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
BOX = "document.querySelector('#graph .box:nth-child(4)')"
CLICK = f"{BOX}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"
SELECT = f"(() => {{ const from = performance.now(); {CLICK}; return {FRAME}.then(end => end - from) }})()"


def main() -> None:
    """Print the table."""
    try:
        browser = Browser()
    except BrowserError as error:
        print(f"skipped: {error}")
        return
    print(f"{browser.version}, median of {RUNS} visits, milliseconds from the start of the navigation")
    head = (
        f"{'page':<14}{'operators':>10}{'steps':>7}{'bytes':>10}{'paint':>8}{'ready':>8}{'interactive':>13}"
    )
    print(f"{head}{'select':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for name in PROGRAMS:
            data = build(name)
            path = Path(folder) / f"{name}.html"
            size = path.write_text(render_page(data), "utf-8")
            times = [visit(browser, path) for _ in range(RUNS)]
            paint, ready, interactive, click = (
                statistics.median(column) for column in zip(*times, strict=True)
            )
            print(f"{name:<14}{len(data['nodes']):>10}{len(data['timeline']):>7}{size:>10,}{paint:>8.0f}{ready:>8.0f}"
                  f"{interactive:>13.0f}{click:>8.0f}")  # fmt: skip
    browser.close()
    print(f"bars for mobilenet_v2: {SIZE_BAR:,} bytes, {TIME_BAR:,} ms until interactive")


def visit(browser: Browser, path: Path) -> tuple[float, ...]:
    """Open the page once: first paint, script done, interactive; and how long selecting an operator takes."""
    page: Page = browser.open(path)
    interactive, select, ready, paint = (page.evaluate(e) for e in (FRAME, SELECT, READY, PAINT))
    page.close()
    return paint, ready, interactive, select


if __name__ == "__main__":
    main()
