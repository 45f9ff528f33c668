"""See the package."""

from __future__ import annotations

import json


class ModelExplorerConfig:
    """A drawing that is never drawn."""

    def __init__(self):
        self.graphs_list, self.model_sources = [], []

    def get_transferrable_data(self):
        """One empty graph."""
        return {"graphs_list": json.dumps([json.dumps({"graphs": [{}]})])}
