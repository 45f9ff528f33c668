"""What a converter is: a function from LiteRT bytes to the parts that go into a delegate payload."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from openneutron.diagnostics import Reject
from openneutron.litert.ir import Graph
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from openneutron.compiler.emit.result import CompiledGraph
    from openneutron.lower.convert import Lowered


@dataclass(frozen=True)
class ConvertedModel:
    """The parts of a payload and the sizes a caller has to provide memory for."""

    converter: str  # its name and version, for people
    microcode: bytes
    weights: bytes
    kernels: (
        bytes  # firmware for Neutron-S; empty for Neutron-C, where kernels are linked into the application
    )
    scratch_bytes: int
    prefetch_bytes: int
    kernel_selection_code: str | None = None
    neutron_litert: bytes = field(
        default=b"", repr=False
    )  # LiteRT with one NeutronGraph op, for people to look at
    compiled: CompiledGraph | None = field(default=None, repr=False)  # for reports; the open converter only
    profile_bytes: int = 0
    debug_bytes: int = 0

    @property
    def beyond_io_bytes(self) -> int:
        """Scratch memory beyond the inputs and outputs that lie in it."""
        return self.scratch_bytes if self.compiled is None else self.compiled.beyond_io_bytes


@dataclass(frozen=True)
class Partition:
    """One delegate with everything it was made from; ExecuTorch keeps it beside the delegate's node."""

    lowered: Lowered
    litert: bytes
    converted: ConvertedModel
    inside: ExportedProgram | None = None  # what it computes, if the delegate's module is a stand-in

    def __deepcopy__(self, memo: dict[int, Any]) -> Partition:
        return self  # ExecuTorch copies programs between its stages; this value never changes


class Converter(Protocol):
    """Turns a LiteRT model into microcode; every failure is an `OpenNeutronError`."""

    @property
    def name(self) -> str:
        """The name it is chosen by."""
        ...

    def refuses(self, graph: Graph) -> Reject | None:
        """Why the converter would refuse a LiteRT graph of one operator, where it can tell; else None."""
        ...

    def convert(self, litert: bytes, options: CompileOptions, target: Target) -> ConvertedModel:
        """Convert one static int8 LiteRT model."""
        ...
