"""See the package."""

from openneutron.models.mobilenet_v2 import MobileNetV2


def mobilenet_v2(weights=None):
    """The network, with weights of this process's random numbers."""
    del weights
    return MobileNetV2()
