"""The LiteRT form of a converted model: one custom operator `NeutronGraph` that holds all of it.

Its inputs are the model's inputs, then microcode, weights and kernels as constants; its outputs are the
model's outputs, then (with profiling) profile and debug, then scratch. NXP's converter returns this form and
ours writes it as `*_neutron.et.tflite`, so that one definition reads and writes both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openneutron.diagnostics import fail
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Graph, Op, Tensor, constant

CUSTOM_NAME = "NeutronGraph"


@dataclass(frozen=True)
class NeutronGraph:
    """The parts of a NeutronGraph operator."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    microcode: bytes
    weights: bytes
    kernels: bytes
    scratch_bytes: int
    profile_bytes: int = 0
    debug_bytes: int = 0


def write_neutron_graph(parts: NeutronGraph) -> bytes:
    """A LiteRT file with the one operator."""
    blobs: list[Tensor | None] = [
        _blob("microcode", parts.microcode),
        _blob("weights", parts.weights),
        _blob("kernels", parts.kernels),
    ]
    extra = [Tensor("scratch", (max(1, parts.scratch_bytes),), "uint8")]
    if parts.profile_bytes or parts.debug_bytes:
        sizes = (("profile", parts.profile_bytes), ("debug", parts.debug_bytes))
        extra = [Tensor(name, (max(1, size),), "uint8") for name, size in sizes] + extra
    op = Op(Builtin.CUSTOM, [*parts.inputs, *blobs], [*parts.outputs, *extra], custom_name=CUSTOM_NAME)
    graph = Graph(list(parts.inputs), list(parts.outputs), [op])
    return write(graph, "OpenNeutron: microcode for OpenNeutron's firmware, not for NXP silicon")


def read_neutron_graph(litert: bytes, profiling: bool, where: str) -> NeutronGraph:
    """The parts of the operator in a converted LiteRT file; anything else in the file is an error."""
    graph = read(litert, where)
    ops = [op for op in graph.ops if op.custom_name == CUSTOM_NAME]
    others = sorted({op.custom_name or op.kind.name for op in graph.ops} - {CUSTOM_NAME})
    if len(ops) != 1 or others:
        content = f"{len(ops)} {CUSTOM_NAME} operators" + (f" and {', '.join(others)}" if others else "")
        fail(
            "ON410",
            where,
            f"the converted model must be one {CUSTOM_NAME} operator; it has {content}",
            "The converter refused a part of the model: keep the operators it left over on the CPU with "
            "operators_not_to_delegate, or use the open converter.",
        )
    op = ops[0]
    extra = 3 if profiling else 1
    if len(op.inputs) < 3 or len(op.outputs) < extra:
        fail(
            "ON410",
            where,
            f"{CUSTOM_NAME} has {len(op.inputs)} inputs and {len(op.outputs)} outputs, "
            f"too few for microcode, weights, kernels and scratch",
        )
    blobs = [op.operand(len(op.inputs) - 3 + i) for i in range(3)]
    for name, blob in zip(("microcode", "weights", "kernels"), blobs, strict=True):
        if not blob.is_const and blob.elements > 0:
            fail("ON410", where, f"the {name} input of {CUSTOM_NAME} holds no data")
    microcode, weights, kernels = (b.array.tobytes() if b.is_const else b"" for b in blobs)
    sizes = [t.nbytes for t in op.outputs[-extra:]]
    return NeutronGraph(
        inputs=tuple(t for t in op.inputs[:-3] if t is not None),
        outputs=tuple(op.outputs[: len(op.outputs) - extra]),
        microcode=microcode,
        weights=weights,
        kernels=kernels,
        scratch_bytes=sizes[-1],
        profile_bytes=sizes[0] if profiling else 0,
        debug_bytes=sizes[1] if profiling else 0,
    )


def _blob(name: str, raw: bytes) -> Tensor:
    # LiteRT takes an empty buffer for "not a constant", so an empty part is one zero byte.
    return constant(name, np.frombuffer(raw or b"\0", np.uint8))
