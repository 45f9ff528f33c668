"""A report's data as the file a user asked for; its name says which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openneutron.report.model_explorer import model_explorer_node_data
from openneutron.report.page import render_page

ENDINGS = (".html", ".json", ".nodedata.json", ".tensors.nodedata.json")  # what `render_report` knows


def render_report(path: Path, data: Mapping[str, Any]) -> str:
    """The text of a report: the page, node data for Model Explorer, or the data itself as JSON."""
    if path.suffix == ".html":
        return render_page(data)
    if path.name.endswith(".nodedata.json"):
        by_tensor = path.name.endswith(".tensors.nodedata.json")
        return json.dumps(model_explorer_node_data(data, "tensor" if by_tensor else "node"), indent=1)
    return json.dumps(data, indent=1)
