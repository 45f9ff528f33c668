"""Faces with eyes, nose and mouth by MTCNN: three networks of facenet-pytorch, one after the other.

Nobody whose picture calibrates is in the test, and no background.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.trained_networks import CALIBRATING, TESTING, package, photograph
from examples.apps.faces.networks import networks
from examples.apps.frame import (
    LIB,
    Arrays,
    Cost,
    Figures,
    chip_note,
    compiled,
    cost_of,
    on_chip,
    runner,
    save_picture,
)
from examples.apps.lib.boxes import Found, f1, iou
from examples.apps.lib.draw import BLUE, ORANGE, Sheet
from examples.apps.lib.faces import (
    HEIGHT,
    SIDES,
    WIDTH,
    Face,
    Network,
    candidates,
    cut,
    find_faces,
    pyramid,
    refined,
)
from examples.apps.lib.pictures import as_planes
from examples.apps.lib.portraits import PORTRAITS, portrait

NEEDS = ("facenet_pytorch", "skimage", "matplotlib")
CELL = 160  # of the grid that pictures are pinned to
# The face in the pictures that scikit-image has of Labelled Faces in the Wild, which are all aligned alike.
WILD, WILD_SIDE, CALIBRATING_WILD = (2, 0, 21, 25), 25, 40
FACE = np.dtype([("picture", np.int32), ("sides", np.float32, 4), ("score", np.float32), ("kind", np.int32),
                 ("moves", np.float32, 4), ("points", np.float32, 10)])  # fmt: skip
Scene = tuple[np.ndarray, list[Found]]


def wild_faces() -> list[Image.Image]:
    """A hundred people, grey, 25 x 25 pixels each."""
    pixels = np.load(package("skimage") / "data/lfw_subset.npy")[:100]
    return [Image.fromarray(np.round(255 * p).astype(np.uint8)).convert("RGB") for p in pixels]


def scene(
    random: np.random.Generator, people: list[str], wild: list[Image.Image], walls: tuple[str, ...]
) -> Scene:
    """A picture of the camera, (480, 640, 3), with portraits pinned to a wall, and the faces in it."""
    wall, faces = photograph(str(random.choice(walls))).resize((WIDTH, HEIGHT)), []
    free = [(x, y) for y in range(0, HEIGHT, CELL) for x in range(0, WIDTH, CELL)]

    def pin(picture: Image.Image, face: tuple[float, ...], at: tuple[int, int], room: int) -> None:
        x, y = (v + int(random.integers(0, room - size)) for v, size in zip(at, picture.size, strict=True))
        wall.paste(picture, (x, y))
        faces.append(Found(x + face[0], y + face[1], x + face[2], y + face[3], 1.0, 0))

    if random.random() < 0.6:
        x, y = CELL * int(random.integers(3)), CELL * int(random.integers(2))
        free = [at for at in free if not (0 <= at[0] - x <= CELL and 0 <= at[1] - y <= CELL)]
        large = portrait(
            str(random.choice(people)), random.uniform(110, 150), random.uniform(0.3, 0.5), random
        )
        pin(*large, (x, y), 2 * CELL)
    for at in free:
        kind = random.random()
        if kind < 0.1:
            name = str(random.choice(people))
            pin(*portrait(name, random.uniform(50, 76), random.uniform(0.25, 0.5), random), at, CELL)
        elif kind < 0.5:
            size = int(random.integers(60, CELL - 30))
            small = wild[int(random.integers(len(wild)))].resize((size, size), Image.Resampling.BICUBIC)
            pin(small, tuple(v * size / WILD_SIDE for v in WILD), at, CELL)
    return np.asarray(wall), faces


def planes(pixels: np.ndarray) -> np.ndarray:
    """Pixels as the networks read them: from -1 to 1."""
    return as_planes(pixels, (0.5,) * 3, (128 / 255,) * 3)


def in_float(module: torch.nn.Module) -> Network:
    """A network in float, pixels in."""

    def run(pixels: np.ndarray) -> Arrays:
        with torch.no_grad():
            return [output.numpy() for output in module(torch.from_numpy(planes(pixels)))]

    return run


def on_pixels(run: Callable[..., Arrays]) -> Network:
    """A program, pixels in."""
    return lambda pixels: run(planes(pixels))


def seen_by_each(pictures: list[np.ndarray], nets: list[Network], least: int) -> list[list[np.ndarray]]:
    """What the networks read, in float, of pictures: some canvases, and the squares that come after."""
    seen: list[list[np.ndarray]] = [[], [], []]
    for camera in pictures:
        seen[0].append(pyramid(camera))
        moves, likely = nets[0](seen[0][-1])
        faces = candidates(moves[0], likely[0, 1])
        for stage, side in zip((1, 2), SIDES, strict=True):
            judged = []
            for face in faces:
                if (pixels := cut(camera, face, side)) is not None:
                    seen[stage].append(pixels)
                    moves, *_, likely = nets[stage](pixels)
                    box = replace(face.box, score=float(likely[0, 1]))
                    judged.append(Face(box, tuple(map(float, moves[0]))))
            faces = refined(judged)
    return [each[:: max(1, len(each) // least)][:least] for each in seen]


def points_apart(exact: list[list[Face]], found: list[list[Face]]) -> float:
    """How far int8's points are from float's, of the distance of the eyes; the mean over faces both found."""
    apart = []
    for a_faces, b_faces in zip(exact, found, strict=True):
        for a in a_faces:
            b = max(b_faces, key=lambda face, a=a: iou(face.box, a.box), default=None)
            if b is not None and iou(a.box, b.box) >= 0.5:
                one, other = (np.reshape(face.points, (2, 5)) for face in (a, b))
                eyes = np.hypot(*(one[:, 0] - one[:, 1]))
                apart.append(np.hypot(*(one - other)).mean() / max(eyes, 1))
    return float(np.mean(apart)) if apart else 0.0


def main(out: Path, short: bool) -> Figures:
    """Compile all three, judge scenes, run some on the emulated chip, draw."""
    modules, names = networks(), ("P-Net", "R-Net", "O-Net")
    nets, wild = [in_float(module) for module in modules], wild_faces()
    random, people = np.random.default_rng(0), ["camera.png"]
    walls = tuple(name for name in CALIBRATING if name not in PORTRAITS)
    given = [scene(random, people, wild[:CALIBRATING_WILD], walls)[0] for _ in range(4 if short else 16)]
    samples = seen_by_each(given, nets, 8 if short else 64)
    programs = {
        name[0].lower() + "net": compiled(name, module, [(torch.from_numpy(planes(p)),) for p in each])
        for name, module, each in zip(names, modules, samples, strict=True)
    }
    runs = [on_pixels(runner(program)) for program in programs.values()]

    random, people = np.random.default_rng(1), ["astronaut.png", "grace_hopper.jpg"]
    scenes = [scene(random, people, wild[CALIBRATING_WILD:], TESTING) for _ in range(3 if short else 30)]
    pictures, wanted = [p for p, _ in scenes], [faces for _, faces in scenes]
    exact = [find_faces(p, *nets)[0] for p in pictures]
    results = [find_faces(p, *runs) for p in pictures]
    found = [faces for faces, _, _ in results]

    count = 1 if short else 2
    most = sorted(range(len(scenes)), key=lambda i: -len(wanted[i]))[:count]
    files = [
        Path(__file__).with_name("app.c"),
        *(LIB / f"{name}.c" for name in ("faces", "boxes", "pictures")),
    ]
    given_bytes = b"".join(pictures[i].tobytes() for i in most)
    seen = on_chip(
        {n: p.pte for n, p in programs.items()}, files, {"pictures.bin": given_bytes}, out / "chip"
    )
    chip, note = None, ""
    if seen is not None:
        rows = np.frombuffer(seen[1]["faces.out"], FACE)
        for number, index in enumerate(most):
            faces = [as_face(row) for row in rows if row["picture"] == number]
            assert faces == found[index], f"picture {index}: {faces} under QEMU, {found[index]} on the host"
        chip, note = f"the simulator's boxes and points, to the bit, in {count} pictures", chip_note(seen[2])
    save_picture(draw([pictures[i] for i in most], [exact[i] for i in most], [found[i] for i in most]),
                 out / "faces.png", 80)  # fmt: skip
    costs = [cost_of(name, program) for name, program in zip(names, programs.values(), strict=True)]
    scores = [f1(wanted, [[face.box for face in faces] for faces in each]) for each in (exact, found)]
    total = sum(map(len, wanted))
    same = f1([[x.box for x in faces] for faces in exact], [[x.box for x in faces] for faces in found])
    more = {"boxes of int8 against those of float": f"F1 {same:.3f}; points "
            f"{points_apart(exact, found):.1%} of the distance of the eyes apart",
            "a picture": whole_picture(costs, results)}  # fmt: skip
    task = f"F1 of {total} faces in {len(scenes)} scenes, at an overlap of half"
    return Figures(task, *scores, chip, note, costs, more)


def as_face(row: np.void) -> Face:
    """What app.c wrote of a face."""
    box = Found(*map(float, row["sides"]), float(row["score"]), int(row["kind"]))
    return Face(box, tuple(map(float, row["moves"])), tuple(map(float, row["points"])))


def whole_picture(costs: list[Cost], results: list[tuple[list[Face], int, int]]) -> str:
    """How often each network runs, and how long all of it takes."""
    runs = 1.0, *(float(np.mean([result[i] for result in results])) for i in (1, 2))
    ms = sum(cost.ms * count for cost, count in zip(costs, runs, strict=True))
    times = f"P-Net runs once, R-Net {runs[1]:.0f} times, O-Net {runs[2]:.0f} times"
    return f"{times}: {ms:.0f} ms (estimated)"


def draw(pictures: list[np.ndarray], exact: list[list[Face]], found: list[list[Face]]) -> Image.Image:
    """The pictures side by side, with what float and int8 found drawn over one another."""
    gap, wide, high = 10, 416, 312
    sheet = Sheet(gap + len(pictures) * (wide + gap), high + 36 + gap)
    sheet.text(gap, 8, "Faces, eyes, noses and mouths by MTCNN")
    sheet.legend(gap + 296, 6, [("float", BLUE)])
    sheet.legend(gap + 366, 6, [("int8", ORANGE)])
    for column, pixels in enumerate(pictures):
        shown, scale = Sheet(wide, high), wide / WIDTH
        shown.image.paste(Image.fromarray(pixels).resize((wide, high)), (0, 0))
        for faces, ink, size in ((exact[column], BLUE, 3), (found[column], ORANGE, 2)):
            for face in faces:
                shown.pen.rectangle([v * scale for v in face.box.corners], outline=ink, width=2)
                for x, y in zip(face.points[:5], face.points[5:], strict=True):
                    u, v = x * scale, y * scale
                    shown.pen.ellipse((u - size, v - size, u + size, v + size), fill=ink)
        sheet.image.paste(shown.image, (gap + column * (wide + gap), 36))
    return sheet.image
