"""The `open` converter: this project's compiler, for OpenNeutron's firmware and simulator."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.compiler.compile import compile_graph
from openneutron.converter.kernel_selection import kernel_selection_code
from openneutron.converter.neutron_graph import NeutronGraph, write_neutron_graph
from openneutron.converter.protocol import ConvertedModel
from openneutron.litert.file import read
from openneutron.options import CompileOptions
from openneutron.target import Target


@dataclass(frozen=True)
class OpenConverter:
    """Our own converter; needs nothing installed."""

    name: str = "open"

    def convert(self, litert: bytes, options: CompileOptions, target: Target) -> ConvertedModel:
        """Compile one LiteRT model."""
        graph = read(litert)
        compiled = compile_graph(graph, target, options)
        parts = NeutronGraph(
            inputs=tuple(graph.inputs),
            outputs=tuple(graph.outputs),
            microcode=compiled.microcode,
            weights=compiled.weights,
            kernels=b"",
            scratch_bytes=compiled.scratch_bytes,
        )
        name = "openneutron " + ".".join(map(str, compiled.program.converter_version))
        selection = None
        if options.dump_kernel_selection_code:
            selection = kernel_selection_code(compiled.kernels, name, target.name)
        return ConvertedModel(
            converter=name,
            microcode=compiled.microcode,
            weights=compiled.weights,
            kernels=b"",
            scratch_bytes=compiled.scratch_bytes,
            prefetch_bytes=compiled.prefetch_bytes,
            kernel_selection_code=selection,
            neutron_litert=write_neutron_graph(parts),
            compiled=compiled,
        )
