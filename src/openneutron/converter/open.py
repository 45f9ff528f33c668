"""The `open` converter: this project's compiler, for OpenNeutron's firmware and simulator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.emit.result import CompiledGraph
from openneutron.compiler.microcode.driver import LIBRARY, prepare_problem
from openneutron.compiler.select.select import refusal
from openneutron.converter.cache import compile_or_recall
from openneutron.converter.kernel_selection import kernel_selection_code
from openneutron.converter.neutron_graph import NeutronGraph, write_neutron_graph
from openneutron.converter.protocol import ConvertedModel
from openneutron.diagnostics import Reject, fail
from openneutron.litert.file import read
from openneutron.litert.ir import Graph
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target


@dataclass(frozen=True)
class OpenConverter:
    """Our own converter; needs nothing installed."""

    name: str = "open"

    def refuses(self, graph: Graph) -> Reject | None:
        """The limits are those of the kernels' records, which the driver checks too."""
        return refusal(graph)

    def convert(self, litert: bytes, options: CompileOptions, target: Target) -> ConvertedModel:
        """Compile one LiteRT model."""
        graph = read(litert)
        compiled = compile_or_recall(litert, target, options, lambda: compile_graph(graph, target, options))
        _let_driver_check(compiled)
        parts = NeutronGraph(
            inputs=tuple(graph.given),
            outputs=tuple(graph.returned),
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


def _let_driver_check(compiled: CompiledGraph) -> None:
    """What the driver would refuse when the program is loaded is no program: it must not be written."""
    if not LIBRARY.exists():
        warnings.warn(
            f"{LIBRARY.name} is not built: the driver has not checked the program (`make native` builds it)",
            stacklevel=2,
        )
        return
    if problem := prepare_problem(compiled.microcode, compiled.weights):
        hint = "Please report it with the model; operators_not_to_delegate keeps the operator on the CPU."
        if "target" in problem:  # a chip's file was added since the library was built
            hint = "For a new chip: python -m openneutron.compiler.microcode --write, then make native."
        fail("ON404", "microcode", f"the driver refuses what the compiler made: {problem}", hint)
