"""Pools that the operator table does not have, in terms of the 2-D ones it has.

A maximum may be taken along one dimension after the other. An average is rounded once, so all taps of its
window must be summed together: the slices of a volume under a window are put side by side, pixel by pixel,
and the window over them is as much wider.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from openneutron.ops.common import per_axis
from openneutron.ops.pool import adaptive_windows, bands

Tensor = torch.Tensor


def _max_pool3d(
    self: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Tensor:
    kernel = per_axis(kernel_size, 3)
    steps = per_axis(stride, 3) if stride else kernel
    pads, taps = per_axis(padding, 3), per_axis(dilation, 3)
    *lead, depth, height, width = self.shape
    flat = self.reshape(*lead, depth, height * width)
    deep = F.max_pool2d(flat, (kernel[0], 1), (steps[0], 1), (pads[0], 0), (taps[0], 1), ceil_mode)
    slices = deep.shape[-2]
    planes = deep.reshape(*lead[:-1], lead[-1] * slices, height, width)
    planes = F.max_pool2d(planes, kernel[1:], steps[1:], pads[1:], taps[1:], ceil_mode)
    return planes.reshape(*lead, slices, *planes.shape[-2:])


def counts_beyond(arguments: dict[str, Any]) -> bool:
    """Whether an average pool divides by what no pool of the table counts: a number, or some padding."""
    counted = (
        arguments["ceil_mode"] and arguments["count_include_pad"] and max(per_axis(arguments["padding"], 2))
    )
    return bool(counted) or arguments.get("divisor_override") is not None


def average(
    self: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """An average pool along the last one or two dimensions, with its padding as zeros that are there."""
    dims = len(kernel_size)
    kernel, pads = per_axis(kernel_size, dims), per_axis(padding, dims)
    steps = per_axis(stride, dims) if stride else kernel
    after = []  # as far as windows reach; with a divisor of its own each is whole, else one may end before
    for n, k, s, p in zip(self.shape[-dims:], kernel, steps, pads, strict=True):
        reach = max((_outputs(n, k, s, p, ceil_mode) - 1) * s + k - p - n, 0)
        after.append(min(reach, p) if divisor_override is None else reach)
    around = [side for p, a in zip(reversed(pads), reversed(after), strict=True) for side in (p, a)]
    padded = F.pad(self, around) if any(around) else self
    pool = F.avg_pool1d if dims == 1 else F.avg_pool2d
    result = pool(padded, kernel, steps, 0, ceil_mode and divisor_override is None)
    return result if divisor_override is None else result * (math.prod(kernel) / divisor_override)


def _side_by_side(volume: Tensor) -> Tensor:
    """The slices of (..., D, H, W) as (..., H, W * D): pixel by pixel next to each other."""
    rank = volume.dim()
    moved = volume.permute(*range(rank - 3), rank - 2, rank - 1, rank - 3)
    return moved.reshape(*volume.shape[:-3], volume.shape[-2], volume.shape[-1] * volume.shape[-3])


def _avg_pool3d(
    self: Tensor, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:  # fmt: skip
    kernel = per_axis(kernel_size, 3)
    steps = per_axis(stride, 3) if stride else kernel
    pads = per_axis(padding, 3)
    sizes = self.shape[-3:]
    outs = [_outputs(n, k, s, p, ceil_mode) for n, k, s, p in zip(sizes, kernel, steps, pads, strict=True)]
    if divisor_override or (count_include_pad and any(pads)):
        # What counts is there: zeros around the volume, with a divisor of its own as many as windows reach.
        after = pads
        if divisor_override:
            after = [
                max((o - 1) * s + k - p - n, p)
                for o, s, k, p, n in zip(outs, steps, kernel, pads, sizes, strict=True)
            ]
        around = [side for p, a in zip(reversed(pads), reversed(after), strict=True) for side in (p, a)]
        self, pads = F.pad(self, around), [0, 0, 0]
    depth = self.shape[-3]
    planes = []
    for z in range(outs[0]):
        start = z * steps[0] - pads[0]
        window = self.narrow(-3, max(start, 0), min(start + kernel[0], depth) - max(start, 0))
        taps = window.shape[-3]
        planes.append(
            F.avg_pool2d(
                _side_by_side(window),
                (kernel[1], kernel[2] * taps),
                (steps[1], steps[2] * taps),
                (pads[1], pads[2] * taps),
                ceil_mode,
                count_include_pad=False,
            ).unsqueeze(-3)
        )
    result = torch.cat(planes, -3) if len(planes) > 1 else planes[0]
    return result * (math.prod(kernel) / divisor_override) if divisor_override else result


def _outputs(size: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """How many windows a pool has along one dimension."""
    reach = size + 2 * padding - kernel
    count = (-(-reach // stride) if ceil_mode else reach // stride) + 1
    # With ceil_mode a last window that would begin in the padding is left out.
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _adaptive_sizes(self: Tensor, output_size: Any, dims: int) -> list[int]:
    """The output's sizes; None among them keeps the input's."""
    wanted = per_axis(output_size, dims)
    return [n if w is None else w for n, w in zip(self.shape[-dims:], wanted, strict=True)]


def _adaptive_avg_pool3d(self: Tensor, output_size: Any) -> Tensor:
    depth, height, width = _adaptive_sizes(self, output_size, 3)
    planes = []
    for start, stop in adaptive_windows(self.shape[-3], depth):
        plane = _side_by_side(self.narrow(-3, start, stop - start))
        taps = stop - start
        rows = []
        for r in bands(adaptive_windows(self.shape[-2], height)):
            pieces = []
            for c in bands(adaptive_windows(self.shape[-1], width)):
                part = plane.narrow(-2, r.start, r.stop - r.start)
                part = part.narrow(-1, c.start * taps, (c.stop - c.start) * taps)
                pieces.append(F.avg_pool2d(part, (r.kernel, c.kernel * taps), (r.stride, c.stride * taps)))
            rows.append(_joined(pieces, -1))
        planes.append(_joined(rows, -2).unsqueeze(-3))
    return _joined(planes, -3)


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _adaptive_max(dims: int) -> Callable[..., Any]:
    def decomposition(self: Tensor, output_size: Any) -> tuple[Tensor, None]:
        outs = _adaptive_sizes(self, output_size, dims)
        for axis, out in zip(range(self.dim() - dims, self.dim()), outs, strict=True):
            self = _max_along(self, axis, out)
        return self, None

    return decomposition


def _max_along(x: Tensor, axis: int, out: int) -> Tensor:
    """An adaptive maximum along one axis: of (outer, axis, inner), the last two as a map."""
    shape = x.shape
    outer, inner = math.prod(shape[1:axis]), math.prod(shape[axis + 1 :])
    # The batch and the channels stay what they are where they can: fewer values have to be moved.
    batch = shape[0] if axis > 0 else 1
    flat = x.reshape(batch, outer, shape[axis], inner)
    parts = [
        F.max_pool2d(flat.narrow(2, b.start, b.stop - b.start), (b.kernel, 1), (b.stride, 1))
        for b in bands(adaptive_windows(shape[axis], out))
    ]
    return _joined(parts, 2).reshape(*shape[:axis], out, *shape[axis + 1 :])


def _first(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """For an operator that also gives indices, which nobody reads: only then all of its results are float."""
    return lambda **arguments: (function(**arguments), None)


def values_and_places(**arguments: Any) -> tuple[Tensor, Tensor]:
    """The maxima by themselves, which the NPU computes, and where they are, which the CPU finds."""
    with_places = torch.ops.aten.max_pool2d_with_indices.default
    return torch.ops.aten.max_pool2d.default(**arguments), with_places(**arguments)[1]


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "aten.max_pool2d_with_indices.default": _first(torch.ops.aten.max_pool2d.default),
    "aten.max_pool3d.default": _max_pool3d,
    "aten.max_pool3d_with_indices.default": _first(_max_pool3d),
    "aten.avg_pool3d.default": _avg_pool3d,
    "aten.adaptive_avg_pool3d.default": _adaptive_avg_pool3d,
    "aten._adaptive_avg_pool3d.default": _adaptive_avg_pool3d,
    "aten.adaptive_max_pool1d.default": _adaptive_max(1),
    "aten.adaptive_max_pool2d.default": _adaptive_max(2),
    "aten.adaptive_max_pool3d.default": _adaptive_max(3),
}
