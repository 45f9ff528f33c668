"""Weights in the order in which the CPU's kernels read them."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from openneutron.fx import op_name

_TRANSPOSE = "aten.permute_copy.default"


def store_transposed(program: ExportedProgram) -> None:
    """Store weights transposed where nothing reads them but their transpose.

    Edge writes a linear layer as a product with the transpose of its weights, which the CPU would compute in
    every run again, and for one row that takes as long as the product.
    """
    copied = False
    for node in program.graph.find_nodes(op="placeholder"):
        name = _constant(program, node)
        readers = list(node.users)
        dims = {tuple(r.args[1]) if op_name(r) == _TRANSPOSE else () for r in readers}
        returned = any(user.op == "output" for reader in readers for user in reader.users)
        if not name or len(dims) != 1 or () in dims or returned:
            continue
        if not copied:  # the caller's program has the same dictionaries
            program._state_dict, program._constants = {**program.state_dict}, {**program.constants}
            copied = True
        held: dict[str, Any] = program._state_dict if name in program._state_dict else program._constants
        weights = held[name]
        turned = weights.detach().permute(*dims.pop()).contiguous()
        held[name] = torch.nn.Parameter(turned, False) if isinstance(weights, torch.nn.Parameter) else turned
        node.meta["val"] = readers[0].meta["val"]
        for reader in readers:
            reader.replace_all_uses_with(node)
            program.graph.erase_node(reader)
    program.graph_module.recompile()


def _constant(program: ExportedProgram, node: Node) -> str | None:
    """The name of what never changes; None for inputs and states."""
    signature = program.graph_signature
    buffer = signature.inputs_to_buffers.get(node.name)
    if buffer in signature.buffers_to_mutate.values():
        return None
    return (
        buffer
        or signature.inputs_to_parameters.get(node.name)
        or signature.inputs_to_lifted_tensor_constants.get(node.name)
    )
