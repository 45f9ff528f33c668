"""See the package."""

from enum import Enum


class MobileNet_V2_Weights(Enum):
    """There are none."""

    DEFAULT = None
