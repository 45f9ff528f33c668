"""The report as one web page that needs nothing else and can reach nothing else."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

# In this order they are one script; `main` draws, so that it comes last.
SCRIPTS = (
    "core", "select", "layout", "graph", "strip", "table", "timeline", "memory", "roofline", "errors",
    "what_if", "operators", "summary", "main",
)  # fmt: skip


def render_page(data: Mapping[str, Any]) -> str:
    """The page of a report's data (see docs/report.md for its schema)."""
    style = _text("page.css")
    script = page_script()
    summary = data["summary"]
    name = str(data.get("name") or "program")
    values = {
        "generator": escape(str(data.get("generator", "openneutron"))),
        "title": escape(f"{name} on {summary['chip']}"),
        "name": escape(name),
        "subtitle": escape(f"{summary['chip']} ({summary['npu']}), {summary['converter']} converter"),
        "footer": escape(_footer(data)),
        "style": style,
        "data": embed_json(data),
        "script": script,
    }
    return whole_page(_text("page.html"), values)


def page_script() -> str:
    """The page's script: its files, one behind the other in a scope of their own."""
    return enclose("".join(_text(f"{name}.js") for name in SCRIPTS))


def enclose(script: str) -> str:
    """A script whose names nobody else sees."""
    return f"(() => {{\n'use strict';\n{script}}})();\n"


def whole_page(body: str, values: Mapping[str, str]) -> str:
    """A page of this body: its head says what it is, and that nothing else may be loaded."""
    policy = _content_policy(values["style"], values["script"])
    return _fill(_text("head.html") + body, {**values, "policy": policy})


def _fill(template: str, values: Mapping[str, str]) -> str:
    """The template with a value for each marker; nothing in a value is ever taken for a marker."""
    parts = template.split("{{")
    filled = [values[key] + rest for key, _, rest in (part.partition("}}") for part in parts[1:])]
    return parts[0] + "".join(filled)


def embed_json(data: Any) -> str:
    """JSON that may stand inside a script element, whatever the names in it are."""
    text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))  # ASCII only: no U+2028 either
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    """The same value with null for infinities and NaN, which JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _content_policy(style: str, script: str) -> str:
    """No request of any kind; only this very style and this very script."""

    def digest(text: str) -> str:
        return b64encode(sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; script-src 'sha256-{digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _footer(data: Mapping[str, Any]) -> str:
    made = f"Made by {data.get('generator', 'openneutron')}."
    program = data["summary"].get("program")
    return f"{made} Program: {program}." if program else made


def _text(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")
