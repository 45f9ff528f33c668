"""What the weights of a layer are multiplied with: the second moments of its input patches on samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from openneutron.fx import bind_args, op_name
from openneutron.ops.common import per_axis
from openneutron.quantize.prepared_model.model import Layer
from openneutron.quantize.prepared_model.walk import Step

_CONVOLUTIONS = ("aten.conv1d.default", "aten.conv2d.default", "aten.conv1d.padding", "aten.conv2d.padding")


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments about the mean, per group: of the rounded inputs, and of exact with rounded ones."""

    rounded: Tensor  # (groups, K, K)
    crossed: Tensor
    count: int  # of patches


def is_measurable(layer: Layer) -> bool:
    """Whether the patches of a layer can be told: linear layers and convolutions."""
    return op_name(layer.node) in (*_CONVOLUTIONS, "aten.linear.default")


def moments(step: Step, shape: torch.Size) -> Moments:
    """The moments of a layer's inputs, with the same patches of both."""
    inputs = math.prod(shape[1:])
    share = max(1, step.share.of(inputs) // len(step.inputs))
    sides: tuple[list[Tensor], list[Tensor]] = [], []
    for index, pair in enumerate(zip(step.inputs, step.exact_inputs, strict=True)):
        for side, x in zip(sides, pair, strict=True):
            generator = torch.Generator().manual_seed(index)
            side.append(_patches(step.layer, x, shape, share, generator))
    a, b = (torch.cat(side, -1) for side in sides)
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    count = a.shape[-1]
    return Moments((a @ a.mT).double() / count, (b @ a.mT).double() / count, count)


def _patches(layer: Layer, x: Tensor, shape: torch.Size, share: int, generator: torch.Generator) -> Tensor:
    """Some of the patches a layer multiplies, as (groups, K, count)."""
    if op_name(layer.node) == "aten.linear.default":
        rows = x.reshape(-1, x.shape[-1])
        return rows[_some(len(rows), share, generator)].T[None]
    args = bind_args(layer.node)
    rank = len(shape) - 2
    stride, dilation = (per_axis(args[name], rank) for name in ("stride", "dilation"))
    x = _padded(x, args["padding"], shape, dilation, rank)
    if rank == 1:
        x, shape = x[:, :, None], torch.Size((*shape[:2], 1, shape[2]))
        stride, dilation = [1, *stride], [1, *dilation]
    height, width = (
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.shape[2:], shape[2:], stride, dilation, strict=True)
    )
    chosen = _some(x.shape[0] * height * width, share, generator)
    n, y, column = chosen // (height * width), chosen // width % height, chosen % width
    parts = [
        x[n, :, y * stride[0] + i * dilation[0], column * stride[1] + j * dilation[1]]
        for i in range(shape[2])
        for j in range(shape[3])
    ]
    found = torch.stack(parts, -1)  # (count, channels, kernel)
    return found.reshape(len(chosen), layer.groups, -1).permute(1, 2, 0).contiguous()


def _padded(x: Tensor, padding: Any, shape: torch.Size, dilation: list[int], rank: int) -> Tensor:
    if padding == "valid":
        return x
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, shape[2:], strict=True)]
        sides = [side for t in reversed(total) for side in (t // 2, t - t // 2)]
    else:
        sides = [side for p in reversed(per_axis(padding, rank)) for side in (p, p)]
    return F.pad(x, sides)


def _some(count: int, share: int, generator: torch.Generator) -> Tensor:
    if count <= share:
        return torch.arange(count)
    return torch.randperm(count, generator=generator)[:share]
