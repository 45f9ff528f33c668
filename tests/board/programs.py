"""Programs of ExecuTorch alone, which the stock firmware runs, and what a fake board needs of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from executorch.exir import to_edge

from openneutron.package.pte import inspect_program, tensor_bytes
from openneutron.run.program import load_program
from tests.board.fake import Model, Shape


class Layer(torch.nn.Module):
    def __init__(self, inputs: int = 6, outputs: int = 3):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def portable(module: torch.nn.Module, *inputs: torch.Tensor) -> bytes:
    """A program of ExecuTorch's own flow, without a delegate."""
    return bytes(to_edge(torch.export.export(module.eval(), inputs)).to_executorch().buffer)


@cache
def layer_program() -> bytes:
    """A program of one linear layer on the CPU: its operators are the stock firmware's."""
    return portable(Layer(), torch.ones(1, 6))


def model_of(data: bytes) -> Model:
    """What a board that computes right would do with a program: the host computes for it."""
    info = inspect_program(data)
    (method,) = info.methods.values()
    loaded = load_program(data, trust=True)

    def shape(spec) -> Shape:
        return Shape(spec.dtype, spec.shape, tensor_bytes(spec), spec.dim_order)

    def compute(given: bytes) -> list[bytes]:
        spec = method.inputs[0]
        array = np.frombuffer(given, spec.dtype).reshape(spec.shape)
        return [np.ascontiguousarray(a).tobytes() for a in loaded.run([array], method.name)]

    return Model([shape(s) for s in method.inputs], [shape(s) for s in method.outputs], compute)
