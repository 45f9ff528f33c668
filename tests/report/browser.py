"""A real browser for tests: Chromium driven by its DevTools protocol over a pipe, with nothing but Python.

`Browser` starts Chromium once; `Browser.open` gives a `Page` with what a user does (move, click, type, press)
and what a test asks (evaluate, console messages, requests).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--disable-extensions", "--hide-scrollbars", "--mute-audio", "--no-default-browser-check",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_browser() -> str | None:
    """Where Chromium is, if it is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class BrowserError(Exception):
    """The browser said no, or nothing at all."""


class Browser:
    """One Chromium with a profile of its own; close it when done."""

    def __init__(self, path: str | None = None):
        path = path or find_browser()
        if path is None:
            raise BrowserError("Chromium is not installed")
        self.profile = tempfile.mkdtemp(prefix="openneutron-browser-")
        # Chromium reads commands from descriptor 3 and writes to 4; keep ours out of the way of those.
        theirs_in, self._out = (_away(fd) for fd in os.pipe())
        self._in, theirs_out = (_away(fd) for fd in os.pipe())

        def connect() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self._process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=connect, close_fds=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self.version = self.call("Browser.getVersion", wait=60)["product"]

    def call(self, method: str, session: str | None = None, wait: float = 30, **params: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + wait
        while True:
            answer = self._next(until, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def _next(self, until: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            if not chunk:
                raise BrowserError(f"no answer to {method}")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def open(self, path: Path, **options: Any) -> Page:
        """Open a file in a new tab and wait until its script is done."""
        return Page(self, path, **options)

    def close(self) -> None:
        """End the browser and remove its profile."""
        for fd in (self._out, self._in):
            os.close(fd)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(5)
        shutil.rmtree(self.profile, ignore_errors=True)


class Page:
    """A page in the browser, as a user meets it."""

    def __init__(
        self,
        browser: Browser,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        fragment: str = "",
        touch: bool = False,
    ):
        self.browser = browser
        self.url = path.resolve().as_uri() + fragment
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.theme(dark)
        self.resize(width, height, touch)
        self.call("Page.navigate", url=self.url)
        self.until("document.documentElement?.dataset.ready === 'yes'")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command to this page."""
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str, wait: float = 20) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + wait
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise BrowserError(f"never true: {expression}; the page said {self.complaints()}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait for two frames: what was asked for is on the screen then."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def resize(self, width: int, height: int, touch: bool = False) -> None:
        """Make the window this large."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def theme(self, dark: bool) -> None:
        """What the system prefers."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def place(self, selector: str) -> tuple[float, float]:
        """Scroll an element to the middle of the window; where its middle is then."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        self.settle()
        box = self.evaluate(
            f"(() => {{ const b = {found}.getBoundingClientRect();"
            " return [b.left + b.width / 2, b.top + b.height / 2] })()"
        )
        return box[0], box[1]

    def hover(self, selector: str) -> None:
        """Move the mouse onto an element."""
        x, y = self.place(selector)
        self._mouse("mouseMoved", x, y)
        self.settle()

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        x, y = self.place(selector)
        self._mouse("mouseMoved", x, y)
        self._mouse("mousePressed", x, y, button="left", clickCount=1)
        self._mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def drag(self, selector: str, dx: float, dy: float) -> None:
        """Press the mouse on an element and move it."""
        x, y = self.place(selector)
        self._mouse("mousePressed", x, y, button="left", clickCount=1)
        for step in range(1, 6):
            self._mouse("mouseMoved", x + dx * step / 5, y + dy * step / 5, button="left", buttons=1)
        self._mouse("mouseReleased", x + dx, y + dy, button="left", clickCount=1)
        self.settle()

    def wheel(self, selector: str, amount: float, ctrl: bool = False) -> None:
        """Turn the mouse's wheel over an element."""
        x, y = self.place(selector)
        self._mouse("mouseWheel", x, y, deltaX=0, deltaY=amount, modifiers=2 if ctrl else 0)
        self.settle()

    def write(self, selector: str, text: str) -> None:
        """Replace what is in a field by typing."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        if text:
            self.call("Input.insertText", text=text)
        else:
            self.press("Delete")
        self.settle()

    def press(self, key: str) -> None:
        """Press a key."""
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
                "Tab": 9, "Delete": 46}.get(key, ord(key[0]))  # fmt: skip
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        """A picture of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def complaints(self) -> list[str]:
        """Everything the page wrote to the console, and every error."""
        found = []
        for event in self._events():
            params = event["params"]
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(str(details.get("exception", {}).get("description", details["text"])))
            elif event["method"] == "Log.entryAdded":
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The addresses the page asked for, itself aside."""
        sent = [e["params"] for e in self._events() if e["method"] == "Network.requestWillBeSent"]
        urls = [params["request"]["url"] for params in sent]
        return [
            url for url in urls if url != self.url.split("#")[0] and not url.startswith(("data:", "about:"))
        ]

    def close(self) -> None:
        """Close the tab."""
        self.browser.call("Target.closeTarget", targetId=self.target)

    def _events(self) -> list[dict[str, Any]]:
        return [e for e in self.browser.events if e.get("sessionId") == self.session]

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def _away(fd: int) -> int:
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(fd)
    return moved
