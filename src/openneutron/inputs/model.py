"""A model as the user named it, whatever file or function it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openneutron.diagnostics import fail
from openneutron.models.zoo import ZooEntry

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class Source:
    """A model as the user named it; either `module` or `litert` is there."""

    name: str  # for file names
    module: torch.nn.Module | ExportedProgram | None
    example_inputs: tuple[Any, ...]
    calibration: Iterable[Any] | None = None
    litert: bytes | None = None
    entry: ZooEntry | None = None
    quantized: bool = False


def is_quantized(model: Any) -> bool:
    """Whether a model went through PT2E before: it has quantize steps."""
    graph = getattr(model, "graph", None)
    return graph is not None and any("quantize_per" in str(n.target) for n in graph.nodes)


def check_static(program: ExportedProgram, where: str) -> None:
    """Refuse a program whose shapes are not all numbers."""
    for node in program.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ())
        if any(not isinstance(size, int) for size in shape):
            fail(
                "ON205",
                f"{where}: {node.name}",
                f"has the shape {[str(s) for s in shape]}",
                "Neutron programs are static: export the model without dynamic_shapes.",
            )
