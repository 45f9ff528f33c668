"""The weights that ship with the package, and the training that made them."""

import pytest
import torch

from openneutron.diagnostics import OpenNeutronError
from openneutron.models import ZOO, build_model, find_model
from openneutron.models.data import Split, load_digits
from openneutron.models.train import accuracy, train
from openneutron.models.weights import weights_path


@pytest.mark.parametrize("name", ["cifarnet", "dscnn"])
def test_trained_models_know_the_digits(name):
    entry = find_model(name)
    assert entry.is_trained and weights_path(name).stat().st_size < 500_000
    test = load_digits(entry.input_shapes[0], entry.classes).test
    assert accuracy(build_model(name, trained=True), test) > 0.985
    assert accuracy(build_model(name), Split(test.inputs[:60], test.labels[:60])) < 0.5


def test_a_model_without_weights_says_how_to_make_them():
    assert not ZOO["gru"].is_trained
    with pytest.raises(OpenNeutronError, match=r"python -m openneutron\.models\.train gru"):
        build_model("gru", trained=True)


def test_training_is_repeatable():
    data = load_digits((1, 1, 49, 10)).train
    few, states = Split(data.inputs[:64], data.labels[:64]), []
    for _ in range(2):
        model = build_model("dscnn", softmax=False)
        train(model, few, epochs=1)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
