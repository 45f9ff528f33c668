"""MobileNetV1 on scikit-learn's digits, in any width and resolution: a model for `openneutron sweep`."""

import torch

from openneutron.models.data import Split, load_digits
from openneutron.models.mobilenet_v1 import MobileNetV1
from openneutron.models.train import train


def mobilenet(width=0.25, resolution=32, epochs=4):
    """Train it for a few seconds; the same arguments give the same weights."""
    data = load_digits((1, 3, resolution, resolution)).train
    torch.manual_seed(0)
    model = MobileNetV1(width, resolution, num_classes=10, softmax=False)
    train(model, Split(data.inputs[:512], data.labels[:512]), epochs)
    calibration = [data.inputs[i : i + 1] for i in range(512, 576)]
    return model, calibration[0], calibration
