"""The shapes of a recurrent layer's results, whatever its length: torch would go through all of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor

from openneutron.fast_export.shortcuts import RECURRENT_SHAPES, is_taken

_aten = torch.ops.aten
_LAYERS = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_STEPS = 2  # the results of so many are laid out as those of any number


@contextmanager
def shapes_of_few_steps() -> Iterator[None]:
    """Let torch find what a recurrent layer gives for fake inputs from its first steps."""
    if not is_taken(RECURRENT_SHAPES):
        yield
        return
    before = {op: dict(op.py_kernels) for op in _LAYERS}
    try:
        for op in _LAYERS:
            originals = {key: _of_few(op.py_kernels[key]) for key in _KEYS if key in op.py_kernels}
            _set(op, {**op.py_kernels, **originals})
        yield
    finally:
        for op, kernels in before.items():
            _set(op, kernels)


def _set(op: Any, kernels: dict[Any, Any]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


def _of_few(kernel: Any) -> Callable[..., Any]:
    def call(input: Any, *rest: Any) -> Any:
        # The last argument says whether batches come first, before time.
        time = 1 if rest and rest[-1] is True else 0
        fixed = isinstance(input, FakeTensor) and all(isinstance(d, int) for d in input.shape)
        if not fixed or len(rest) != 8 or input.ndim != 3 or input.shape[time] <= _STEPS:
            return kernel(input, *rest)
        result, *ends = kernel(input.narrow(time, 0, _STEPS), *rest)
        shape = [*result.shape]
        shape[time] = input.shape[time]
        # From the innermost dimension: steps are outermost, which a batch of one does not show.
        outwards = sorted(range(result.ndim), key=lambda dim: (result.stride(dim), dim == time))
        strides, size = [0] * result.ndim, 1
        for dim in outwards:
            strides[dim], size = size, size * shape[dim]
        return (result.new_empty_strided(shape, strides), *ends)

    return call
