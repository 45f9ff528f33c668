"""Faces in pictures of a camera, found by YOLOv8n of the package nudenet: boxes in float and int8.

No photograph that calibrates is in the test: the scenes that are judged have other people and backgrounds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.trained_networks import CALIBRATING, TESTING, onnx_model, package, photograph
from examples.apps.frame import LIB, Figures, chip_note, compiled, cost_of, on_chip, runner, save_picture
from examples.apps.lib.boxes import Found, decode, f1, iou, suppress
from examples.apps.lib.draw import BLUE, ORANGE, Sheet
from examples.apps.lib.pictures import resize
from examples.apps.lib.portraits import portrait

NEEDS = ("nudenet", "skimage", "matplotlib")
SIZE, HEIGHT, WIDTH = (
    320,
    480,
    640,
)  # of the network's input, and of the camera's pictures; app.c has the same
LEAST, OVERLAP = 0.25, 0.45
FACES = (1, 12)  # two of the network's eighteen kinds; here they are one
BOX = np.dtype([("picture", np.int32), ("sides", np.float32, 4), ("score", np.float32), ("kind", np.int32)])


def scene(
    random: np.random.Generator, people: list[str], backgrounds: tuple[str, ...]
) -> tuple[np.ndarray, list]:
    """A picture of the camera, (480, 640, 3), and the faces in it: portraits pinned to a wall."""
    wall = photograph(str(random.choice(backgrounds))).resize((WIDTH, HEIGHT))
    faces: list[tuple[float, ...]] = []
    for column in range(int(random.integers(0, 4))):
        name = str(random.choice(people))
        cut, face = portrait(name, random.uniform(55, 130), random.uniform(0.5, 0.9), random)
        x = column * 210 + int(random.integers(0, max(1, 215 - cut.width)))
        y = int(random.integers(0, max(1, HEIGHT - cut.height)))
        wall.paste(cut, (x, y))
        faces.append((x + face[0], y + face[1], x + face[2], y + face[3]))
    return np.asarray(wall), [Found(*face, 1.0, 1) for face in faces]


def as_input(pixels: np.ndarray) -> np.ndarray:
    """What the network reads: the picture at the top of a black square, planes from 0 to 1."""
    square = np.zeros((SIZE, SIZE, 3), np.uint8)
    square[: SIZE * HEIGHT // WIDTH] = resize(pixels, SIZE * HEIGHT // WIDTH, SIZE)
    return np.ascontiguousarray(square.transpose(2, 0, 1)[None].astype(np.float32) / 255)


def faces_of(output: np.ndarray) -> list[Found]:
    """The faces in the camera's picture."""
    scale = np.float32(WIDTH / SIZE)
    every = [b for b in decode(output[0], LEAST) if b.kind in FACES]
    kept = suppress([replace(b, kind=FACES[0]) for b in every], OVERLAP)
    return [Found(*(float(np.float32(v) * scale) for v in b.corners), b.score, b.kind) for b in kept]


def main(out: Path, short: bool) -> Figures:
    """Compile, judge scenes, run some on the emulated chip, draw."""
    module = onnx_model(package("nudenet") / "320n.onnx", {"images": (1, 3, SIZE, SIZE)})
    random = np.random.default_rng(0)
    given = [scene(random, ["astronaut.png"], CALIBRATING)[0] for _ in range(4 if short else 8)]
    given[0] = np.asarray(photograph("astronaut.png").resize((WIDTH, HEIGHT)))
    program = compiled("YOLOv8n", module, [(torch.from_numpy(as_input(p)),) for p in given])
    run = runner(program)
    random = np.random.default_rng(1)
    scenes = [scene(random, ["grace_hopper.jpg", "camera.png"], TESTING) for _ in range(3 if short else 60)]
    pictures, wanted = [p for p, _ in scenes], [faces for _, faces in scenes]
    with torch.no_grad():
        exact = [faces_of(module(torch.from_numpy(as_input(p))).numpy()) for p in pictures]
    found = [faces_of(run(as_input(p))[0]) for p in pictures]

    count = 1 if short else 2
    most = sorted(range(len(scenes)), key=lambda i: -len(wanted[i]))[:count]
    files = [Path(__file__).with_name("app.c"), LIB / "boxes.c", LIB / "pictures.c"]
    given_bytes = b"".join(pictures[i].tobytes() for i in most)
    seen = on_chip({"yolo": program.pte}, files, {"pictures.bin": given_bytes}, out / "chip")
    chip, note = None, ""
    if seen is not None:
        rows = np.frombuffer(seen[1]["boxes.out"], BOX)
        for number, index in enumerate(most):
            boxes = [Found(*map(float, r["sides"]), float(r["score"]), int(r["kind"])) for r in rows
                     if r["picture"] == number]  # fmt: skip
            assert boxes == found[index], f"picture {index}: {boxes} under QEMU, {found[index]} on the host"
        chip, note = f"the simulator's boxes, to the bit, in {count} pictures", chip_note(seen[2])
    save_picture(draw([pictures[i] for i in most], [exact[i] for i in most], [found[i] for i in most]),
                 out / "detection.png", 96)  # fmt: skip
    more = {"boxes of int8 against those of float": f"F1 {f1(exact, found):.3f}"}
    task = f"F1 of {sum(map(len, wanted))} faces in {len(scenes)} scenes, at an overlap of half"
    scores = f1(wanted, exact), f1(wanted, found)
    behind = lost(exact, found) if scores[0] - scores[1] > 0.01 else ""
    costs = [cost_of("YOLOv8n, 320 x 320", program)]
    return Figures(task, *scores, chip, note, costs, more, behind=behind)


def lost(exact: list[list[Found]], found: list[list[Found]]) -> str:
    """What float finds and int8 does not."""
    missed = [box.score for a, b in zip(exact, found, strict=True) for box in a
              if all(iou(box, other) < 0.5 for other in b)]  # fmt: skip
    scores = ", ".join(f"{score:.2f}" for score in sorted(missed))
    return f"int8 misses {len(missed)} of float's faces, whose scores are {scores}; the threshold is {LEAST}"


def draw(pictures: list[np.ndarray], exact: list[list[Found]], found: list[list[Found]]) -> Image.Image:
    """The pictures side by side, float above int8."""
    scale, gap = 0.5, 10
    wide, high = round(WIDTH * scale), round(HEIGHT * scale)
    sheet = Sheet(gap + len(pictures) * (wide + gap), 2 * (high + 30) + gap)
    for row, (name, each, ink) in enumerate(
        (("float", exact, BLUE), ("int8, on the simulator", found, ORANGE))
    ):
        top = row * (high + 30) + 26
        sheet.text(gap, top - 21, f"{name}: faces found by YOLOv8n")
        for column, (pixels, boxes) in enumerate(zip(pictures, each, strict=True)):
            x = gap + column * (wide + gap)
            sheet.image.paste(Image.fromarray(pixels).resize((wide, high)), (x, top))
            for box in boxes:
                a, b, c, d = (v * scale for v in box.corners)
                sheet.pen.rectangle((x + a, top + b, x + c, top + d), outline=ink, width=3)
                sheet.pen.rectangle((x + a, top + b - 17, x + a + 38, top + b), fill=ink)
                sheet.text(x + a + 3, top + b - 17, f"{box.score:.2f}", 14, (255, 255, 255))
    return sheet.image
