"""Estimated cycles as custom node data for Google's Model Explorer.

Model Explorer colours the nodes of a graph by a file of values. A key of `results` is a node's id or the name
of a tensor it writes. Graphs of ExecuTorch's `visualize` have the Edge program's nodes as ids; operators of a
LiteRT file, such as those `intermediates_dir` keeps, are found by the tensors they write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# Stops of 0 and 1, the least and the largest value, have to be there.
GRADIENT = (
    {"stop": 0, "bgColor": "#f2f6fc"},
    {"stop": 0.5, "bgColor": "#f7c46c"},
    {"stop": 1, "bgColor": "#d9480f"},
)


def model_explorer_node_data(
    data: Mapping[str, Any], by: Literal["node", "tensor"] = "node"
) -> dict[str, Any]:
    """The cycles of every operator of a report, by Edge node or by the LiteRT tensor it writes."""
    cycles: dict[str, int] = {}
    if by == "node":
        for node in data["nodes"]:
            if node["cycles"]:  # one that is computed along with another has none of its own
                cycles[node["name"]] = cycles.get(node["name"], 0) + node["cycles"]
    else:
        for step in data["timeline"]:
            for tensor in step["writes"][:1]:
                cycles[tensor] = cycles.get(tensor, 0) + step["advance"]
    return {
        "results": {name: {"value": value} for name, value in cycles.items()},
        "gradient": [dict(stop) for stop in GRADIENT],
    }
