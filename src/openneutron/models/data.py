"""Real data without a download: scikit-learn's 1797 handwritten digits, brought to any zoo input shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from openneutron.diagnostics import fail
from openneutron.models.weights import weights_path

TEST_SAMPLES = 360
_PIXEL_MAX = 16.0
_TO_CALIBRATE, _TO_TEST, _STEP = (
    3,
    8,
    1 / 40,
)  # samples of a class that are stored, and the step of their values


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


def store_samples(data: Dataset, name: str) -> None:
    """Keep some samples of every class with the package, in bytes: features need no more."""
    arrays = {}
    for part, split, count in (("train", data.train, _TO_CALIBRATE), ("test", data.test, _TO_TEST)):
        chosen = torch.cat(
            [torch.nonzero(split.labels == label)[:count, 0] for label in split.labels.unique()]
        )
        arrays[f"{part}_inputs"] = (
            (split.inputs[chosen] / _STEP).round().clamp(-128, 127).to(torch.int8).numpy()
        )
        arrays[f"{part}_labels"] = split.labels[chosen].numpy().astype(np.uint8)
    with weights_path(name).open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_stored(name: str) -> Dataset:
    """The samples that are kept with the package."""
    with np.load(weights_path(name)) as arrays:
        splits = [
            Split(torch.from_numpy(arrays[f"{part}_inputs"]) * _STEP,
                  torch.from_numpy(arrays[f"{part}_labels"]).long())
            for part in ("train", "test")
        ]  # fmt: skip
    return Dataset(*splits)


def as_frames(data: Dataset, shape: tuple[int, ...]) -> Dataset:
    """The samples (N, C, T), where a model takes a few of the T steps at a time, as sequences of frames."""
    steps = shape[-1]
    if steps == data.train.inputs.shape[-1]:
        return data
    parts = (data.train, data.test)
    frames = [torch.stack(part.inputs.split(steps, -1), 1).unsqueeze(2) for part in parts]
    return Dataset(*(Split(inputs, part.labels) for inputs, part in zip(frames, parts, strict=True)))


def fit_images(images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Grey images (N, H, W) resized to a model's input shape: (_, C, H, W), (_, H, W) or (_, features)."""
    if len(shape) == 4:
        channels, size = shape[1], shape[2:]
    elif len(shape) == 3:
        channels, size = 1, shape[1:]
    elif len(shape) == 2:
        # The most nearly square image with that many pixels.
        rows = next(n for n in range(math.isqrt(shape[1]), 0, -1) if shape[1] % n == 0)
        channels, size = 1, (rows, shape[1] // rows)
    else:
        fail(
            "ON104", "data set", f"cannot bring images to the shape {tuple(shape)}", "Two to four dimensions"
        )
    resized = F.interpolate(images[:, None], size=size, mode="bilinear", align_corners=False)
    return resized.expand(-1, channels, -1, -1).reshape(len(images), *shape[1:]).contiguous()
