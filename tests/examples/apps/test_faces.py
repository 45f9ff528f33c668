"""MTCNN's cascade between its networks: in C as in Python, and in float as the package has it."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks.trained_networks import TESTING, package
from examples.apps.faces.app import FACE, as_face, in_float, scene, wild_faces
from examples.apps.faces.networks import networks
from examples.apps.lib.boxes import Found, iou
from examples.apps.lib.faces import (
    CANVAS_HEIGHT,
    CANVAS_WIDTH,
    HEIGHT,
    LEAST,
    MOST,
    WIDTH,
    Face,
    candidates,
    cut,
    find_faces,
    finished,
    pyramid,
    refined,
)
from tests.examples.apps.native import library

RECORD = np.dtype(FACE.descr[1:])  # without the picture's number
ROWS, COLUMNS = 93, 159


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return library("faces", tmp_path_factory.mktemp("faces"), "boxes", "pictures")


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def as_faces(records: np.ndarray) -> list[Face]:
    return [as_face(record) for record in records]


def as_record(face: Face) -> np.ndarray:
    points = face.points or (0,) * 10
    return np.array((face.box.corners, face.box.score, face.box.kind, face.moves, points), RECORD)


@pytest.mark.parametrize("seed", range(3))
def test_c_goes_the_way_of_python(compiled, seed):
    random = np.random.default_rng(seed)
    camera = random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    canvas = np.zeros((CANVAS_HEIGHT, CANVAS_WIDTH, 3), np.uint8)
    compiled.faces_pyramid(pointer(camera), pointer(canvas))
    assert np.array_equal(canvas, pyramid(camera))

    moves = random.normal(0, 0.2, (4, ROWS, COLUMNS)).astype(np.float32)
    likely = (np.round(random.uniform(0, 1, (ROWS, COLUMNS)) ** 8 * 256) / 256).astype(np.float32)
    records = np.zeros(MOST + 1, RECORD)
    count = compiled.faces_candidates(pointer(moves), pointer(likely), pointer(records))
    squares = candidates(moves, likely)
    bare = [replace(face, points=()) for face in as_faces(records[:count])]
    assert bare == squares and 30 < count < MOST < int((likely >= LEAST[0]).sum())

    pixels, judged, added, nothing = np.zeros((24, 24, 3), np.uint8), [], 0, 0
    records[:] = 0
    for face in [*squares, replace(squares[0], box=Found(-90.0, 5.0, -20.0, 80.0, 0.0, 0))]:
        wanted = cut(camera, face, 24)
        given = as_record(face)
        assert compiled.faces_cut(pointer(camera), pointer(given), 24, pointer(pixels)) & 1 == (
            wanted is not None
        )
        nothing += wanted is None
        assert wanted is None or np.array_equal(pixels, wanted)
        box = replace(face.box, score=float(np.float32(np.round(random.uniform(0.4, 1), 2))))
        judged.append(Face(box, tuple(map(float, random.normal(0, 0.1, 4).astype(np.float32))),
                           tuple(map(float, random.uniform(0, 1, 10).astype(np.float32)))))  # fmt: skip
        given = as_record(judged[-1])
        added = compiled.faces_add(pointer(records), added, pointer(given))
    assert added == len(judged) and nothing > 0
    for name, last in (("faces_refine", refined), ("faces_finish", finished)):
        copy = records.copy()
        count = getattr(compiled, name)(pointer(copy), added)
        assert as_faces(copy[:count]) == last(judged) and 0 < count < added


def of_the_package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Its own cascade; of torchvision, which it imports, it calls one function."""

    def batched_nms(boxes, scores, kinds, overlap):
        found, kept = [Found(*map(float, box), 0, 0) for box in boxes], []
        for i in torch.argsort(-scores, stable=True).tolist():
            if all(iou(found[i], found[other]) <= overlap for other in kept):
                kept.append(i)
        return torch.tensor(kept, dtype=torch.long)

    for name in ("", ".ops", ".ops.boxes", ".transforms"):
        monkeypatch.setitem(sys.modules, f"torchvision{name}", ModuleType(f"torchvision{name}"))
    sys.modules["torchvision.ops.boxes"].batched_nms = batched_nms
    sys.modules["torchvision.transforms"].functional = None
    spec = spec_from_file_location("detect_face", package("facenet_pytorch") / "models/utils/detect_face.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not all(map(find_spec, ("facenet_pytorch", "skimage", "matplotlib"))), reason="packages")
def test_the_cascade_finds_what_the_packages_own_does(monkeypatch):
    nets, theirs = networks(), of_the_package(monkeypatch)
    random, wild, total = np.random.default_rng(3), wild_faces(), 0
    for _ in range(2):
        camera, _ = scene(random, ["astronaut.png", "grace_hopper.jpg"], wild, TESTING)
        with torch.no_grad():
            boxes, points = theirs.detect_face(camera, 40, *nets, LEAST, 0.709, "cpu")
        found, _, _ = find_faces(camera, *map(in_float, nets))
        known = [Found(*map(float, box[:4]), float(box[4]), 0) for box in boxes[0]]
        for face in found:  # each is there, unless one of the two is hardly sure
            assert face.box.score < 0.97 or any(iou(face.box, there) > 0.8 for there in known)
        for there, places in zip(known, points[0], strict=True):
            nearest = max(found, key=lambda face, there=there: iou(face.box, there))
            if iou(nearest.box, there) < 0.8:
                assert there.score < 0.97
                continue
            apart = np.abs(np.reshape(nearest.points, (2, 5)) - np.array(places, float).T)
            assert apart.max() < 0.06 * (there.right - there.left)
            total += 1
    assert total >= 8
