"""Real data without a download: scikit-learn's 1797 handwritten digits, brought to any zoo input shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from openneutron.diagnostics import fail

TEST_SAMPLES = 360
_PIXEL_MAX = 16.0


@dataclass(frozen=True)
class Split:
    """Samples in the first dimension of `inputs`, and their labels."""

    inputs: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A training and a test split that share no sample."""

    train: Split
    test: Split


def load_digits(shape: tuple[int, ...], classes: int | None = 10) -> Dataset:
    """The digits as inputs of that shape (its batch size is ignored), values from -1 to 1.

    The split is the same every time and holds each digit in equal proportion. With fewer than ten classes the
    label is the digit modulo their number: two classes tell even from odd.
    """
    from sklearn.datasets import load_digits as load
    from sklearn.model_selection import train_test_split

    digits = load()
    images = fit_images(torch.tensor(digits.images, dtype=torch.float32) * (2 / _PIXEL_MAX) - 1, shape)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    if classes is not None and classes < 10:
        labels = labels % classes
    train, test = train_test_split(
        range(len(labels)), test_size=TEST_SAMPLES, random_state=0, stratify=digits.target
    )
    return Dataset(Split(images[train], labels[train]), Split(images[test], labels[test]))


def fit_images(images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Grey images (N, H, W) resized to a model's input shape: (_, C, H, W), (_, H, W) or (_, features)."""
    if len(shape) == 4:
        channels, size = shape[1], shape[2:]
    elif len(shape) == 3:
        channels, size = 1, shape[1:]
    elif len(shape) == 2:
        # The most nearly square picture with that many pixels.
        rows = next(n for n in range(math.isqrt(shape[1]), 0, -1) if shape[1] % n == 0)
        channels, size = 1, (rows, shape[1] // rows)
    else:
        fail(
            "ON104", "data set", f"cannot bring images to the shape {tuple(shape)}", "Two to four dimensions"
        )
    resized = F.interpolate(images[:, None], size=size, mode="bilinear", align_corners=False)
    return resized.expand(-1, channels, -1, -1).reshape(len(images), *shape[1:]).contiguous()
