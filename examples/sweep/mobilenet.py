"""A small MobileNet on digits, in any width and resolution: a model for `openneutron sweep`."""

import torch
from torch import nn

from openneutron.models.data import Split, load_digits
from openneutron.models.train import train


def conv(inputs, outputs, kernel, stride=1, groups=1):
    """A convolution with batch norm and ReLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]


def mobilenet(width=8, resolution=16, epochs=4):
    """Train it for a few seconds; the same arguments give the same weights."""
    data = load_digits((1, 1, resolution, resolution)).train
    torch.manual_seed(0)
    layers, channels = conv(1, width, 3, stride=2), width
    for outputs, stride in (2 * width, 1), (4 * width, 2), (4 * width, 1):
        layers += conv(channels, channels, 3, stride, groups=channels) + conv(channels, outputs, 1)
        channels = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    train(model, Split(data.inputs[64:], data.labels[64:]), epochs, rate=1e-2)
    calibration = [data.inputs[i : i + 1] for i in range(64)]
    return model, calibration[0], calibration
