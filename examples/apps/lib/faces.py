"""Faces by MTCNN's cascade: what its three networks do not compute, in single precision as `faces.c` has it.

P-Net looks at a picture in eight sizes. They lie side by side on one canvas, so that it is one program that
runs once; what it says of squares that are not wholly in one of the sizes is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from examples.apps.lib.boxes import Found, iou
from examples.apps.lib.pictures import average

HEIGHT, WIDTH = 480, 640  # of the camera's pictures; faces.c has the same
CANVAS_HEIGHT, CANVAS_WIDTH = 196, 328
# Top, left, height, width on the canvas: each about 0.7 times the one before, for faces of 40 to 480 pixels.
LEVELS = ((0, 0, 144, 192), (0, 192, 102, 136), (102, 192, 72, 96), (144, 0, 51, 68), (144, 68, 36, 48),
          (144, 116, 27, 36), (144, 152, 18, 24), (144, 176, 12, 16))  # fmt: skip
SQUARE, STEP = 12, 2  # what P-Net looks at for one answer, and from answer to answer
MOST = 256
LEAST = (0.6, 0.7, 0.7)  # how sure each network must be
SIDES = (24, 48)  # of what R-Net and O-Net look at

f = np.float32
Network = Callable[[np.ndarray], Sequence[np.ndarray]]  # pixels to moves, points if any, and how likely


@dataclass(frozen=True)
class Face:
    """A box, how a network would move its sides, and both eyes, nose and both corners of the mouth."""

    box: Found
    moves: tuple[float, ...]
    points: tuple[float, ...] = ()  # five x, then five y


def pyramid(camera: np.ndarray) -> np.ndarray:
    """The canvas: the picture in all sizes, on grey."""
    canvas = np.full((CANVAS_HEIGHT, CANVAS_WIDTH, 3), 128, np.uint8)
    for top, left, height, width in LEVELS:
        canvas[top : top + height, left : left + width] = average(camera, height, width)
    return canvas


def candidates(moves: np.ndarray, likely: np.ndarray) -> list[Face]:
    """Squares that P-Net, with its moves (4, rows, columns), takes for faces."""
    found = []
    for level, (top, left, height, width) in enumerate(LEVELS):
        size = f(WIDTH) / f(width)
        rows = slice(top // STEP, (top + height - SQUARE) // STEP + 1)
        columns = slice(left // STEP, (left + width - SQUARE) // STEP + 1)
        scores = likely[rows, columns]
        for row, column in zip(*np.nonzero(scores >= f(LEAST[0])), strict=True):
            x, y = f(STEP * int(column) + 1) * size, f(STEP * int(row) + 1) * size
            side = f(SQUARE - 1) * size
            box = Found(float(x), float(y), float(x + side), float(y + side), float(scores[row, column]),
                        level)  # fmt: skip
            found.append(Face(box, tuple(map(float, moves[:, rows, columns][:, row, column]))))
    kept = suppress(_best(found), 0.5, iou)  # of each size by itself, then of all
    kept = suppress([replace(face, box=replace(face.box, kind=0)) for face in kept], 0.7, iou)
    return [_squared(_moved(face, 0)) for face in kept]


def cut(camera: np.ndarray, face: Face, side: int) -> np.ndarray | None:
    """What is in a box, as large as a network wants it; None if that is nothing."""
    left, top = max(int(face.box.left), 1) - 1, max(int(face.box.top), 1) - 1
    right, bottom = min(int(face.box.right), WIDTH), min(int(face.box.bottom), HEIGHT)
    if right <= left or bottom <= top:
        return None
    return average(camera[top:bottom, left:right], side, side)


def refined(seen: list[Face]) -> list[Face]:
    """What R-Net leaves of faces with its scores and moves."""
    kept = suppress(_best([face for face in seen if face.box.score > f(LEAST[1])]), 0.7, iou)
    return [_squared(_moved(face, 1)) for face in kept]


def finished(seen: list[Face]) -> list[Face]:
    """What O-Net leaves of faces with its scores, moves and points, which are parts of the box before."""
    good = _best([face for face in seen if face.box.score > f(LEAST[2])])
    return suppress([_moved(_with_points(face), 1) for face in good], 0.7, covered)


def find_faces(
    camera: np.ndarray, p_net: Network, r_net: Network, o_net: Network
) -> tuple[list[Face], int, int]:
    """The faces of a picture, and how often R-Net and O-Net ran."""
    moves, likely = p_net(pyramid(camera))
    squares = _judged(camera, candidates(moves[0], likely[0, 1]), r_net, SIDES[0])
    closer = _judged(camera, refined(squares), o_net, SIDES[1])
    return finished(closer), len(squares), len(closer)


def _judged(camera: np.ndarray, faces: list[Face], network: Network, side: int) -> list[Face]:
    """Faces with the scores, moves and points that a network gives them."""
    found = []
    for face in faces:
        pixels = cut(camera, face, side)
        if pixels is None:
            continue
        moves, *points, likely = network(pixels)
        found.append(Face(replace(face.box, score=float(likely[0, 1])), tuple(map(float, moves[0])),
                          tuple(map(float, points[0][0])) if points else ()))  # fmt: skip
    return found


def covered(a: Found, b: Found) -> float:
    """How much of the smaller of two boxes is in the other."""
    w = max(min(f(a.right), f(b.right)) - max(f(a.left), f(b.left)), f(0))
    h = max(min(f(a.bottom), f(b.bottom)) - max(f(a.top), f(b.top)), f(0))
    least = min((f(o.right) - f(o.left)) * (f(o.bottom) - f(o.top)) for o in (a, b))
    return float(w * h / least) if least > 0 else 0.0


def suppress(faces: list[Face], overlap: float, shared: Callable[[Found, Found], float]) -> list[Face]:
    """The best faces, without those of a kind that share too much with a better one."""
    kept: list[Face] = []
    for face in faces:
        if all(face.box.kind != other.box.kind or shared(face.box, other.box) < f(overlap) for other in kept):
            kept.append(face)
    return kept


def _best(faces: list[Face]) -> list[Face]:
    return sorted(faces, key=lambda face: -face.box.score)[:MOST]


def _moved(face: Face, more: int) -> Face:
    """With its sides moved, by parts of its size and a pixel more, or none."""
    left, top, right, bottom = map(f, face.box.corners)
    width, height = right - left + f(more), bottom - top + f(more)
    a, b, c, d = map(f, face.moves)
    box = replace(face.box, left=float(left + a * width), top=float(top + b * height),
                  right=float(right + c * width), bottom=float(bottom + d * height))  # fmt: skip
    return replace(face, box=box)


def _squared(face: Face) -> Face:
    """With its longer side in both directions, about the same middle."""
    left, top, right, bottom = map(f, face.box.corners)
    width, height = right - left, bottom - top
    side, half = max(width, height), f(0.5)
    left, top = left + width * half - side * half, top + height * half - side * half
    box = replace(
        face.box, left=float(left), top=float(top), right=float(left + side), bottom=float(top + side)
    )
    return replace(face, box=box)


def _with_points(face: Face) -> Face:
    """With points in the picture."""
    left, top, right, bottom = map(f, face.box.corners)
    width, height = right - left + f(1), bottom - top + f(1)
    xs = [float(width * f(p) + left - f(1)) for p in face.points[:5]]
    ys = [float(height * f(p) + top - f(1)) for p in face.points[5:]]
    return replace(face, points=(*xs, *ys))
