"""Layers whose weights are computed, as products of matrices.

Of a convolution, the taps of all windows are laid side by side, times the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.ops.common import per_axis

CONVOLUTIONS = ("aten.conv1d.default", "aten.conv2d.default")
MOST_TAPS = 64  # of a window: each is a slice


def has_computed_kernel(node: Node) -> bool:
    """Whether a node is a convolution in one or two dimensions with a kernel that depends on an input."""
    if op_name(node) not in CONVOLUTIONS:
        return False
    arguments = bind_args(node)
    weight = tensor_of(arguments["weight"])
    if weight is None or isinstance(arguments["padding"], str) or not _depends_on_input(arguments["weight"]):
        return False
    return weight.shape[2:].numel() <= MOST_TAPS


def has_computed_weights(node: Node) -> bool:
    """Whether a node is a linear layer with weights that depend on an input."""
    return op_name(node) == "aten.linear.default" and _depends_on_input(bind_args(node)["weight"])


def multiply(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer as a product of one pair of matrices."""
    rows = input.reshape(1, -1, input.shape[-1])
    result = torch.bmm(rows, weight.t().unsqueeze(0)).reshape(*input.shape[:-1], weight.shape[0])
    return result if bias is None else result + bias


def _depends_on_input(node: Node) -> bool:
    pending, seen = [node], {node}
    while pending:
        at = pending.pop()
        if at.op == "placeholder":
            return True
        new = [source for source in at.all_input_nodes if source not in seen]
        seen.update(new)
        pending += new
    return False


def convolve(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """The convolution as a product of matrices, one for each group of each sample."""
    dims = weight.dim() - 2
    steps, pads, gaps = (per_axis(value, dims) for value in (stride, padding, dilation))
    batched = input if input.dim() == dims + 2 else input.unsqueeze(0)
    if any(pads):
        batched = F.pad(batched, [side for p in reversed(pads) for side in (p, p)])
    samples, channels = batched.shape[:2]
    sizes = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, d, s in zip(batched.shape[2:], weight.shape[2:], gaps, steps, strict=True)
    ]
    taps = [
        _windows(batched, [t * d for t, d in zip(tap, gaps, strict=True)], steps, sizes)
        for tap in product(*(range(k) for k in weight.shape[2:]))
    ]
    side_by_side = taps[0] if len(taps) == 1 else torch.cat([tap.unsqueeze(2) for tap in taps], 2)
    matrix = side_by_side.reshape(samples * groups, channels // groups * len(taps), -1)
    kernel = weight.reshape(1, groups, weight.shape[0] // groups, -1)
    kernel = kernel.expand(samples, -1, -1, -1).reshape(samples * groups, -1, kernel.shape[-1])
    result = torch.bmm(kernel, matrix).reshape(samples, weight.shape[0], *sizes)
    if bias is not None:
        result = result + bias.reshape(1, -1, *[1] * dims)
    return result if input.dim() == dims + 2 else result.squeeze(0)


def _windows(x: Tensor, starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """What one tap reads: an element of each window."""
    for dim, (start, step, size) in enumerate(zip(starts, steps, sizes, strict=True), 2):
        end = start + (size - 1) * step + 1
        if (start, end, step) != (0, x.shape[dim], 1):
            x = torch.ops.aten.slice.Tensor(x, dim, start, end, step)
    return x
