"""Resize and Upsample: interpolation along each dimension, with weights that are known now."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from openneutron.onnx.spec import Call, Case, OnnxOp, Unsupported, normalized
from openneutron.onnx.values import Tensor

_LONGEST = 1 << 16  # of one dimension of a result
_COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "half_pixel_symmetric", "tf_half_pixel_for_nn",
)  # fmt: skip
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _resize(call: Call) -> Tensor:
    x = call.tensor(0)
    rank = x.dim()
    old = call.version < 11
    mode = call.choice("mode", ("nearest", "linear", "bilinear", "cubic"), "nearest")
    mode = "linear" if mode == "bilinear" else mode
    axes = [normalized(int(a), rank) for a in call.attr("axes") or range(rank)]
    sizes, scales = _wanted(call, [int(x.shape[a]) for a in axes], old)
    if not all(0 <= size <= _LONGEST for size in sizes):
        raise Unsupported(
            f"its result would have the dimensions {sizes}",
            f"Up to {_LONGEST} each are read: no such image fits the chip; the file may be damaged.",
            "ON907",
        )
    coordinates = (
        "asymmetric" if old else call.choice("coordinate_transformation_mode", _COORDINATES, "half_pixel")
    )
    roi = None
    if coordinates == "tf_crop_and_resize":
        roi = [float(v) for v in call.static(1, "roi").reshape(-1)]
    weights: dict[int, np.ndarray] = {}
    for i, axis in enumerate(axes):
        if sizes[i] == x.shape[axis] and scales[i] == 1 and roi is None:
            continue
        window = None if roi is None else (roi[i], roi[i + len(axes)])
        weights[axis] = _matrix(call, int(x.shape[axis]), sizes[i], scales[i], mode, coordinates, window, old)
    if not weights:
        return x
    if _as_torch(x, weights, mode) is not None:
        result = _as_torch(x, weights, mode)
        assert result is not None
        align = result == "corners"
        size = [len(weights[a]) if a in weights else int(x.shape[a]) for a in range(2, rank)]
        if mode == "nearest":
            return F.interpolate(x, size=size, mode="nearest")
        return F.interpolate(x, size=size, mode="linear" if rank == 3 else "bilinear", align_corners=align)
    for axis, matrix in weights.items():
        if mode == "nearest" and roi is None:
            places = torch.from_numpy(matrix.argmax(1))
            x = x.index_select(axis, places)
            continue
        outside = matrix.sum(1) == 0
        table = torch.from_numpy(matrix).to(x.dtype if x.is_floating_point() else torch.float32)
        y = torch.movedim(torch.matmul(torch.movedim(x, axis, -1).to(table.dtype), table.t()), -1, axis)
        if roi is not None and outside.any():
            fill = float(call.attr("extrapolation_value", 0.0))
            shape = [-1 if i == axis else 1 for i in range(rank)]
            y = torch.where(torch.from_numpy(outside).reshape(shape), torch.full_like(y, fill), y)
        x = y if x.is_floating_point() else torch.round(y).to(x.dtype)
    return x


def _wanted(call: Call, have: list[int], old: bool) -> tuple[list[int], list[float]]:
    """The size of each dimension, and the scale that the coordinates are computed with."""
    if call.node.op == "Upsample" and call.version < 9:
        scales = [float(s) for s in call.required("scales")]
    else:
        index = 1 if old else 2
        scales = [float(s) for s in call.static(index, "scales").reshape(-1)] if call.has(index) else []
    if scales:
        if len(scales) != len(have):
            raise Unsupported(f"it has {len(scales)} scales for {len(have)} dimensions")
        return [int(np.floor(n * s)) for n, s in zip(have, scales, strict=True)], scales
    sizes = call.ints(3, "sizes")
    if len(sizes) != len(have):
        raise Unsupported(f"it has {len(sizes)} sizes for {len(have)} dimensions")
    policy = call.choice("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"), "stretch")
    if policy == "stretch":
        return sizes, [s / n for s, n in zip(sizes, have, strict=True)]
    pick = min if policy == "not_larger" else max
    scale = pick(s / n for s, n in zip(sizes, have, strict=True))
    return [int(np.floor(scale * n + 0.5)) for n in have], [scale] * len(have)


def _matrix(
    call: Call,
    size: int,
    out: int,
    scale: float,
    mode: str,
    coordinates: str,
    window: tuple[float, float] | None,
    old: bool,
) -> np.ndarray:
    """The share that each element of the input has in each of the output."""
    at = np.arange(out, dtype=np.float64)
    if coordinates == "align_corners":
        span = scale * size - 1  # not rounded, also where the size is
        source = at * (size - 1) / span if out > 1 else np.zeros(1)
    elif coordinates == "asymmetric":
        source = at / scale
    elif coordinates == "tf_half_pixel_for_nn":
        source = (at + 0.5) / scale
    elif coordinates == "pytorch_half_pixel" and out == 1:
        source = np.zeros(1)
    elif window is not None:
        first, last = window
        if out > 1:
            source = first * (size - 1) + at * (last - first) * (size - 1) / (out - 1)
        else:
            source = np.array([0.5 * (first + last) * (size - 1)])
    elif coordinates == "half_pixel_symmetric":
        adjusted = out / (scale * size)
        source = size / 2 * (1 - adjusted) + (at + 0.5) / scale - 0.5
    else:
        source = (at + 0.5) / scale - 0.5
    matrix = np.zeros((out, size))
    rows = np.arange(out)
    if mode == "nearest":
        how = call.choice("nearest_mode", _NEAREST, "floor" if old else "round_prefer_floor")
        places = {
            "floor": np.floor(source),
            "ceil": np.ceil(source),
            "round_prefer_floor": np.ceil(source - 0.5),
            "round_prefer_ceil": np.floor(source + 0.5),
        }[how]
        matrix[rows, places.clip(0, size - 1).astype(int)] = 1
    else:
        _add_taps(call, matrix, source, scale, mode)
    if window is not None:
        matrix[(source < 0) | (source > size - 1)] = 0
    return matrix


def _add_taps(call: Call, matrix: np.ndarray, source: np.ndarray, scale: float, mode: str) -> None:
    size = matrix.shape[1]
    stretch = max(1 / scale, 1.0) if call.attr("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) * stretch
    slope = float(call.attr("cubic_coeff_a", -0.75))
    for row, centre in enumerate(source):
        taps = np.arange(int(np.floor(centre - reach)), int(np.ceil(centre + reach)) + 1)
        distance = np.abs(taps - centre) / stretch
        if mode == "linear":
            shares = np.maximum(1 - distance, 0)
        else:
            near = (slope + 2) * distance**3 - (slope + 3) * distance**2 + 1
            far = slope * (distance**3 - 5 * distance**2 + 8 * distance - 4)
            shares = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
        if call.attr("exclude_outside", 0):
            shares = np.where((taps < 0) | (taps >= size), 0.0, shares)
        shares = shares / shares.sum()
        np.add.at(matrix[row], taps.clip(0, size - 1), shares)


def _as_torch(x: Tensor, weights: dict[int, np.ndarray], mode: str) -> str | None:
    """How torch.nn.functional.interpolate computes the same, if it does."""
    if x.dim() not in (3, 4) or min(weights) < 2 or not x.is_floating_point() or mode == "cubic":
        return None
    if mode == "nearest":
        same = all(
            (m.argmax(1) == np.floor(np.arange(len(m)) * (m.shape[1] / len(m)))).all()
            for m in weights.values()
        )
        return "nearest" if same else None
    for name, align in (("half", False), ("corners", True)):
        if all(np.allclose(m, _torch_linear(m.shape[1], len(m), align), atol=1e-9) for m in weights.values()):
            return name
    return None


def _torch_linear(size: int, out: int, align: bool) -> np.ndarray:
    at = np.arange(out, dtype=np.float64)
    if align:
        source = at * (size - 1) / max(out - 1, 1)
    else:
        source = np.maximum((at + 0.5) * size / out - 0.5, 0)
    low = np.minimum(np.floor(source).astype(int), size - 1)
    high, share = np.minimum(low + 1, size - 1), source - low
    matrix = np.zeros((out, size))
    rows = np.arange(out)
    np.add.at(matrix, (rows, low), 1 - share)
    np.add.at(matrix, (rows, high), share)
    return matrix


def _grid_sample(call: Call) -> Tensor:
    mode = call.choice("mode", ("linear", "bilinear", "nearest", "cubic", "bicubic"), "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding = call.choice("padding_mode", ("zeros", "border", "reflection"), "zeros")
    align = bool(call.attr("align_corners", 0))
    return F.grid_sample(call.tensor(0), call.tensor(1), mode, padding, align)


def _case(label: str, opset: int = 13, **attributes: str) -> Case:
    scales = np.array([1, 1, 2, 2], np.float32)
    inputs = ((1, 2, 4, 5), scales) if opset < 11 else ((1, 2, 4, 5), None, scales)
    return Case(label, inputs, attributes, (len(inputs) - 1,), opset=opset)


OPERATORS: tuple[OnnxOp, ...] = (
    OnnxOp(
        "Resize",
        19,
        _resize,
        cases=(
            _case(
                "nearest", mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
            ),
            _case("linear", mode="linear"),
            _case("corners", mode="linear", coordinate_transformation_mode="align_corners"),
            _case("opset 10", opset=10, mode="nearest"),
        ),
    ),
    OnnxOp("Upsample", 10, _resize, oldest=7),
    OnnxOp("GridSample", 22, _grid_sample),
)
