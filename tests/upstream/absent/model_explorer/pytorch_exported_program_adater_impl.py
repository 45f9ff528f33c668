"""See the package."""

from types import SimpleNamespace


class PytorchExportedProgramAdapterImpl:
    """Makes nodes without anything in them."""

    def __init__(self, program, *_args):
        self._program = program

    def convert(self):
        """As many nodes as the program has."""
        return {"graphs": [SimpleNamespace(nodes=[SimpleNamespace() for _ in self._program.graph.nodes])]}
