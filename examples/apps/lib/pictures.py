"""Pictures for networks: resized in whole numbers, so that `pictures.c` gives the same bytes."""

from __future__ import annotations

import numpy as np


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear, of (height, width, 3) bytes, in steps of 1/256 of a pixel."""
    rows, row_parts = _places(pixels.shape[0], height)
    columns, column_parts = _places(pixels.shape[1], width)
    wide = pixels.astype(np.int32)
    below = np.minimum(rows + 1, pixels.shape[0] - 1)
    right = np.minimum(columns + 1, pixels.shape[1] - 1)
    part = column_parts[None, :, None]
    top = wide[rows][:, columns] * (256 - part) + wide[rows][:, right] * part
    bottom = wide[below][:, columns] * (256 - part) + wide[below][:, right] * part
    part = row_parts[:, None, None]
    return ((top * (256 - part) + bottom * part + 32768) >> 16).astype(np.uint8)


def average(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Every pixel the mean of the area that it stands for, as adaptive average pooling has it."""
    rows, columns = (
        [(i * size // wanted, -(-(i + 1) * size // wanted)) for i in range(wanted)]
        for size, wanted in ((pixels.shape[0], height), (pixels.shape[1], width))
    )
    sums = np.zeros((pixels.shape[0] + 1, pixels.shape[1] + 1, 3), np.int64)
    sums[1:, 1:] = pixels.cumsum(0, np.int64).cumsum(1)
    (top, bottom), (left, right) = np.array(rows).T[..., None], np.array(columns).T
    total = sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left]
    count = ((bottom - top) * (right - left))[..., None]
    return ((2 * total + count) // (2 * count)).astype(np.uint8)


def as_planes(pixels: np.ndarray, mean: tuple, deviation: tuple) -> np.ndarray:
    """Bytes as a network reads them."""
    values = (pixels.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(deviation)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def _places(size: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """For every pixel that is wanted the one before it, and the 256ths towards the next."""
    places = ((2 * np.arange(wanted, dtype=np.int64) + 1) * size * 128) // wanted - 128
    places = np.clip(places, 0, (size - 1) * 256)
    return (places >> 8).astype(np.int64), (places & 255).astype(np.int32)
