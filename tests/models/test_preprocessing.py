"""Pictures on their way into a model: fitted, normalised, or made by the user's function."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from openneutron.diagnostics import OpenNeutronError
from openneutron.models.preprocessing import CROP, LETTERBOX, STRETCH, Preprocessing

SHAPE = (1, 3, 4, 4)


@pytest.fixture
def wide(tmp_path):
    """A picture twice as wide as high: black, white, white, black."""
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, 4:12] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_fitting(wide):
    plain = Preprocessing(scale=1.0, mean=(0.0,), std=(1.0,))
    stretched = plain.read(wide, SHAPE)
    assert stretched.shape == SHAPE and stretched[0, 0, 0, 0] < 60 and stretched[0, 0, 0, 1] > 190
    cropped = Preprocessing(CROP, 1.0, (0.0,), (1.0,)).read(wide, SHAPE)
    assert cropped.min() > 190  # the middle half is white
    boxed = Preprocessing(LETTERBOX, 1.0, (0.0,), (1.0,)).read(wide, SHAPE)
    assert (boxed[0, :, 0] == 114).all() and boxed[0, 0, 1, 1] > 190


def test_normalisation_is_the_models(wide):
    found = Preprocessing(STRETCH, 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).read(wide, SHAPE)
    raw = Preprocessing(STRETCH, 1.0, (0.0,), (1.0,)).read(wide, SHAPE) / 255
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    wanted = (raw - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert Preprocessing().read(wide, SHAPE).min() >= -1 and Preprocessing().read(wide, SHAPE).max() <= 1
    with pytest.raises(OpenNeutronError, match="--mean: has 2 values"):
        Preprocessing(mean=(1.0, 2.0)).read(wide, SHAPE)


def test_a_function_makes_the_input(wide):
    made = Preprocessing(function=lambda image: np.full((3, 4, 4), image.width)).read(wide, SHAPE)
    assert made.shape == SHAPE and (made == 16).all()
    with pytest.raises(OpenNeutronError, match=r"returned the shape \[2\]"):
        Preprocessing(function=lambda image: np.zeros(2)).read(wide, SHAPE)
    with pytest.raises(OpenNeutronError, match="raised ZeroDivisionError"):
        Preprocessing(function=lambda image: 1 / 0).read(wide, SHAPE)
