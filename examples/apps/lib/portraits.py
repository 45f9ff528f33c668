"""Portraits that scikit-image and matplotlib ship, with the faces in them marked by hand."""

from __future__ import annotations

import numpy as np
from PIL import Image

from benchmarks.trained_networks import photograph

PORTRAITS = {"astronaut.png": (173, 83, 274, 180), "grace_hopper.jpg": (170, 140, 359, 343),
             "camera.png": (182, 128, 267, 197)}  # fmt: skip


def portrait(
    name: str, width: float, margin: float, random: np.random.Generator
) -> tuple[Image.Image, tuple[float, ...]]:
    """A face so many pixels wide with a margin of so many times that, and where in the picture it is.

    Some are lighter or darker than in life, some mirrored.
    """
    image, (left, top, right, bottom) = photograph(name), PORTRAITS[name]
    scale, around = width / (right - left), (right - left) * margin
    edges = [max(0, left - around), max(0, top - around), min(image.width, right + around),
             min(image.height, bottom + around)]  # fmt: skip
    cut = image.crop([round(e) for e in edges])
    cut = cut.resize((round(cut.width * scale), round(cut.height * scale)))
    cut = Image.fromarray(np.clip(np.asarray(cut) * random.uniform(0.75, 1.2), 0, 255).astype(np.uint8))
    x0, x1 = (left - edges[0]) * scale, (right - edges[0]) * scale
    if random.random() < 0.5:
        cut, x0, x1 = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT), cut.width - x1, cut.width - x0
    return cut, (x0, (top - edges[1]) * scale, x1, (bottom - edges[1]) * scale)
