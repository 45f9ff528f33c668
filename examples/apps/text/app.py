"""Reads the text of a picture: PP-OCRv4's detector finds the words, its recogniser reads each of them.

Two programs in one application, in one memory. The networks are those of the package rapidocr-onnxruntime; no
word, font or photograph that calibrates is in the test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from PIL import Image, ImageDraw

from benchmarks.trained_networks import (
    CALIBRATING,
    CALIBRATING_FONTS,
    CALIBRATING_WORDS,
    IMAGENET,
    TESTING,
    TESTING_FONTS,
    TESTING_WORDS,
    cut_outs,
    font,
    onnx_model,
    package,
)
from examples.apps.frame import (
    LIB,
    Arrays,
    Figures,
    chip_note,
    compiled,
    cost_of,
    on_chip,
    runner,
    save_picture,
)
from examples.apps.lib.draw import BLUE, INK, ORANGE, Sheet
from examples.apps.lib.pictures import as_planes, resize
from examples.apps.lib.text import Region, distance, read_columns, regions

NEEDS = ("rapidocr_onnxruntime", "skimage", "matplotlib")
HEIGHT, WIDTH, LINE_HEIGHT, LINE_WIDTH, LEAST = 192, 384, 48, 320, 0.3  # app.c has the same
Run = Callable[[np.ndarray], Arrays]
Page = tuple[np.ndarray, list[str]]  # pixels, and the lines they say


def page(random: np.random.Generator, fonts: tuple, words: list, names: tuple) -> Page:
    """A sign with some lines of text, (192, 384, 3), and what it says."""
    if random.random() < 0.5:
        paper = Image.new("RGB", (WIDTH, HEIGHT), tuple(int(v) for v in random.integers(190, 255, 3)))
        ink = tuple(int(v) for v in random.integers(0, 80, 3))
    else:
        (pixels,) = cut_outs((str(random.choice(names)),), 1, WIDTH, int(random.integers(1 << 30)))
        dark = pixels[:HEIGHT].mean() < 110
        shade = 0.45 if dark else 0.4
        tint = pixels[:HEIGHT] * shade + (0 if dark else 255 * (1 - shade))  # text is where it can be read
        paper, ink = Image.fromarray(tint.astype(np.uint8)), (255, 255, 255) if dark else (0, 0, 0)
    pen, y, lines = ImageDraw.Draw(paper), int(random.integers(8, 24)), []
    while y < HEIGHT - 44:
        shape = font(str(random.choice(fonts)), int(random.integers(22, 36)))
        text = " ".join(random.choice(words, int(random.integers(1, 4)), replace=False))
        left, top, right, bottom = shape.getbbox(text)
        if right - left > WIDTH - 30:
            continue
        x = int(random.integers(10, WIDTH - (right - left) - 10))
        pen.text((x - left, y - top), text, ink, shape)
        lines.append(text)
        y += int(bottom - top + random.integers(16, 34))
    return np.asarray(paper), lines


def line_of(pixels: np.ndarray, region: Region) -> np.ndarray:
    """A region as the recogniser reads it: 48 high, at the left of a grey strip."""
    cut = pixels[region.top : region.bottom, region.left : region.right]
    width = min(LINE_WIDTH, max(8, LINE_HEIGHT * cut.shape[1] // cut.shape[0]))
    strip = np.zeros((1, 3, LINE_HEIGHT, LINE_WIDTH), np.float32)
    strip[..., :width] = as_planes(resize(cut, LINE_HEIGHT, width), (0.5,) * 3, (0.5,) * 3)
    return strip


def read(
    pixels: np.ndarray, detect: Run, recognise: Run, characters: list[str]
) -> tuple[list[Region], list[str]]:
    """The regions of a picture, and its lines."""
    found = regions(detect(as_planes(pixels, *IMAGENET))[0][0, 0], LEAST)
    lines: dict[int, list[str]] = {}
    for region in found:
        (scores,) = recognise(line_of(pixels, region))
        lines.setdefault(region.line, []).append("".join(characters[i] for i in read_columns(scores[0])))
    return found, [" ".join(words) for words in lines.values()]


def right(wanted: list[list[str]], found: list[list[str]]) -> float:
    """The share of characters that are right."""
    pairs = [("\n".join(a), "\n".join(b)) for a, b in zip(wanted, found, strict=True)]
    return 1 - sum(distance(a, b) for a, b in pairs) / sum(len(a) for a, _ in pairs)


def characters_of(path: Path) -> list[str]:
    """What the recogniser's outputs stand for: nothing, its characters, a blank."""
    said = next(p.value for p in onnx.load(path).metadata_props if p.key == "character")
    return ["", *said.splitlines(), " "]


def as_c(characters: list[str]) -> str:
    """The characters as a table in flash."""
    rows = "\n".join("    {" + ", ".join(map(str, c.encode())) + "}," for c in characters)
    return f'#include "characters.h"\n\nconst char characters[{len(characters)}][5] = {{\n{rows}\n}};\n'


def as_function(module: torch.nn.Module) -> Callable[[np.ndarray], Arrays]:
    """The float network, arrays in and out."""

    def run(values: np.ndarray) -> Arrays:
        with torch.no_grad():
            return [module(torch.from_numpy(values)).numpy()]

    return run


def tensors(arrays: list[np.ndarray]) -> list[tuple[torch.Tensor, ...]]:
    """Samples to calibrate with."""
    return [(torch.from_numpy(array),) for array in arrays]


def main(out: Path, short: bool) -> Figures:
    """Compile both, read pages, some on the emulated chip, draw."""
    models = package("rapidocr_onnxruntime") / "models"
    files = [models / f"ch_PP-OCRv4_{part}_infer.onnx" for part in ("det", "rec")]
    modules = [onnx_model(files[0], {"x": (1, 3, HEIGHT, WIDTH)}),
               onnx_model(files[1], {"x": (1, 3, LINE_HEIGHT, LINE_WIDTH)})]  # fmt: skip
    exact_detect, exact_read = map(as_function, modules)
    characters = characters_of(files[1])

    random = np.random.default_rng(0)
    used = CALIBRATING_FONTS, CALIBRATING_WORDS, CALIBRATING
    pages = [page(random, *used)[0] for _ in range(4 if short else 32)]
    planes = [as_planes(p, *IMAGENET) for p in pages]
    words = [regions(exact_detect(x)[0][0, 0], LEAST) for x in planes]
    strips = [line_of(p, region) for p, each in zip(pages, words, strict=True) for region in each]
    picked = strips[:: max(1, len(strips) // len(pages))][: len(pages)]
    programs = {
        "detector": compiled("PP-OCRv4's detector", modules[0], tensors(planes)),
        "recogniser": compiled("PP-OCRv4's recogniser", modules[1], tensors(picked)),
    }
    detect, recognise = (runner(program) for program in programs.values())

    random = np.random.default_rng(1)
    tests = [page(random, TESTING_FONTS, TESTING_WORDS, TESTING) for _ in range(1 if short else 20)]
    wanted = [lines for _, lines in tests]
    exact = [read(pixels, exact_detect, exact_read, characters) for pixels, _ in tests]
    found = [read(pixels, detect, recognise, characters) for pixels, _ in tests]

    count = 1 if short else 2
    (out / "characters.c").write_text(as_c(characters))
    sources = [Path(__file__).with_name("app.c"), out / "characters.c", LIB / "text.c", LIB / "pictures.c"]
    given = b"".join(pixels.tobytes() for pixels, _ in tests[:count])
    seen = on_chip({n: p.pte for n, p in programs.items()}, sources, {"pictures.bin": given}, out / "chip")
    chip, note = None, ""
    if seen is not None:
        wanted_text = "\n\n".join("\n".join(lines) for _, lines in found[:count]).strip()
        assert seen[0] == wanted_text, f"under QEMU: {seen[0]!r}; on the host: {wanted_text!r}"
        chip, note = f"the simulator's text, letter by letter, of {count} pages", chip_note(seen[2])
    save_picture(draw([p for p, _ in tests], exact, found), out / "text.png")
    same = sum(a[1] == b[1] for a, b in zip(exact, found, strict=True))
    letters = sum(len(line) for lines in wanted for line in lines)
    task = f"characters that are right, of {letters} on {len(tests)} pages"
    figures = [right(wanted, [lines for _, lines in each]) for each in (exact, found)]
    costs = [cost_of(name, program) for name, program in programs.items()]
    more = {"pages read by int8 as by float": f"{same} of {len(tests)}"}
    return Figures(task, figures[0], figures[1], chip, note, costs, more, "%")


def draw(pictures: list[np.ndarray], exact: list, found: list) -> Image.Image:
    """Some pages with the regions that int8 found, and what both read."""
    shown = min(4, len(pictures))
    sheet = Sheet(2 * (WIDTH + 20) + 10, ((shown + 1) // 2) * 340 + 10)
    for i in range(shown):
        x, y = 10 + (i % 2) * (WIDTH + 20), 10 + (i // 2) * 340
        sheet.image.paste(Image.fromarray(pictures[i]), (x, y))
        for region in found[i][0]:
            sheet.pen.rectangle(
                (x + region.left, y + region.top, x + region.right, y + region.bottom),
                outline=ORANGE,
                width=2,
            )
        for column, (name, ink, lines) in enumerate(
            (("float", BLUE, exact[i][1]), ("int8", ORANGE, found[i][1]))
        ):
            sheet.text(x + column * WIDTH // 2, y + HEIGHT + 8, name, 15, ink)
            for number, line in enumerate(lines[:5]):
                sheet.text(x + column * WIDTH // 2, y + HEIGHT + 30 + 20 * number, line[:24], 14, INK)
    return sheet.image
