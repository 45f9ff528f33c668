"""Constants of an exported program: parameters, buffers, lifted tensors, and shape operators on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node

from openneutron.fx import bind_args, op_name, overload
from openneutron.litert.ir import Quant
from openneutron.ops.shape import PERMUTE, RESHAPE, SQUEEZE, UNSQUEEZE, permutation
from openneutron.ops.spec import Call, Value

DEQUANTIZE_TENSOR = "quantized_decomposed.dequantize_per_tensor.default"
DEQUANTIZE_CHANNEL = "quantized_decomposed.dequantize_per_channel.default"
QUANTIZE_TENSOR = "quantized_decomposed.quantize_per_tensor.default"
DEQUANTIZE = frozenset({DEQUANTIZE_TENSOR, DEQUANTIZE_CHANNEL})

# A weight may stand behind these: a linear layer that was decomposed has its weight transposed.
_RESHAPES = frozenset((*PERMUTE.names, *RESHAPE.names, *SQUEEZE.names, *UNSQUEEZE.names))


@dataclass(frozen=True)
class Constant:
    """Values (integers if quantized) and parameters; the values may be unknown while partitioning."""

    tensor: torch.Tensor
    quant: Quant | None
    dtype: str

    def array(self) -> np.ndarray:
        """The values as NumPy; zeros while they are unknown: what is decided then depends on shapes."""
        if isinstance(self.tensor, FakeTensor):
            return np.zeros(tuple(self.tensor.shape), self.dtype)
        # Not ascontiguousarray, which gives a tensor without dimensions one.
        return np.asarray(self.tensor.detach().cpu().numpy(), order="C")


class Constants:
    """Looks up which nodes of a program are constants."""

    def __init__(self, program: ExportedProgram):
        signature = program.graph_signature
        mutated = set(signature.buffers_to_mutate.values())
        self._tensors: dict[str, torch.Tensor] = {}
        for inputs in (
            signature.inputs_to_parameters,
            signature.inputs_to_buffers,
            signature.inputs_to_lifted_tensor_constants,
        ):
            for name, target in inputs.items():
                tensor = program.state_dict.get(target, program.constants.get(target))
                if tensor is not None and target not in mutated:
                    self._tensors[name] = tensor
        self._module = program.graph_module

    def stored(self, node: Node) -> torch.Tensor | None:
        """The tensor behind a parameter, buffer or lifted constant; None for anything else."""
        if node.op == "placeholder":
            return self._tensors.get(node.name)
        if node.op == "get_attr":
            value = getattr(self._module, str(node.target), None)
            return value if isinstance(value, torch.Tensor) else None
        return None

    def find(self, node: Node) -> tuple[Constant, list[Node]] | None:
        """The constant that a node stands for, with the operators it stands behind; None if it is not one."""
        name = op_name(node)
        if name in DEQUANTIZE:
            inner = self.find(bind_args(node)["input"])
            if inner is None:
                return None
            constant, nodes = inner
            quant = self._quant(node)
            return (
                None if quant is None else (Constant(constant.tensor, quant, constant.dtype), [*nodes, node])
            )
        if name in _RESHAPES:
            inner = self.find(node.all_input_nodes[0])
            return None if inner is None else self._reshaped(node, *inner)
        tensor = self.stored(node)
        if tensor is None:
            return None
        return Constant(tensor, None, str(tensor.dtype).removeprefix("torch.")), []

    def _reshaped(
        self, node: Node, constant: Constant, nodes: list[Node]
    ) -> tuple[Constant, list[Node]] | None:
        op = overload(node)
        assert op is not None
        quant = constant.quant
        if quant is not None and not quant.is_per_tensor:
            if op_name(node) not in PERMUTE.names:
                return None
            order = _permutation(node, constant.tensor.ndim)
            quant = Quant(quant.scale, quant.zero_point, order.index(quant.axis))
        values = op(constant.tensor, *node.args[1:], **node.kwargs)
        return Constant(values, quant, constant.dtype), [*nodes, node]

    def _quant(self, node: Node) -> Quant | None:
        """The parameters of a dequantize node; per-channel ones are themselves constants."""
        args = bind_args(node)
        if op_name(node) == DEQUANTIZE_TENSOR:
            return per_tensor_quant(node)
        scales, zeros = self.stored(args["scales"]), self.stored(args["zero_points"])
        if scales is None:
            return None
        axis = int(args["axis"])
        if isinstance(
            scales, FakeTensor
        ):  # while partitioning, values are unknown; only their number matters
            return Quant((1.0,) * scales.numel(), (0,) * scales.numel(), axis)
        zero_points = None if zeros is None else zeros.detach().cpu().numpy()
        return Quant.per_axis(scales.detach().cpu().numpy(), zero_points, axis)


def _permutation(node: Node, rank: int) -> list[int]:
    args = dict(bind_args(node))
    args["self"] = Value("w", (1,) * rank, "int8")
    return permutation(Call(node.name, op_name(node), args, args["self"]))


def per_tensor_quant(node: Node) -> Quant | None:
    """The parameters of a per-tensor quantize or dequantize node, if they are numbers."""
    args = bind_args(node)
    scale, zero_point = args["scale"], args["zero_point"]
    if not isinstance(scale, int | float) or not isinstance(zero_point, int | float):
        return None
    return Quant.per_tensor(float(scale), int(zero_point))
