"""A small classifier of digits whose channels differ a thousandfold in size: int8 alone loses much of it."""

import torch
from torch import nn

from openneutron.models.data import load_digits
from openneutron.models.train import train


def net(epochs=3):
    """Train it, then scale the channels between two layers up and down; the float function stays the same."""
    data = load_digits((1, 1, 16, 16)).train
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 24, 3, stride=2), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(24 * 9, 10))
    train(model, data, epochs)
    factor = torch.logspace(-1.5, 1.5, 16)[torch.randperm(16)]
    with torch.no_grad():
        model[0].weight *= factor[:, None, None, None]
        model[0].bias *= factor
        model[2].weight /= factor[None, :, None, None]
    calibration = [data.inputs[i : i + 1] for i in range(32)]
    return model, calibration[0], calibration
