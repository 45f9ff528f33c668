"""The page of a search: one file that needs nothing else and can reach nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from openneutron.report.page import embed_json, enclose, whole_page


def render_sweep(data: Mapping[str, Any], generator: str) -> str:
    """The page of a search's data."""
    base = files("openneutron.report.page").joinpath("page.css").read_text("utf-8")
    style = base + _text("sweep.css")
    script = page_script()
    return whole_page(
        _text("sweep.html"),
        {
            "generator": escape(generator),
            "title": escape(f"{data['model']}: variants"),
            "name": escape(str(data["model"])),
            "style": style,
            "data": embed_json(data),
            "script": script,
        },
    )


def page_script() -> str:
    """The page's script."""
    return enclose(_text("sweep.js"))


def _text(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")
