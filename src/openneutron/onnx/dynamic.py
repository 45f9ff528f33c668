"""Files of onnxruntime's dynamic quantization, as the float models they were made from.

Their layers multiply integers whose scale is found anew at every run; the NPU has scales that are known
beforehand. The weights are taken back to float, and the model is quantized statically as any other.
"""

from __future__ import annotations

import logging
from typing import Any

import onnx
import torch

from openneutron.diagnostics import REMARK

logger = logging.getLogger(__name__)

_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_MICROSOFT = "com.microsoft"


def open_dynamic(model: Any, weights: dict[str, torch.Tensor], where: str) -> None:
    """Write layers that are quantized at run time in float, in place; what was done is said in a line."""
    opening = _Opening(model.graph, weights)
    count = opening.open()
    if count:
        text = "%s: %d layers that are quantized at run time are read as float; they are quantized before it"
        logger.log(REMARK, f"{text}, with the rest of the model", where, count)


class _Opening:
    def __init__(self, graph: Any, weights: dict[str, torch.Tensor]):
        self.graph, self.weights = graph, weights
        self.rounded = {
            n.output[0]: n for n in graph.node if n.op_type == "DynamicQuantizeLinear" and not n.domain
        }

    def open(self) -> int:
        count = 0
        for node in self.graph.node:
            if node.op_type in _PRODUCTS and not node.domain:
                count += self._open_product(node)
            elif node.op_type == "DynamicQuantizeLSTM" and node.domain == _MICROSOFT:
                count += self._open_lstm(node)
        read = {name for n in self.graph.node for name in n.input} | {o.name for o in self.graph.output}
        for node in list(self.rounded.values()):
            if not {node.output[0], *node.output[2:]} & read:  # only its scale is read: that of no rounding
                self.graph.node.remove(node)
                if node.output[1] in read:
                    self._store(node.output[1], torch.tensor(1.0))
        return count

    def _open_product(self, node: Any) -> bool:
        x, weight, *points = node.input
        source = self.rounded.get(x)
        zero = self.weights.get(points[1]) if len(points) > 1 and points[1] else torch.zeros(())
        if source is None or weight not in self.weights or zero is None:
            return False
        value, zero = self.weights[weight].float(), zero.float()
        if node.op_type == "ConvInteger" and zero.numel() > 1:
            zero = zero.reshape(-1, *[1] * (value.dim() - 1))
        name = self._store(f"{weight}_of_{node.output[0]}", value - zero)
        node.op_type = _PRODUCTS[node.op_type]
        del node.input[:]
        node.input.extend([source.input[0], name])
        return True

    def _open_lstm(self, node: Any) -> bool:
        inputs = [*node.input, *[""] * (12 - len(node.input))]
        parts = [inputs[i] for i in (1, 2, *range(8, 12))]
        if any(name not in self.weights for name in parts):
            return False
        try:
            opened = {
                p: self._opened(inputs[p], inputs[s], inputs[z]) for p, s, z in ((1, 8, 9), (2, 10, 11))
            }
        except (RuntimeError, IndexError):  # shapes that no such layer has: it is refused as it is
            return False
        for position, value in opened.items():
            inputs[position] = self._store(f"{inputs[position]}_of_{node.output[0]}", value)
        node.op_type, node.domain = "LSTM", ""
        del node.input[:]
        node.input.extend(inputs[:8])
        return True

    def _opened(self, name: str, scale: str, zero: str) -> torch.Tensor:
        """Weights as LSTM has them: directions, gates, inputs; here the last two are the other way round."""
        s, z = (self.weights[n].float() for n in (scale, zero))
        s, z = (p.reshape(p.shape[0], 1, -1) for p in (s, z))  # for each direction, or each gate of one
        return ((self.weights[name].float() - z) * s).transpose(1, 2).contiguous()

    def _store(self, name: str, value: torch.Tensor) -> str:
        self.weights[name] = value
        self.graph.initializer.append(onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[0]))
        return name
