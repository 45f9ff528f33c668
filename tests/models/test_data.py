"""The digits data set: real data in every model's shape, the same every time."""

import pytest
import torch

from openneutron.diagnostics import OpenNeutronError
from openneutron.models import ZOO
from openneutron.models.data import fit_images, load_digits

SMALL = [n for n, entry in ZOO.items() if entry.input_shapes[0][-1] < 96 and entry.data == "digits"]


@pytest.mark.parametrize("name", SMALL)
def test_every_model_gets_its_shape(name):
    entry = ZOO[name]
    data = load_digits(entry.input_shapes[0], entry.classes)
    assert data.train.inputs.shape[1:] == entry.input_shapes[0][1:]
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert data.train.inputs.min() >= -1
    assert data.train.inputs.max() <= 1
    assert data.train.inputs.std() > 0.3


def test_split_is_repeatable_stratified_and_disjoint():
    first, second = load_digits((1, 64)), load_digits((1, 64))
    assert torch.equal(first.test.inputs, second.test.inputs)
    assert torch.equal(first.train.labels, second.train.labels)
    assert torch.bincount(first.test.labels).min() >= 34
    train = {row.numpy().tobytes() for row in first.train.inputs}
    assert not any(row.numpy().tobytes() in train for row in first.test.inputs)


def test_pixels_and_labels_belong_together():
    """A nearest-neighbour guess is right nearly always, so no step shuffled one without the other."""
    data = load_digits((1, 1, 16, 16))
    distances = torch.cdist(data.test.inputs.flatten(1), data.train.inputs.flatten(1))
    guess = data.train.labels[distances.argmin(1)]
    assert (guess == data.test.labels).float().mean() > 0.97


def test_two_classes_are_odd_and_even():
    ten, two = load_digits((1, 64)), load_digits((1, 64), classes=2)
    assert torch.equal(two.test.labels, ten.test.labels % 2)


def test_channels_are_copies_of_the_grey_image():
    images = fit_images(torch.randn(2, 8, 8), (1, 3, 32, 32))
    assert torch.equal(images[:, 0], images[:, 2])


def test_an_impossible_shape_is_a_coded_error():
    with pytest.raises(OpenNeutronError, match="ON104"):
        fit_images(torch.randn(2, 8, 8), (1, 2, 3, 4, 5))
