"""Boxes and pictures, in Python and C."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import adaptive_avg_pool2d

from examples.apps.lib.boxes import MOST, Found, decode, iou, suppress
from examples.apps.lib.pictures import average, resize
from tests.examples.apps.native import library

BOX = np.dtype([("sides", np.float32, 4), ("score", np.float32), ("kind", np.int32)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("boxes")


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def test_overlapping_boxes_of_one_kind_are_one():
    boxes = [Found(0, 0, 10, 10, 0.9, 1), Found(1, 0, 11, 10, 0.8, 1), Found(1, 0, 11, 10, 0.7, 2),
             Found(20, 0, 30, 10, 0.6, 1)]  # fmt: skip
    assert suppress(boxes, 0.5) == [boxes[0], boxes[2], boxes[3]]
    assert iou(boxes[0], boxes[1]) == pytest.approx(90 / 110)
    assert iou(boxes[0], boxes[3]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_c_finds_what_python_does(folder, seed):
    random = np.random.default_rng(seed)
    places, sizes = random.uniform(0, 300, (2, 700)), random.uniform(10, 120, (2, 700))
    output = np.concatenate([places, sizes, np.round(random.uniform(0, 1, (5, 700)), 2) ** 3]).astype(
        np.float32
    )
    compiled, boxes = library("boxes", folder), np.zeros(MOST, BOX)
    least, overlap = ctypes.c_float(0.3), ctypes.c_float(0.45)
    candidates = decode(output, 0.3)
    count = compiled.boxes_decode(pointer(output), 5, 700, least, pointer(boxes))
    assert count == len(candidates) == MOST  # more than there is room for, many of one score
    count = compiled.boxes_suppress(pointer(boxes), count, overlap)
    kept = suppress(candidates, 0.45)
    assert [(*row["sides"].tolist(), row["score"].item(), row["kind"].item()) for row in boxes[:count]] == [
        (*box.corners, box.score, box.kind) for box in kept
    ]
    assert 0 < len(kept) < len(candidates)


@pytest.mark.parametrize(("height", "width"), [(320, 320), (48, 200), (7, 5), (600, 900)])
def test_c_resizes_to_the_byte(folder, height, width):
    pixels = np.random.default_rng(0).integers(0, 256, (211, 317, 3), np.uint8)

    class Picture(ctypes.Structure):
        _fields_ = [("pixels", ctypes.c_void_p), ("height", ctypes.c_int32), ("width", ctypes.c_int32),
                    ("stride", ctypes.c_int32)]  # fmt: skip

    found = np.zeros((height, width, 3), np.uint8)
    compiled, given = library("pictures", folder), Picture(pixels.ctypes.data, 211, 317, 317 * 3)
    compiled.picture_resize(given, height, width, pointer(found))
    assert np.array_equal(found, resize(pixels, height, width))
    compiled.picture_average(given, height, width, pointer(found), width * 3)
    assert np.array_equal(found, average(pixels, height, width))
    wanted = adaptive_avg_pool2d(torch.from_numpy(pixels).double().permute(2, 0, 1), (height, width))
    assert np.abs(found - wanted.permute(1, 2, 0).numpy()).max() <= 0.5


def test_resizing_is_bilinear():
    pixels = np.random.default_rng(1).integers(0, 256, (40, 60, 3), np.uint8)
    larger = np.asarray(Image.fromarray(pixels).resize((150, 100), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(resize(pixels, 100, 150).astype(int) - larger).max() <= 2
    assert np.array_equal(resize(pixels, 40, 60), pixels)
