"""Passes on Edge programs, and the one that makes a program take and return int8."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir import EdgeProgramManager, ExportedProgram
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.passes.quantize_io_pass import QuantizeInputs, QuantizeOutputs
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from openneutron.environment.stopwatch import PASSES, stage
from openneutron.fx import op_name
from openneutron.ops.shape import PERMUTE, RESHAPE, SQUEEZE, UNSQUEEZE
from openneutron.passes.base import Pass, check_order, run_passes
from openneutron.passes.functional import restore_names

QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
_MOVES = frozenset((*PERMUTE.names, *RESHAPE.names, *SQUEEZE.names, *UNSQUEEZE.names))


def merge_equal_quantization(model: GraphModule) -> bool:
    """Quantize a tensor once for all its readers that want the same parameters."""
    changed = False
    for node in list(model.graph.nodes):
        first: dict[Any, Node] = {}
        for user in list(node.users):
            if op_name(user) != QUANTIZE:
                continue
            kept = first.setdefault(user.args[1:], user)
            if kept is not user:
                user.replace_all_uses_with(kept)
                model.graph.erase_node(user)
                changed = True
    return changed


def remove_requantization(model: GraphModule) -> bool:
    """Drop dequantize followed by quantize with the same parameters: every integer comes back exactly."""
    changed = False
    for node in list(model.graph.nodes):
        source = node.args[0] if op_name(node) == QUANTIZE else None
        if not isinstance(source, Node) or op_name(source) != DEQUANTIZE or source.args[1:] != node.args[1:]:
            continue
        node.replace_all_uses_with(source.args[0])
        changed = True
    return changed


def quantize_before_movement(model: GraphModule) -> bool:
    """Quantize a tensor before it is moved rather than after: the same integers, and its maker is quantized.

    Other quantizers leave a pooling or a mean in float when only a reshape stands between it and the quantize
    step.
    """
    changed = False
    for node in reversed(list(model.graph.nodes)):
        steps = list(node.users)
        source = node.args[0] if op_name(node) in _MOVES else None
        if not isinstance(source, Node) or op_name(source) in (DEQUANTIZE, "") or len(source.users) != 1:
            continue
        if any(op_name(step) != QUANTIZE for step in steps) or len({step.args[1:] for step in steps}) != 1:
            continue
        first, before = steps[0], source.meta["val"]
        with model.graph.inserting_before(node):
            quantized = model.graph.call_function(first.target, (source, *first.args[1:]), first.kwargs)
            quantized.meta = {**first.meta, "val": before.to(first.meta["val"].dtype)}
            is_edge = not isinstance(first.target, OpOverload)
            ops = (exir_ops.edge if is_edge else torch.ops).quantized_decomposed
            target = ops.dequantize_per_tensor.default
            back = model.graph.call_function(target, (quantized, *first.args[1:]))
            back.meta = {**source.meta, "val": before}
        node.replace_input_with(source, back)
        changed = True
    return changed


_MERGE_EQUAL = Pass(
    "MergeEqualQuantization", "a tensor has one quantize step per set of parameters", merge_equal_quantization
)
REQUANTIZATION_PASSES: tuple[Pass, ...] = (
    Pass("RemoveRequantization", "no integers are converted to themselves", remove_requantization),
    _MERGE_EQUAL,
)
# Run on the Edge program before partitioning.
EDGE_PASSES: tuple[Pass, ...] = (
    Pass("QuantizeBeforeMovement", "what is quantized is not moved in float", quantize_before_movement),
    *REQUANTIZATION_PASSES,
)
check_order(EDGE_PASSES)


def run_edge_passes(model: GraphModule) -> PassResult:
    """All Edge passes, in the form `EdgeProgramManager.transform` and `to_edge_transform_and_lower` take."""
    with stage(PASSES):
        restore_names(model)
        return PassResult(run_passes(model, EDGE_PASSES), True)


def remove_quant_io(manager: EdgeProgramManager) -> EdgeProgramManager:
    """Let every method take and return int8 where inputs are quantized at once or outputs dequantized last.

    The parameters a caller then needs are recorded in the program, as ExecuTorch does it: `input0_scale`,
    `input0_zp`, `output0_scale` and so on are methods of their own.
    """
    return manager.transform({name: io_passes(manager, name) for name in manager.methods})


def io_passes(manager: EdgeProgramManager, method: str) -> list[Any]:
    """ExecuTorch's passes that make one method take and return int8."""
    program = manager.exported_program(method)
    run_passes(program.graph_module, (_MERGE_EQUAL,))
    # ExecuTorch's passes record the parameters of the default method only; they name it without a prefix.
    owner = manager if method == "forward" else None
    return [
        QuantizeInputs(owner, _quantized_inputs(program), exported_program=program),
        QuantizeOutputs(owner, _dequantized_outputs(program), exported_program=program),
    ]


def _quantized_inputs(program: ExportedProgram) -> list[int]:
    by_name = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    users = [list(by_name[name].users) for name in program.graph_signature.user_inputs if name in by_name]
    return [i for i, readers in enumerate(users) if len(readers) == 1 and op_name(readers[0]) == QUANTIZE]


def _dequantized_outputs(program: ExportedProgram) -> list[int]:
    outputs = program.graph.output_node().args[0]
    return [i for i, node in enumerate(outputs) if isinstance(node, Node) and op_name(node) == DEQUANTIZE]
