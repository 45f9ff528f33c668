"""From an image file to a model's input: how it is fitted, and the model's own normalisation."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openneutron.diagnostics import fail
from openneutron.files import read_file

STRETCH, CROP, LETTERBOX = "stretch", "crop", "letterbox"
FITS = (STRETCH, CROP, LETTERBOX)
_GREY = 114  # of the bars a letterbox has, as detectors are trained with


@dataclass(frozen=True)
class Preprocessing:
    """How images become inputs: (pixel * scale - mean) / std, pixels from 0 to 255, or a function."""

    fit: str = STRETCH
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    function: Callable[[Any], Any] | None = None

    def read(self, file: Path, shape: tuple[int, ...]) -> np.ndarray:
        """An image as a (1, C, H, W) input."""
        from PIL import Image, UnidentifiedImageError

        if self.function is None and (len(shape) != 4 or shape[1] not in (1, 3)):
            hint = "Use .npy files, or --preprocess FILE.py:FUNCTION."
            fail("ON605", str(file), f"an image cannot be an input of shape {list(shape)}", hint)
        colours = "L" if self.function is None and shape[1] == 1 else "RGB"
        data = io.BytesIO(read_file(file, "ON605"))
        try:
            with Image.open(data) as opened:
                image = opened.convert(colours)
        except UnidentifiedImageError:  # its message names the buffer
            fail("ON605", str(file), "is not an image", "Check the file.")
        except Exception as error:  # a hostile image fails in as many ways as there are decoders
            fail("ON605", str(file), f"is not a readable image: {error}", "Check the file.")
        if self.function is not None:
            return self._made(file, image, shape)
        pixels = np.asarray(self._fitted(image, shape[3], shape[2]), np.float32)
        pixels = pixels.reshape(shape[2], shape[3], shape[1])
        mean, std = (self._each(name, shape[1]) for name in ("mean", "std"))
        pixels = (pixels * np.float32(self.scale) - mean) / std
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)

    def _fitted(self, image: Any, width: int, height: int) -> Any:
        if self.fit == STRETCH:
            return image.resize((width, height))
        across, down = width / image.width, height / image.height
        ratio = max(across, down) if self.fit == CROP else min(across, down)
        size = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
        resized = image.resize(size)
        left, top = (size[0] - width) // 2, (size[1] - height) // 2
        if self.fit == CROP:
            return resized.crop((left, top, left + width, top + height))
        from PIL import Image

        bars = Image.new(image.mode, (width, height), _GREY if image.mode == "L" else (_GREY,) * 3)
        bars.paste(resized, (-left, -top))
        return bars

    def _each(self, name: str, channels: int) -> np.ndarray:
        values = getattr(self, name)
        if len(values) not in (1, channels):
            problem = f"has {len(values)} values, the model's images have {channels} channels"
            fail("ON104", f"option --{name}", problem, "Give one, or one per channel.")
        return np.array(values, np.float32)

    def _made(self, file: Path, image: Any, shape: tuple[int, ...]) -> np.ndarray:
        assert self.function is not None
        try:
            array = np.asarray(self.function(image), np.float32)
        except Exception as error:
            line = (str(error).strip().splitlines() or ["no message"])[0]
            fail("ON604", f"{file}", f"the preprocess function raised {type(error).__name__}: {line}",
                 "It is called with a PIL image and returns an array of the input's shape.")  # fmt: skip
        if array.shape == shape[1:]:
            array = array[None]
        if array.shape != shape:
            fail("ON604", f"{file}", f"the preprocess function returned the shape {list(array.shape)}",
                 f"The model's input is {list(shape)}.")  # fmt: skip
        return np.ascontiguousarray(array)


DEFAULT = Preprocessing()  # values from -1 to 1
