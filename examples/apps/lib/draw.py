"""Charts and captions, with Pillow alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

INK, PALE, PAPER = (30, 34, 42), (205, 209, 216), (255, 255, 255)
BLUE, ORANGE, GREEN, RED = (31, 102, 190), (224, 122, 24), (46, 139, 87), (200, 45, 52)
Box = tuple[int, int, int, int]


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own."""
    return ImageFont.load_default(size)


class Sheet:
    """A white page to draw on."""

    def __init__(self, width: int, height: int):
        self.image = Image.new("RGB", (width, height), PAPER)
        self.pen = ImageDraw.Draw(self.image)

    def text(
        self, x: float, y: float, text: str, size: int = 15, ink: tuple = INK, anchor: str = "la"
    ) -> None:
        """Words at a place."""
        self.pen.text((x, y), text, ink, font(size), anchor=anchor)

    def curve(
        self, box: Box, xs: np.ndarray, ys: np.ndarray, ink: tuple, low: float, high: float, width: int = 2
    ) -> None:
        """A line through points; x from 0 to 1."""
        x0, y0, x1, y1 = box
        px = x0 + xs * (x1 - x0)
        py = y1 - (np.clip(ys, low, high) - low) / (high - low) * (y1 - y0)
        self.pen.line([*zip(px.tolist(), py.tolist(), strict=True)], fill=ink, width=width, joint="curve")

    def frame(self, box: Box, title: str = "") -> None:
        """The edge of a chart, with a title above."""
        self.pen.rectangle(box, outline=PALE)
        self.text(box[0], box[1] - 22, title)

    def map(self, box: Box, values: np.ndarray, low: float, high: float) -> None:
        """Values (rows, columns), the first row lowest, from dark to bright."""
        shades = np.clip((values - low) / (high - low), 0, 1)
        stops = np.array([[18, 16, 48], [92, 28, 110], [200, 60, 85], [248, 150, 60], [252, 245, 170]])
        places = shades[::-1] * (len(stops) - 1)
        below = np.minimum(places.astype(int), len(stops) - 2)
        part = (places - below)[..., None]
        colours = stops[below] * (1 - part) + stops[below + 1] * part
        picture = Image.fromarray(colours.astype(np.uint8))
        self.image.paste(
            picture.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.NEAREST), box[:2]
        )

    def legend(self, x: int, y: int, entries: Sequence[tuple[str, tuple]], size: int = 14) -> None:
        """Names beside their colours, one below the other."""
        for number, (name, ink) in enumerate(entries):
            at = y + number * (size + 6)
            self.pen.rectangle((x, at + 3, x + 16, at + size - 3), fill=ink)
            self.text(x + 24, at, name, size)
